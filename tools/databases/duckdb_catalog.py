"""DuckDB's tables and columns: their schema, what a statement reads of them, and how rows get into them.

`DuckDBReads` is the second lock of hidden tables and columns, and of functions. DuckDB hands out its parse tree as JSON.
Nothing of it comes from sqlglot, so what that parser missed is seen here: tables that may not be read, table functions and
file readers, functions that are never called. A table of which a column is hidden may only stand in `SELECT column, ... FROM
table` with visible columns, as `tools/guard/visibility.py` writes it, and one with a rule there with its condition and fence,
as DuckDB reads these. Where something is hidden, no macro and no type of the file itself may be named: a macro reads what it
likes, and a type lists values.

Rows that are inserted travel column by column as JSON texts: 47,000 rows of sakila_1 take 0.12 s on two cores, where
`executemany` needs 5 s for a quarter of them (duckdb 2.0).
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from time import monotonic
from typing import Any

import duckdb

from tools.databases.choices import MAX_LENGTH, ROWS_LOOKED_AT, VIEWS_S, samples
from tools.guard.allowed import TABLE_FUNCTIONS, never
from tools.guard.visibility import rows_of
from tools.processes import Watchdog
from tools.result import QueryError
from tools.schema import Column, ForeignKey, Schema, Table, words_of

ROWS_S = 20.0  # so long the rows of tables are looked at; 10,000 tables take longer on a busy machine

_COLUMNS = """
SELECT c.schema_name, c.table_name, c.column_name, c.data_type, c.is_nullable, coalesce(c.comment, ''),
       coalesce(t.comment, v.comment, ''), t.table_name IS NOT NULL, c.column_default, v.sql, t.estimated_size
FROM duckdb_columns() c
LEFT JOIN duckdb_tables() t USING (database_name, schema_name, table_name)
LEFT JOIN duckdb_views() v ON v.database_name = c.database_name AND v.schema_name = c.schema_name
                          AND v.view_name = c.table_name
WHERE NOT c.internal AND c.database_name = current_database()
ORDER BY c.schema_name <> 'main', c.schema_name, t.table_oid IS NULL, coalesce(t.table_oid, v.view_oid), c.column_index
"""

_KEYS = """
SELECT schema_name, table_name, constraint_type, constraint_column_names, referenced_table, referenced_column_names
FROM duckdb_constraints()
WHERE database_name = current_database() AND constraint_type IN ('PRIMARY KEY', 'FOREIGN KEY')
ORDER BY constraint_index
"""


def read_schema(
    cursor: duckdb.DuckDBPyConnection, order: Sequence[str], notes: Mapping[str, Table]
) -> tuple[Table, ...]:
    """Tables in the given order, then as DuckDB has them, then views; outside `main` a name carries its schema.

    `notes` are what the source of a loaded copy said of a table, by its name here: keys and comments that a copy does not
    carry. A view that fails or takes long has no samples, nor has a table that is not reached in time; the number of its rows
    is then DuckDB's estimate. Raises duckdb.Error.
    """
    until_s = monotonic() + ROWS_S
    keys, grouped = _keys(cursor), _columns(cursor)
    stored = {_relation(*place): rows for place, rows in grouped.items() if rows[0][7]}
    first_rows = {relation: _Rows() for relation, rows in stored.items() if not rows[0][10]}  # these are empty
    first_rows |= _first_rows(cursor, {name: _texts(rows) for name, rows in stored.items() if rows[0][10]}, until_s)
    tables = []
    left_for_views_s = VIEWS_S
    for (schema, name), rows in grouped.items():
        primary, foreign = keys.get((schema, name), ((), ()))
        is_table, comment = rows[0][7], rows[0][6]
        relation = _relation(schema, name)
        seen = first_rows.get(relation)
        if not is_table:
            started_s = monotonic()
            with Watchdog(left_for_views_s, cursor.interrupt):
                seen = _first_rows(cursor, {relation: _texts(rows)}, inf).get(relation)
            left_for_views_s -= monotonic() - started_s
        values = samples(seen or (), len(rows))
        columns = tuple(
            Column(row[2], row[3], row[2] in primary, row[4] and row[2] not in primary, row[5], value, words_of(row[8]))
            for row, value in zip(rows, values, strict=True)
        )
        count = _count(cursor, relation, seen, rows[0][10], until_s) if is_table else None
        path = () if schema == "main" else (schema, name)
        table = Table(".".join(path) or name, columns, foreign, comment, count, words_of(rows[0][9]), path=path)
        tables.append(_with_note(table, notes.get(table.name)))
    places = {name: place for place, name in enumerate(order)}
    return tuple(sorted(tables, key=lambda table: places.get(table.name, len(places))))


def quoted(name: str) -> str:
    """`name` as an identifier that no keyword and no character can break."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """`text` as a text of SQL, in quotes."""
    return "'" + text.replace("'", "''") + "'"


def _columns(cursor: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], list[tuple]]:  # type: ignore[type-arg]
    grouped = defaultdict(list)
    for row in cursor.execute(_COLUMNS).fetchall():
        grouped[row[0], row[1]].append(row)
    return grouped


def _keys(cursor: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], tuple[tuple[str, ...], tuple[ForeignKey, ...]]]:
    primary: dict[tuple[str, str], tuple[str, ...]] = {}
    foreign: dict[tuple[str, str], list[ForeignKey]] = defaultdict(list)
    for schema, table, kind, columns, ref_table, ref_columns in cursor.execute(_KEYS).fetchall():
        if kind == "PRIMARY KEY":
            primary[schema, table] = tuple(columns)
        else:
            refers = ref_table if schema == "main" else f"{schema}.{ref_table}"  # no key leaves its schema
            foreign[schema, table].append(ForeignKey(tuple(columns), refers, tuple(ref_columns)))
    return {key: (primary.get(key, ()), tuple(foreign.get(key, ()))) for key in primary.keys() | foreign.keys()}


def _relation(schema: str, name: str) -> str:
    return f"{quoted(schema)}.{quoted(name)}"


def _texts(columns: Sequence[tuple[Any, ...]]) -> str:
    """A list of the columns' values, as texts that are long enough to see whether they are short. The functions are named in
    full, because a macro of the file may have the name of one.
    """
    texts = (
        "NULL" if row[3] == "BLOB" else f"system.main.left(CAST({quoted(row[2])} AS VARCHAR), {MAX_LENGTH + 1})"
        for row in columns
    )
    return f"system.main.list_value({', '.join(texts)})"


_Rows = list[Sequence[str | None]]
_AT_ONCE = 50


def _first_rows(cursor: duckdb.DuckDBPyConnection, wanted: Mapping[str, str], until_s: float) -> dict[str, _Rows]:
    """The first rows of relations (name -> expression of its values), of many by one statement: planning one for each took
    twice as long. A relation that fails is missing: a view of a file may name what is not there or may not be read. So is what
    is not reached until then.
    """
    found = dict[str, _Rows]()
    relations = list(wanted)
    for start in range(0, len(relations), _AT_ONCE):
        if monotonic() > until_s:
            break
        batch = relations[start : start + _AT_ONCE]
        parts = (
            f"(SELECT {number}, {wanted[relation]} FROM {relation} LIMIT {ROWS_LOOKED_AT})"
            for number, relation in enumerate(batch)
        )
        try:
            rows = cursor.execute(" UNION ALL ".join(parts)).fetchall()
        except duckdb.Error:
            if len(batch) > 1:
                for relation in batch:
                    found |= _first_rows(cursor, {relation: wanted[relation]}, until_s)
            continue
        found |= {relation: [] for relation in batch}
        for number, values in rows:
            found[batch[number]].append(values)
    return found


def _count(cursor: duckdb.DuckDBPyConnection, relation: str, first: _Rows | None, estimate: int, until_s: float) -> int:
    """The number of rows, of which the first may be all; the estimate where time is up."""
    if first is not None and len(first) < ROWS_LOOKED_AT:
        return len(first)
    if monotonic() > until_s:
        return estimate
    row = cursor.execute(f"SELECT count(*) FROM {relation}").fetchone()
    return int(row[0]) if row else 0


def _with_note(table: Table, note: Table | None) -> Table:
    if note is None:
        return table
    columns = tuple(
        Column(column.name, column.type, said.primary_key, said.nullable, said.comment, column.samples, said.made_of)
        if (said := note.column(column.name))
        else column
        for column in table.columns
    )
    return replace(table, columns=columns, foreign_keys=note.foreign_keys, comment=note.comment, made_of=note.made_of)


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
_CLAUSES = ("having", "qualify", "sample", "group_expressions", "group_sets")


class DuckDBReads:
    """What may be read: `seen` of `whole`, all of it where `seen` is None. `own`: the macros and types of the file."""

    def __init__(self, whole: Schema, seen: Schema | None, own: frozenset[str] = frozenset()) -> None:
        self._whole, self._seen, self._own = whole, seen or whole, own
        self._is_bounded = seen is not None
        self._ruled: dict[str, tuple[Any, Any]] = {}  # the conditions and fences of rules, as DuckDB reads them

    def objection(self, cursor: duckdb.DuckDBPyConnection, sql: str) -> QueryError | None:
        """Why DuckDB may not run the one SELECT `sql`; what it cannot parse is left to it. Raises duckdb.Error."""
        tree = _tree(cursor, sql)
        if tree is None:
            return _refused("its parse tree cannot be looked at") if self._is_bounded else None
        for rule in {table.rule for table in self._seen.tables if table.rule} - self._ruled.keys():
            read = _tree(cursor, f"SELECT 1{rows_of(rule)}")
            if read is None:
                return _refused("a rule cannot be looked at")
            self._ruled[rule] = _rows(read["statements"][0]["node"])
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
        return None if (is_whole and not table.rule) or is_narrowed else _refused(f"not all of {name} may be read")

    def _is_narrowed(self, node: _Node) -> bool:
        """`SELECT` of visible columns alone from one table, with its rule where it has one, and nothing else."""
        source = node.get("from_table")
        if node.get("type") != "SELECT_NODE" or not isinstance(source, dict) or source.get("type") != "BASE_TABLE":
            return False
        table = _table(self._seen, str(source.get("schema_name") or ""), str(source.get("table_name")))
        columns = [
            item.get("column_names") if item.get("class") == "COLUMN_REF" else None for item in node["select_list"]
        ]
        are_visible = all(names and len(names) == 1 and table and table.column(names[0]) for names in columns)
        rule = self._ruled.get(table.rule, ()) if table and table.rule else (None, [])
        is_bare = not any(node.get(clause) for clause in _CLAUSES) and _rows(node) == rule
        return are_visible and is_bare and not source.get("sample") and not source.get("column_name_alias")


def _rows(node: _Node) -> tuple[Any, Any]:
    """Which rows a SELECT gives: its condition and its modifiers, wherever they stand in a text."""
    return _placeless(node.get("where_clause")), _placeless(node.get("modifiers"))


def _placeless(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _placeless(value) for key, value in node.items() if key != "query_location"}
    return [*map(_placeless, node)] if isinstance(node, list) else node


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


def create_table(
    connection: duckdb.DuckDBPyConnection, table: str, columns: Sequence[str], types: Sequence[str]
) -> None:
    """Create an empty table. Raises duckdb.Error."""
    definitions = ", ".join(f"{quoted(name)} {type_}" for name, type_ in zip(columns, types, strict=True))
    connection.execute(f"CREATE TABLE {quoted(table)} ({definitions})")


def insert_columns(
    connection: duckdb.DuckDBPyConnection, table: str, types: Sequence[str], columns: Sequence[Sequence[Any]]
) -> None:
    """Append rows given as columns of equal length; values are None, numbers, texts, bytes (BLOB only), dates and times, and
    lists and dicts of these where the type is nested."""
    items = ", ".join(_item(position, type_) for position, type_ in enumerate(types, 1))
    texts = [json.dumps(column, default=_text, ensure_ascii=False) for column in columns]
    connection.execute(f"INSERT INTO {quoted(table)} SELECT {items}", texts)


def _item(position: int, type_: str) -> str:
    if type_ == "BLOB":
        return f"unhex(unnest(from_json(${position}, '[\"VARCHAR\"]')))"
    if type_.endswith(("]", ")")) and not type_.startswith("DECIMAL"):  # lists, records and maps
        return f"CAST(unnest(from_json(${position}, '[\"JSON\"]')) AS {type_})"
    if type_.startswith(("DECIMAL", "INTERVAL", "TIMESTAMP", "DOUBLE", "FLOAT")):
        return f"CAST(unnest(from_json(${position}, '[\"VARCHAR\"]')) AS {type_})"
    return f"unnest(from_json(${position}, '[\"{type_}\"]'))"


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
