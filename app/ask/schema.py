"""`sqlagent schema`: shows the tables that one may see, or describes one of them."""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import typer

from app.shared import exit_codes, options, output
from app.shared.option_groups import DatabaseOptions, spread

if TYPE_CHECKING:
    from tools.databases.database import Database
    from tools.schema import Table


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
                from dataclasses import asdict

                output.print_json([asdict(each) for each in found])
            elif as_sql:
                from tools.sql.create_table import create_table

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
