"""Whether every `alias.name` of a statement is a column of what the alias stands for.

PostgreSQL reads `(expression).name` and `alias.name` as a call of the function `name` if no column has that name: `x.ts_stat`
runs a SELECT given as text. No list of functions sees such a call. So a qualified name must be a known column of the source
that the engine takes the alias for, and no name at all may follow a parenthesis, a subscript or a call.

Sources are resolved as PostgreSQL does: query by query from the inside. WITH does not see the FROM of its own query, a subquery
in FROM sees nothing of that FROM without LATERAL, and ON sees the tables of its own join alone. What cannot be resolved is
refused. DuckDB, SQLite and MySQL call no function by attribute (`tests/tools/guard/test_names.py` asks them), so unknown
columns are left to them, since their messages name candidates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from sqlglot import exp

from tools.guard.allowed import in_schema, refused, unknown_table, written_name
from tools.result import QueryError
from tools.schema import Schema

_CALL_BY_PARENTHESES = ("duckdb", "sqlite", "mysql")
_LIKE_POSTGRES = ("postgres", "redshift", "materialize", "risingwave", "")
_LONGEST_NAME = 63  # bytes; PostgreSQL cuts a name there, so that two names may be one to it
_QUERIES = (exp.Select, exp.SetOperation, exp.Values)
_ROWS = dict.fromkeys(("json_each", "json_each_text", "jsonb_each", "jsonb_each_text"), ("key", "value"))
"""The columns of functions in FROM that have not one column, which is called like their alias."""
_PLAIN_TYPES = (
    exp.DType.ARRAY, *exp.DataType.TEXT_TYPES, *exp.DataType.NUMERIC_TYPES, *exp.DataType.TEMPORAL_TYPES, exp.DType.BOOLEAN,
)  # fmt: skip

_Columns = tuple[str, ...] | None  # None: any may be there
_Level = Mapping[str, _Columns]


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a query can name: sources by alias, the innermost query's first, and what WITH named."""

    levels: tuple[_Level, ...] = ()
    named: _Level = field(default_factory=dict)

    def within(self, level: _Level) -> "_Scope":
        return _Scope((level, *self.levels), self.named)


def unresolved(root: exp.Expr, text: str, dialect: str, schema: Schema | None) -> Iterator[QueryError]:
    """What is wrong with the qualified names of the statement `text`, whose tree is `root`; with a place in `text`."""
    if dialect in _CALL_BY_PARENTHESES:
        yield from _calls_by_schema(root, dialect)
        return
    reader = _Names(text, dialect, schema)
    reader.query(root, _Scope())
    if reader.found and reader.absent:
        yield unknown_table(reader.absent[0], schema)
    yield from reader.found
    for node in root.walk():
        if isinstance(node, exp.Dot) and dialect in _LIKE_POSTGRES and not _names_a_builtin(node):
            yield refused(
                f"{node.expression.name or '*'} after a dot would be a function; name columns as table.column"
            )
        if isinstance(node, exp.Column) and node.table and id(node) not in reader.looked_at:
            yield refused(f"it is not certain what {node.table}.{node.name} means here", node.name)
        if isinstance(node, exp.Identifier) and len(node.name.encode()) > _LONGEST_NAME and dialect in _LIKE_POSTGRES:
            yield refused(f"the name {node.name[:20]}... is longer than {_LONGEST_NAME} bytes")


def _calls_by_schema(root: exp.Expr, dialect: str) -> Iterator[QueryError]:
    """`shop.lower(x)` is a function of the database's own on MySQL. On DuckDB it is the method of a column as well."""
    for dot in root.find_all(exp.Dot) if dialect == "mysql" else ():
        if isinstance(dot.expression, exp.Func):
            yield refused("a function after a dot would be the database's own; call it by its name alone")


def _names_a_builtin(dot: exp.Dot) -> bool:
    """`pg_catalog.lower(x)`. The function itself is judged like any other."""
    return (
        isinstance(dot.expression, exp.Func) and isinstance(dot.this, exp.Identifier) and dot.this.name == "pg_catalog"
    )


class _Names:
    """Reads a statement's tree, query by query; `found` is what does not resolve."""

    def __init__(self, text: str, dialect: str, schema: Schema | None) -> None:
        self._text, self._dialect, self._schema = text, dialect, schema
        self.found: list[QueryError] = []
        self.absent: list[exp.Table] = []
        self.looked_at: set[int] = set()

    def query(self, query: exp.Expr, outer: _Scope) -> _Columns:
        """The names of its columns, "" where one has none that is certain."""
        scope = self._with(query, outer)
        if isinstance(query, exp.Select):
            level = self._from(query, scope)
            self._look_at_parts(query, scope.within(level), {"with_", "from_", "joins", "laterals"})
            return self._outputs(query, level)
        if isinstance(query, exp.Values):
            self._look_at_parts(query, scope, {"with_", "alias", "joins"})
            return tuple(f"column{place + 1}" for place in range(len(query.expressions[0].expressions)))
        if not isinstance(query, exp.SetOperation | exp.Subquery):
            self.found.append(refused("tables stand where a query should"))
            return ()
        # what stands behind a parenthesis or a UNION, ORDER BY above all, may be part of the query before it
        self._look_at_parts(query, _Scope((), scope.named), {"with_", "this", "expression", "alias"})
        sides = [self.query(side, scope) for side in (query.this, query.args.get("expression")) if side]
        return sides[0]

    def _with(self, query: exp.Expr, outer: _Scope) -> _Scope:
        with_ = query.args.get("with_")
        if not with_:
            return outer
        named = dict(outer.named)
        if with_.args.get("recursive"):  # a later one may be named before it is there
            named |= {self._folded(cte.args["alias"].this): () for cte in with_.expressions}
        for cte in with_.expressions:
            alias, first = cte.args["alias"], cte.this
            while isinstance(first, exp.SetOperation | exp.Subquery):
                first = first.this
            if with_.args.get("recursive") and isinstance(first, exp.Select):
                unchecked = _Names(self._text, self._dialect, self._schema)
                named[self._folded(alias.this)] = self._renamed(
                    unchecked.query(first, _Scope(outer.levels, named)), alias
                )
            columns = self.query(cte.this, _Scope(outer.levels, dict(named)))
            named[self._folded(alias.this)] = self._renamed(columns, alias)
        return _Scope(outer.levels, named)

    def _from(self, select: exp.Expr, scope: _Scope) -> _Level:
        from_ = select.args.get("from_")
        level = self._source(from_.this, scope, {}) if from_ else {}
        level = self._joined(level, select.args.get("joins") or (), scope, {})
        for lateral in select.args.get("laterals") or ():
            level |= self._source(lateral, scope, level)
        return level

    def _joined(self, first: _Level, joins: Sequence[exp.Expr], scope: _Scope, before: _Level) -> dict[str, _Columns]:
        """What the joined sources are called; `before`: what stood before them in FROM, which LATERAL sees."""
        level, group = dict(first), dict(first)
        for join in joins:
            if all(name == "this" or not value for name, value in join.args.items()):  # a comma
                group = {}
            source = self._source(join.this, scope, {**before, **level})
            level, group = level | source, group | source
            self._look_at_parts(join, scope.within(group), {"this"})
        return level

    def _source(self, source: exp.Expr, scope: _Scope, before: _Level) -> dict[str, _Columns]:
        """What stands in FROM, with what is joined to it before anything else: the columns by alias."""
        inner = source.this if isinstance(source, exp.Lateral) else source
        scope_inside = scope.within(before) if isinstance(source, exp.Lateral) else scope
        if _is_query(inner):
            level = self._called(source, inner, self.query(_bare(inner), scope_inside))
        elif isinstance(inner, exp.Subquery):
            within = self._source(inner.this, scope, before)
            level = self._called(source, inner, _all_of(within)) if source.args.get("alias") else within
        elif isinstance(inner, exp.Table) and isinstance(inner.this, exp.Identifier):
            level = self._called(source, inner, self._columns_of(inner, scope))
        else:
            call = inner.this if isinstance(inner, exp.Table) else inner
            level = self._called(source, call, self._columns_of_call(source, call))
            self._look_at_parts(call, scope.within(before), {"alias", "joins"})
        self._look_at_parts(
            source, scope.within({**before, **level}), {"this", "alias", "joins", "expressions", "with_"}
        )
        if source.args.get("pivots"):
            level = dict.fromkeys(level, () if self._dialect in _LIKE_POSTGRES else None)
        return self._joined(level, source.args.get("joins") or (), scope, before)

    def _called(self, source: exp.Expr, inner: exp.Expr, columns: _Columns) -> dict[str, _Columns]:
        alias = source.args.get("alias")
        if alias and alias.this:
            return {self._folded(alias.this): self._renamed(columns, alias)}
        if isinstance(inner, exp.Table):
            return {self._folded(inner.this): columns}
        name = written_name(inner, self._text) if isinstance(inner, exp.Func) else ""
        return {name: self._renamed(columns, alias) if alias else columns} if name else {}

    def _columns_of(self, table: exp.Table, scope: _Scope) -> _Columns:
        if not table.db and (name := self._folded(table.this)) in scope.named:
            return scope.named[name]
        if self._schema is None:
            return None
        found = in_schema(self._schema, ".".join(filter(None, (table.catalog, table.db))), table.name, self._dialect)
        if found is None:
            self.absent.append(table)
            return ()
        return tuple(self._folded(exp.to_identifier(column.name, quoted=True)) for column in found.columns)

    def _columns_of_call(self, source: exp.Expr, call: exp.Expr) -> _Columns:
        if self._dialect not in _LIKE_POSTGRES:
            return None
        name = written_name(call, self._text) if isinstance(call, exp.Func) else ""
        name = "unnest" if isinstance(call, exp.Unnest) else name
        alias = source.args.get("alias")
        one = self._folded(alias.this) if alias and alias.this else name
        columns: tuple[str, ...] = _ROWS.get(name, (one,))
        if isinstance(call, exp.Unnest):
            called = "unnest" if len(call.expressions) > 1 else one
            columns = tuple(called if _has_plain_values(array) else "" for array in call.expressions)
        is_numbered = any(each.args.get(name) for each in (source, call) for name in ("ordinality", "offset"))
        return (*columns, "ordinality") if is_numbered else columns

    def _outputs(self, select: exp.Expr, level: _Level) -> _Columns:
        found: list[str] = []
        for output in select.expressions:
            if not output.is_star:
                found.append(self._heading(output))
                continue
            is_plain = isinstance(output, exp.Star | exp.Column) and not any(
                (output.find(exp.Star) or output).args.values()
            )
            alias = self._folded(output.args["table"]) if isinstance(output, exp.Column) else None
            columns = level.get(alias, ()) if alias is not None else _all_of(level)
            if columns is None or (not is_plain and self._dialect not in _LIKE_POSTGRES):
                return None
            found += columns if is_plain else ()
        return tuple(found)

    def _heading(self, output: exp.Expr) -> str:
        """What the engine calls a column that is computed so; "" where that is not certain."""
        alias = output.args.get("alias") if isinstance(output, exp.Alias | exp.Subquery) else None
        if alias is not None:
            return self._folded(alias.this if isinstance(alias, exp.TableAlias) else alias)
        while isinstance(output, exp.Cast | exp.Window | exp.Filter | exp.WithinGroup | exp.Bracket | exp.Paren):
            if isinstance(output, exp.Cast) and not isinstance(output.this, exp.Column):
                return ""
            output = output.this
        if isinstance(output, exp.Column):
            return self._folded(output.this)
        return written_name(output, self._text) if isinstance(output, exp.Func) else ""

    def _renamed(self, columns: _Columns, alias: exp.Expr) -> _Columns:
        names = tuple(
            self._folded(name.this if isinstance(name, exp.ColumnDef) else name)
            for name in alias.args.get("columns") or ()
        )
        return None if columns is None else names + columns[len(names) :]

    def _look_at_parts(self, node: exp.Expr, scope: _Scope, without: set[str]) -> None:
        for name, value in node.args.items():
            for part in value if isinstance(value, list) else [value]:
                if name not in without and isinstance(part, exp.Expr):
                    self._look(part, scope)

    def _look(self, node: exp.Expr, scope: _Scope) -> None:
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if isinstance(node, (*_QUERIES, exp.Subquery)):
                self.query(node, scope)
                continue
            if isinstance(node, exp.Column) and node.table:
                self._look_up(node, scope)
            waiting.extend(node.iter_expressions())

    def _look_up(self, column: exp.Column, scope: _Scope) -> None:
        self.looked_at.add(id(column))
        if isinstance(column.this, exp.Star):
            return
        alias, name = self._folded(column.args["table"]), self._folded(column.this)
        if self._dialect not in _LIKE_POSTGRES and self._is_field(column, scope):
            return
        if column.db:
            columns = self._columns_of_table(column)
        else:
            columns = next((level[alias] for level in scope.levels if alias in level), ())
        if columns is not None and (not name or name not in columns):
            self.found.append(self._unknown(column, columns))

    def _is_field(self, column: exp.Column, scope: _Scope) -> bool:
        """Whether `column.field` or `alias.column.field` may be meant, where no function is called so."""
        first, second = map(self._folded, column.parts[:2])
        sources = [source for level in scope.levels for source in level.items()]
        is_of_alias = any(alias == first and (names is None or second in names) for alias, names in sources)
        return is_of_alias or any(names is None or first in names for _, names in sources)

    def _columns_of_table(self, column: exp.Column) -> _Columns:
        """Of `schema.table.name`: an engine finds no alias under such a name."""
        table = exp.Table(
            this=column.args["table"].copy(), db=column.args["db"].copy(), catalog=column.args.get("catalog")
        )
        return self._columns_of(table, _Scope())

    def _unknown(self, column: exp.Column, columns: tuple[str, ...]) -> QueryError:
        pool = {name.casefold(): name for name in columns if name}
        close = tuple(pool[key] for key in get_close_matches(column.name.casefold(), pool, n=3))
        said = f"{column.table}.{column.name} is no known column"
        error = QueryError("unknown_column", said, column.name, None, close)
        return replace(error, position=column.this.meta.get("start"))

    def _folded(self, identifier: exp.Expr) -> str:
        """The name as the engine compares it."""
        if self._dialect not in _LIKE_POSTGRES:
            return identifier.name.casefold()
        return identifier.name if identifier.args.get("quoted") else identifier.name.lower()


def _is_query(source: exp.Expr) -> bool:
    """Whether this is a query, and no parenthesis around tables that are joined."""
    if not isinstance(source, exp.Subquery):
        return isinstance(source, _QUERIES)
    inner = source.this
    is_joined = isinstance(inner, exp.Subquery) and (inner.args.get("alias") or inner.args.get("joins"))
    return not is_joined and _is_query(inner)


def _has_plain_values(array: exp.Expr) -> bool:
    """Whether it is certain that no rows are among the values of an array: `unnest` makes columns of the parts of a row."""
    if isinstance(array, exp.Cast):
        types = list(array.to.find_all(exp.DataType))
        return array.to.this == exp.DType.ARRAY and all(each.this in _PLAIN_TYPES for each in types)
    plain = (exp.Literal, exp.Null, exp.Boolean, exp.Neg)
    return isinstance(array, exp.Array) and all(
        isinstance(node, plain) for each in array.expressions for node in each.walk()
    )


def _bare(query: exp.Expr) -> exp.Expr:
    """The query without the parenthesis that carries its alias and its joins."""
    return query.this if isinstance(query, exp.Subquery) else query


def _all_of(level: _Level) -> _Columns:
    found: list[str] = []
    for columns in level.values():
        if columns is None:
            return None
        found += columns
    return tuple(found)
