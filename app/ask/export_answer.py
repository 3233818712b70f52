"""Writes rows to a file: an answer's with the headings that people are shown, a query's with its own."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.graph.toolbox import Toolbox
    from tools.result import Result


def export_answer(toolbox: "Toolbox", path: Path) -> str:
    """Write what is shown of the last result; returns what to tell. Raises ExportError."""
    if toolbox.result is None or toolbox.shown is None:
        return "there is no answer to write"
    from agent.graph.presentation.shown import shown_as_result

    return export_rows(shown_as_result(toolbox.shown, toolbox.result), path)


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
