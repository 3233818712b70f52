"""Describes what the nodes of the graph used and found, in words for people, from their updates of the state.

`agent.observe.node_table` says which function belongs to which node.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_LINES = 12


@dataclass(frozen=True, slots=True)
class Note:
    """A labelled text; `language` is its name for syntax highlighting, or empty."""

    label: str
    text: str
    language: str = ""


def link_notes(update: Mapping[str, Any]) -> list[Note]:
    links = [_name(link) for link in update.get("links", [])]
    values = [f"{_name(value)} = {value['value']!r}" for value in update.get("values", [])]
    return [Note("tables and columns that the question may mean", _lines(links)), Note("values found", _lines(values))]


def relate_notes(update: Mapping[str, Any]) -> list[Note]:
    return [Note("read as", str(update.get("resolved", "")))]


def clarify_notes(update: Mapping[str, Any]) -> list[Note]:
    return [Note("the question may mean", _lines(list(update.get("unclear", {}))))]


def plan_notes(update: Mapping[str, Any]) -> list[Note]:
    return [Note("plan", str(update.get("plan", "")))]


def written_notes(update: Mapping[str, Any]) -> list[Note]:
    return [Note("SQL", str(update.get("candidate", "")), "sql"), *_trouble(update)]


def check_notes(update: Mapping[str, Any]) -> list[Note]:
    return [Note("SQL that will run", str(update.get("checked", "")), "sql"), *_trouble(update)]


def execute_notes(update: Mapping[str, Any]) -> list[Note]:
    preview = update.get("preview")
    ran = update["attempts"][-1]["sql"] if update.get("attempts") else ""
    rows = f"{preview['row_count']:,} rows: {', '.join(preview['columns'])}" if preview else ""
    return [Note("ran", ran, "sql"), Note("result", rows), *_trouble(update)]


def _trouble(update: Mapping[str, Any]) -> list[Note]:
    error = update["attempts"][-1]["error"] if update.get("attempts") else None
    if not error:
        return []
    candidates = ", ".join(error.get("candidates") or ())
    return [Note("error", error["message"]), Note("there is", candidates)]


def _name(found: Mapping[str, Any]) -> str:
    return f"{found['table']}.{found['column']}" if found.get("column") else str(found["table"])


def _lines(texts: list[str]) -> str:
    unique = list(dict.fromkeys(texts))
    more = [f"and {len(unique) - MOST_LINES} more"] if len(unique) > MOST_LINES else []
    return "\n".join([*unique[:MOST_LINES], *more])
