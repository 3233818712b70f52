"""Names of tables with the schema that holds them, and without: statements are written and read with bare names, and run with
qualified ones (`tools.schema.Table.path`).
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from tools.schema import Schema, Table
from tools.sql.scope import common_table, full_name, parse_or_nothing
from tools.sql.spelling import identifier


@dataclass(frozen=True, slots=True)
class Qualified:
    """`text`, and its edits: `(place in the statement that was given, length there, length in text)`, in order."""

    text: str
    edits: tuple[tuple[int, int, int], ...] = ()

    def origin(self, place: int | None) -> int | None:
        """Where the word that stands at `place` in `text` stood in the statement that was given."""
        if place is None:
            return None
        shift = 0
        starts = []
        for start, old, new in self.edits:
            starts.append(start + shift)
            shift += new - old
        at = bisect_right(starts, place) - 1
        if at < 0:
            return place
        start, old, new = self.edits[at]
        inside = place - starts[at]
        return start + (min(inside, max(old - 1, 0)) if inside < new else inside - new + old)


def qualified(sql: str, schema: Schema) -> Qualified:
    """The statement with every bare name of a table outside the default schema spelled out; all else stays as it is written.

    >>> from tools.schema import Column
    >>> users = Table("users", (Column("name", "TEXT"),), path=("sales", "users"))
    >>> qualified("SELECT users.name FROM users", Schema((users,), "duckdb")).text
    'SELECT users.name FROM sales.users'
    """
    places = {table.name.casefold(): table for table in schema.tables if table.path}
    if not places:
        return Qualified(sql)
    text, edits = sql, []
    for found in sorted(_bare_tables(sql, schema.dialect, places), key=lambda each: -each.this.meta["start"]):
        start, end = found.this.meta["start"], found.this.meta["end"] + 1
        spelled = _spelled(found, places[found.name.casefold()], schema.dialect)
        text = text[:start] + spelled + text[end:]
        edits.append((start, end - start, len(spelled)))
    return Qualified(text, tuple(reversed(edits)))


def _bare_tables(sql: str, dialect: str, places: Mapping[str, Table]) -> list[exp.Table]:
    trees = parse_or_nothing(sql, dialect)
    return [
        table
        for tree in trees
        for table in tree.find_all(exp.Table)
        if isinstance(table.this, exp.Identifier)
        and "start" in table.this.meta
        and not (table.args.get("db") or table.args.get("catalog"))
        and table.name.casefold() in places
        and common_table(table) is None
    ]


def _spelled(found: exp.Table, table: Table, dialect: str) -> str:
    """The path; with the bare name as alias where columns are called by a name that the path does not end with."""
    path = ".".join(identifier(part, dialect) for part in table.path)
    is_called = found.alias or table.path[-1].casefold() == found.name.casefold()
    return path if is_called else f"{path} AS {identifier(found.name, dialect)}"


def bare(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """The tree with the bare names of tables outside the default schema, as prompts show them.

    >>> from sqlglot import parse_one
    >>> from tools.schema import Column
    >>> users = Table("users", (Column("name", "TEXT"),), path=("sales", "users"))
    >>> bare(parse_one("SELECT name FROM sales.users"), Schema((users,), "duckdb")).sql()
    'SELECT name FROM users'
    """
    for found in list(tree.find_all(exp.Table)):
        table = schema.table(full_name(found)) if found.args.get("db") else None
        if table is not None and table.path and isinstance(found.this, exp.Identifier):
            if not found.alias and found.name.casefold() != table.name.casefold():
                found.set("alias", exp.TableAlias(this=exp.to_identifier(found.name)))
            found.set("this", exp.to_identifier(table.name, quoted=found.this.args.get("quoted")))
            found.set("db", None)
            found.set("catalog", None)
    for column in tree.find_all(exp.Column):
        if column.args.get("db") and any(table.path for table in schema.tables):
            column.set("db", None)
    return tree
