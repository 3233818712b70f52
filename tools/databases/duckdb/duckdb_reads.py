"""What a statement reads and calls by DuckDB's own parser: the second lock of hidden tables and columns, and of functions.

DuckDB hands out its parse tree as JSON. Nothing of it comes from sqlglot, so what that parser missed is seen here: tables
that may not be read, table functions and file readers, functions that are never called. A table of which a column is hidden
may only stand in `SELECT column, ... FROM table` with visible columns, as `tools/guard/visibility.py` writes it. Where
something is hidden, no macro and no type of the file itself may be named: a macro reads what it likes, and a type lists values.
"""

import json
from collections.abc import Iterator
from typing import Any

import duckdb

from tools.guard.allowed_functions import TABLE_FUNCTIONS, never
from tools.result import QueryError
from tools.schema import Schema, Table

_Node = dict[str, Any]

_ROW_SOURCES = {
    "BASE_TABLE",
    "COLUMN_DATA",
    "CTE",
    "EMPTY",
    "EMPTY_FROM",
    "EXPRESSION_LIST",
    "JOIN",
    "PIVOT",
    "SUBQUERY",
}
_ROW_SOURCES |= {"TABLE_FUNCTION"}
_CLAUSES = ("where_clause", "having", "qualify", "sample", "group_expressions", "group_sets")


class DuckDBReads:
    """What may be read: `seen` of `whole`, all of it where `seen` is None. `own`: the macros and types of the file."""

    def __init__(self, whole: Schema, seen: Schema | None, own: frozenset[str] = frozenset()) -> None:
        self._whole, self._seen, self._own = whole, seen or whole, own
        self._is_bounded = seen is not None

    def objection(self, cursor: duckdb.DuckDBPyConnection, sql: str) -> QueryError | None:
        """Why DuckDB may not run the one SELECT `sql`; what it cannot parse is left to it. Raises duckdb.Error."""
        tree = _tree(cursor, sql)
        if tree is None:
            return _refused("its parse tree cannot be looked at") if self._is_bounded else None
        nodes = list(_nodes(tree))
        names = {entry["key"].casefold() for node in nodes for entry in _entries(node)}
        narrow = {id(node["from_table"]) for node in nodes if self._is_narrowed(node)}
        for node in nodes:
            problem = (
                _call_objection(node)
                or self._own_objection(node)
                or self._read_objection(node, names, id(node) in narrow)
            )
            if problem is not None:
                return problem
        return None

    def _own_objection(self, node: _Node) -> QueryError | None:
        """Operators, lists and the like have the names of functions in DuckDB's tree."""
        names = (str(node.get(key, "")) for key in ("function_name", "type_name"))
        found = next((name for name in names if name.casefold() in self._own), None)
        return _refused(f"{found} is made by this database and may read what is hidden") if found else None

    def _read_objection(self, node: _Node, names: set[str], is_narrowed: bool) -> QueryError | None:
        if node.get("type") != "BASE_TABLE" or "table_name" not in node:
            return None
        schema, name = str(node.get("schema_name") or ""), str(node["table_name"])
        if not schema and name.casefold() in names:
            is_a_table = self._is_bounded and self._whole.table(name) is not None
            return _refused(f"WITH may not name {name}") if is_a_table else None
        table = _table(self._seen, schema, name)
        if table is None:
            return _refused(f"{name} may not be read") if self._is_bounded else None
        is_whole = len(table.columns) == len(_table(self._whole, schema, name).columns)  # type: ignore[union-attr]
        return None if is_whole or is_narrowed else _refused(f"not all of {name} may be read")

    def _is_narrowed(self, node: _Node) -> bool:
        """`SELECT` of visible columns alone from one table, and nothing else."""
        source = node.get("from_table")
        if node.get("type") != "SELECT_NODE" or not isinstance(source, dict) or source.get("type") != "BASE_TABLE":
            return False
        table = _table(self._seen, str(source.get("schema_name") or ""), str(source.get("table_name")))
        columns = [
            item.get("column_names") if item.get("class") == "COLUMN_REF" else None for item in node["select_list"]
        ]
        are_visible = all(names and len(names) == 1 and table and table.column(names[0]) for names in columns)
        is_bare = not any(node.get(clause) for clause in _CLAUSES) and not node.get("modifiers")
        return are_visible and is_bare and not source.get("sample") and not source.get("column_name_alias")


def own_names(cursor: duckdb.DuckDBPyConnection) -> tuple[frozenset[str], frozenset[str]]:
    """The macros and types that the file brings, in lower case; and which of the macros take the place of DuckDB's own."""
    rows = cursor.execute(_OWN).fetchall()  # by no function, for a macro may stand in its place
    own = frozenset(name.casefold() for name, is_internal in rows if not is_internal)
    return own, own & {name.casefold() for name, is_internal in rows if is_internal}


_OWN = """SELECT function_name, internal FROM system.main.duckdb_functions()
UNION ALL SELECT type_name, false FROM system.main.duckdb_types() WHERE NOT internal"""


def _tree(cursor: duckdb.DuckDBPyConnection, sql: str) -> _Node | None:
    row = cursor.execute("SELECT system.main.json_serialize_sql(CAST(? AS VARCHAR))", [sql]).fetchone()
    tree = json.loads(row[0]) if row else {"error": True}
    return None if tree.get("error") else tree


def _nodes(tree: _Node) -> Iterator[_Node]:
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _entries(node: _Node) -> list[_Node]:
    """The names that the WITH of a query gives."""
    found = node.get("cte_map")
    return found.get("map", []) if isinstance(found, dict) else []


def _call_objection(node: _Node) -> QueryError | None:
    if "sample" in node and "alias" in node and node.get("type") not in _ROW_SOURCES:
        return _refused(f"{node.get('type')} has no place in a read-only query")
    if node.get("type") == "TABLE_FUNCTION":
        called = node.get("function")
        name = str(called.get("function_name", "")).lower() if isinstance(called, dict) else ""
        return None if name in TABLE_FUNCTIONS else _refused(f"{name} cannot be read like a table")
    name = str(node.get("function_name", "")).lower()
    return _refused(f"the function {name} is not allowed") if name and never(name) else None


def _table(schema: Schema, qualifier: str, name: str) -> Table | None:
    return schema.table(name if qualifier.casefold() in ("", "main") else f"{qualifier}.{name}")


def _refused(message: str) -> QueryError:
    return QueryError("refused", f"refused by DuckDB: {message}")
