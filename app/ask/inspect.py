"""Commands that need no model, and rows as files.

- `sqlagent schema` shows the tables that one may see, or describes one of them.
- `sqlagent sql` runs one read-only statement by hand, guarded like the agent's own.
- `sqlagent logs` shows who asked what, which SQL ran, its rows and time, and whether it was refused.

A file of an answer's rows has the headings that people are shown, a file of a query's rows its own.
"""

import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from app.shared import databases, exit_codes, options, output
from app.shared.databases import log_path
from app.shared.options import EXPORTED_ROWS, SHOWN_ROWS, DatabaseOptions, Query, spread

if TYPE_CHECKING:
    from agent.context import AgentContext
    from agent.observe.audit import AuditLog, Entry, Shares, Wanted
    from tools.databases.database import Database
    from tools.result import Result
    from tools.schema import Table


def export_answer(toolbox: "AgentContext", path: Path) -> str:
    """Write what is shown of the last result; returns what to tell. Raises ExportError."""
    if toolbox.result is None or toolbox.shown is None:
        return "there is no answer to write"
    from agent.presentation.shown import shown_as_result

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


@spread
def schema(
    table: Annotated[str | None, typer.Argument(help="A table to describe; without one, all are listed.")] = None,
    source: DatabaseOptions = DatabaseOptions(),
    as_sql: Annotated[bool, typer.Option("--sql", help="Print CREATE TABLE statements.")] = False,
    as_json: options.Json = False,
) -> None:
    """Show the tables, or the columns of one, within what may be seen."""
    show_schema(source, table, as_json, as_sql)


def show_schema(source: DatabaseOptions, table: str | None, as_json: bool, as_sql: bool = False) -> None:
    """Open the database and print its tables, or one of them."""
    with exit_codes.plain_errors(as_json):
        database = source.open()
        try:
            found = [_named(database, table)] if table else list(database.schema().tables)
            if as_json:
                output.print_json([asdict(each) for each in found])
            elif as_sql:
                from tools.sql.spelling import create_table

                print(output.for_stdout("\n\n".join(create_table(each, database.dialect) for each in found)))
            else:
                print_schema(database, table or "")
        finally:
            database.close()


def looks_around(line: str) -> str | None:
    """The table that a line such as "describe albums" asks about, empty for "show tables"; None for any other line."""
    words = line.strip().rstrip(";").split()
    plain = " ".join(words).casefold()
    if plain in ("show tables", "tables", "schema", "describe"):
        return ""
    return words[1] if len(words) == 2 and plain.startswith(("describe ", "desc ")) else None


def print_schema(database: "Database", table: str) -> None:
    """List the tables; or the columns of `table`, if one is named."""
    if table:
        _print_table(_named(database, table))
        return
    rows = [
        [
            each.name,
            "" if each.row_count is None else f"{each.row_count:,}",
            ", ".join(column.name for column in each.columns),
        ]
        for each in database.schema().tables
    ]
    output.print_table(["table", "rows", "columns"], rows, [False, True, False])


def _print_table(table: "Table") -> None:
    refers = {
        column: f"{key.ref_table}.{there}"
        for key in table.foreign_keys
        for column, there in zip(key.columns, key.ref_columns, strict=False)
    }
    rows = [
        [
            each.name,
            each.type.lower(),
            "key" if each.primary_key else refers.get(each.name, ""),
            ", ".join(each.samples),
        ]
        for each in table.columns
    ]
    output.print_table(["column", "type", "key", "for example"], rows)


def _named(database: "Database", name: str) -> "Table":
    tables = database.schema()
    found = tables.table(name)
    if found is None:
        names = [each.name for each in tables.tables]
        close = get_close_matches(name, names, cutoff=0.5) or names[:5]
        raise exit_codes.fail(f"no table {name}; there is: {', '.join(close)}", exit_codes.USAGE)
    return found


@spread
def sql(
    statement: Annotated[str | None, typer.Argument(help="One SELECT; read from stdin when it is not given.")] = None,
    source: DatabaseOptions = DatabaseOptions(),
    query: Query = Query(),
    as_json: options.Json = False,
    as_csv: Annotated[
        bool,
        typer.Option("--csv", help="Print CSV on stdout, cells as they are: a spreadsheet would compute formulas."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Write the rows to this file: .csv or .xlsx, where no text is a formula, or .parquet.",
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Run a SQL query, read-only."""
    from agent.observe.audit import run_sql
    from tools.result import QueryError

    text = statement if statement not in (None, "-") else "" if sys.stdin.isatty() else sys.stdin.read()
    if not text.strip():
        raise exit_codes.fail("no SQL; try: sqlagent sql 'SELECT 1'", exit_codes.USAGE)
    if (table := looks_around(text)) is not None:
        show_schema(source, table, as_json)
        return
    limits = query.limits(EXPORTED_ROWS if as_csv or out else SHOWN_ROWS)
    with exit_codes.plain_errors(as_json):
        database = source.open()
        try:
            outcome = run_sql(databases.trail("sql"), database, text, limits)
        finally:
            database.close()
        written = export_rows(outcome, out) if out and not isinstance(outcome, QueryError) else ""
    if isinstance(outcome, QueryError):
        if as_json:
            output.print_json({"error": asdict(outcome)})
        hint = f" (there is: {', '.join(outcome.candidates)})" if outcome.candidates else ""
        raise exit_codes.fail(
            f"{outcome.message}{hint}", exit_codes.REFUSED if outcome.kind == "refused" else exit_codes.DATABASE
        )
    if as_json:
        output.print_json(asdict(outcome) | {"error": None})
    elif as_csv:
        output.print_csv(outcome.columns, outcome.rows)
    elif not out:
        output.print_rows(outcome.columns, outcome.rows, outcome.truncated)
    if written:
        output.report(written)
    if outcome.truncated and (as_csv or out):
        told = f"only the first {len(outcome.rows):,} rows are written; --limit sets how many"
        raise exit_codes.fail(told, exit_codes.OK if query.limit else exit_codes.INCOMPLETE)


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
    since: Annotated[datetime | None, typer.Option("--since", help="Only entries since this time.")] = None,
    most: Annotated[int, typer.Option("--most", "-n", min=1, help="Most entries to show: the newest ones.")] = 100,
    add_up: Annotated[
        bool, typer.Option("--sum", help="Show who answered how many questions, and what larger models cost.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new entries until Ctrl+C.")] = False,
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
            if add_up:
                _print_sum(AuditLog(path).shares(wanted), as_json)
                return
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


def _print_sum(shares: "Shares", as_json: bool) -> None:
    if as_json:
        output.print_json(asdict(shares))
        return
    total, rows = shares.questions, list[list[str]]()
    for name, each in {"own model": None, **shares.larger}.items():
        count = shares.own if each is None else each.answered
        costs = (
            [f"{each.asked:,}", f"{each.prompt_tokens:,}", f"{each.new_tokens:,}", f"{each.wall_ms / 1e3:,.1f}"]
            if each
            else [f"{total:,}", "", "", ""]
        )
        rows.append([name, costs[0], f"{count:,}", f"{count / total:.0%}" if total else "", *costs[1:]])
    headings = ["model", "asked", "answered", "share", "tokens read", "tokens written", "seconds"]
    output.print_table(headings, rows, [False, *[True] * 6])


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
