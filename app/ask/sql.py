"""`sqlagent sql`: runs one read-only statement by hand, guarded like the agent's own."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from app.ask.export_answer import export_rows
from app.ask.schema import looks_around, show_schema
from app.shared import audit_trail, exit_codes, options, output
from app.shared.option_groups import EXPORTED_ROWS, SHOWN_ROWS, DatabaseOptions, Query, spread


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
            outcome = run_sql(audit_trail.trail("sql"), database, text, limits)
        finally:
            database.close()
        written = export_rows(outcome, out) if out and not isinstance(outcome, QueryError) else ""
    if isinstance(outcome, QueryError):
        if as_json:
            output.print_json({"error": _as_dict(outcome)})
        hint = f" (there is: {', '.join(outcome.candidates)})" if outcome.candidates else ""
        raise exit_codes.fail(
            f"{outcome.message}{hint}", exit_codes.REFUSED if outcome.kind == "refused" else exit_codes.DATABASE
        )
    if as_json:
        output.print_json(_as_dict(outcome) | {"error": None})
    elif as_csv:
        output.print_csv(outcome.columns, outcome.rows)
    elif not out:
        output.print_rows(outcome.columns, outcome.rows, outcome.truncated)
    if written:
        output.report(written)
    if outcome.truncated and (as_csv or out):
        told = f"only the first {len(outcome.rows):,} rows are written; --limit sets how many"
        raise exit_codes.fail(told, exit_codes.OK if query.limit else exit_codes.INCOMPLETE)


def _as_dict(outcome: object) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(outcome)  # type: ignore[call-overload, no-any-return]
