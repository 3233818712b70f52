"""`sqlagent logs`: shows who asked what, which SQL ran, its rows and time, and whether it was refused."""

import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from datetime import datetime
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from app.shared import exit_codes, options, output
from app.shared.audit_trail import log_path

if TYPE_CHECKING:
    from agent.observe.audit import AuditLog, Entry, Wanted

POLL_S = 0.5


def logs(
    who: Annotated[str, typer.Option("--who", help="Only what this person asked.")] = "",
    outcome: Annotated[
        str,
        typer.Option(
            "--outcome",
            help="Only these: asked, running, ok, refused, failure (whose traceback --json has), timeout, syntax, ...",
        ),
    ] = "",
    text: Annotated[str, typer.Option("--text", help="Only with this text in question, SQL or message.")] = "",
    since: Annotated[datetime | None, typer.Option("--since", help="Only from this time on.")] = None,
    most: Annotated[int, typer.Option("--most", "-n", min=1, help="Most entries to show: the newest ones.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as entries come, until Ctrl+C.")] = False,
    as_json: options.Json = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV on stdout; an apostrophe keeps spreadsheets from computing a text.")
    ] = False,
) -> None:
    """Show who asked what, which SQL ran, and how it ended."""
    from agent.observe.audit import AuditLog, Entry, Wanted

    path = log_path()
    if path is None or not path.exists():
        raise exit_codes.fail(
            "there is no log yet" if path else "the log is switched off (SQLAGENT_LOG=off)", exit_codes.USAGE
        )
    wanted = Wanted(who, outcome, text, since.timestamp() if since else 0.0)
    with exit_codes.plain_errors():
        try:
            found = _entries(AuditLog(path), wanted, most, follow)
            if as_csv:
                from tools.databases.files.export import inert

                rows = (
                    tuple(map(inert, asdict(each).values())) for each in found
                )  # askers are not those who read this
                output.print_csv([field.name for field in fields(Entry)], rows)
                return
            for entry in found:
                print(_line(entry)) if not as_json else output.print_json(asdict(entry))
        except BrokenPipeError:
            raise
        except (OSError, sqlite3.Error) as error:
            raise exit_codes.fail(f"cannot read the log {path}: {error}", exit_codes.FAILED) from error


def _entries(log: "AuditLog", wanted: "Wanted", most: int, follow: bool) -> "Iterator[Entry]":
    last = 0
    for entry in log.entries(wanted, most=most):
        last = entry.id
        yield entry
    while follow:
        sys.stdout.flush()
        sleep(POLL_S)
        for entry in log.entries(wanted, after=last):
            last = entry.id
            yield entry


def _line(entry: "Entry") -> str:
    """One entry as exactly one line, whatever it contains, so that no asker can forge another entry."""
    at = datetime.fromtimestamp(entry.at_s).isoformat(" ", "seconds")
    said = entry.question if entry.sql is None else entry.sql
    rows = "" if entry.row_count is None else f" {entry.row_count} rows"
    time = "" if entry.wall_ms is None else f" {entry.wall_ms:.0f} ms"
    said_of_it = entry.message.partition("\n")[0] if entry.outcome == "failure" else entry.message  # no traceback
    note = f" ({said_of_it})" if said_of_it else ""
    line = f"{at} {entry.who} {entry.way} {entry.source}: {entry.outcome}{rows}{time}: {said}{note}"
    return " ".join("".join(letter if letter.isprintable() else " " for letter in line).split())
