"""Writes rows to a file: an answer's with the headings that people are shown, a query's with its own."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.graph.presentation.shown import Shown
    from agent.graph.toolbox import Toolbox
    from tools.result import Result

_TYPES = {"digits": "BIGINT", "amount": "DOUBLE", "time": "TIMESTAMP"}


def export_answer(toolbox: "Toolbox", path: Path) -> str:
    """Write what is shown of the last result; returns what to tell. Raises ExportError."""
    if toolbox.result is None or toolbox.shown is None:
        return "there is no answer to write"
    return export_rows(_as_result(toolbox.shown, toolbox.result), path)


def export_rows(result: "Result", path: Path) -> str:
    """Write a result; returns what to tell. Raises ExportError, also for a kind of file that cannot be written."""
    from tools.databases.files.export import FORMATS, ExportError, export

    kind = next((each for each in FORMATS if path.suffix.casefold() == f".{each}"), None)
    if kind is None:
        raise ExportError(f"{path}: the name must end in {', '.join(f'.{each}' for each in FORMATS)}")
    try:
        export(result, path, kind)
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror or error}") from error
    return f"{len(result.rows):,} rows written to {path}"


def _as_result(shown: "Shown", result: "Result") -> "Result":
    """The shown rows with types: the query's own where a column is its own."""
    from dataclasses import replace

    own = dict(zip(shown.given, result.types, strict=True))
    types = tuple(own.get(place, _TYPES.get(column.kind, "VARCHAR")) for place, column in enumerate(shown.columns))
    return replace(result, columns=tuple(column.heading for column in shown.columns), types=types, rows=shown.rows)
