"""`sqlagent sql`: runs one read-only statement by hand, guarded like the agent's own."""

import sys
from typing import Annotated

import typer

from app.shared import audit_trail, exit_codes, options, output
from app.shared.option_groups import EXPORTED_ROWS, SHOWN_ROWS, DatabaseOptions, Query, spread


@spread
def sql(
    statement: Annotated[str | None, typer.Argument(help="One SELECT; read from stdin when it is not given.")] = None,
    source: DatabaseOptions = DatabaseOptions(),
    query: Query = Query(),
    as_json: options.Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV on stdout.")] = False,
) -> None:
    """Run a SQL query, read-only."""
    from agent.observe.audit import run_sql
    from tools.result import QueryError

    text = statement if statement not in (None, "-") else "" if sys.stdin.isatty() else sys.stdin.read()
    if not text.strip():
        raise exit_codes.fail("no SQL; try: sqlagent sql 'SELECT 1'", exit_codes.USAGE)
    limits = query.limits(EXPORTED_ROWS if as_csv else SHOWN_ROWS)
    with exit_codes.plain_errors(as_json):
        database = source.open()
        try:
            outcome = run_sql(audit_trail.trail("sql"), database, text, limits)
        finally:
            database.close()
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
        if outcome.truncated:
            told = f"only the first {len(outcome.rows):,} rows are written; --limit sets how many"
            raise exit_codes.fail(told, exit_codes.OK if query.limit else exit_codes.INCOMPLETE)
    else:
        output.print_rows(outcome.columns, outcome.rows, outcome.truncated)


def _as_dict(outcome: object) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(outcome)  # type: ignore[call-overload, no-any-return]
