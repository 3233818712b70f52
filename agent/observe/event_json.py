"""Converts events to lines of a `.jsonl` file and back. All such conversions happen here; no files are opened here."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from agent.observe.events import Event, Ran
from agent.observe.node_notes import Note
from decoding.engine.records.rounds import Round

_KINDS: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in Event.__args__}


class EventError(ValueError):
    """A line is not an event; the message says why."""


def to_json(event: Event) -> str:
    """The event as one line."""
    body = {"event": type(event).__name__.lower()} | asdict(event)
    return json.dumps(body, ensure_ascii=False, default=str)


def from_json(line: str) -> Event:
    """The event in a line. Raises EventError."""
    try:
        body = json.loads(line)
        kind = _KINDS[body.pop("event")]
        known = {field.name for field in fields(kind)}
        values = {key: _read(kind, key, value) for key, value in body.items() if key in known}
        return kind(**values)  # type: ignore[no-any-return]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise EventError(f"not an event of a conversation: {line[:60]!r} ({type(error).__name__})") from error


def _read(kind: type[Any], key: str, value: Any) -> Any:
    if key == "rounds":
        return tuple(_read_round(each) for each in value)
    if key == "notes":
        return tuple(Note(**each) for each in value)
    if key == "spelling" and value is not None:
        return {int(token): str(text) for token, text in value.items()}
    if kind is Ran and isinstance(value, list):
        return tuple(tuple(each) if isinstance(each, list) else each for each in value)
    return value


def _read_round(record: Mapping[str, Any]) -> Round:
    """The round in a record, with JSON's lists converted back to tuples."""
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in record.items()}
    return Round(**values)
