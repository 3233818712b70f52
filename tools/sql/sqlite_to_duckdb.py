"""SQLite's functions of dates and times, and its TOTAL, in DuckDB's terms, as far as sqlglot's transpiler leaves them out.

Translates SQLite's SQL to DuckDB's dialect so that it returns the same rows, with one rule for each difference that
sqlglot's transpiler leaves out.

Six differences were measured on the 972 executable gold queries of Spider dev: dialect syntax, double-quoted strings,
columns outside GROUP BY, text compared with numbers, LIKE's case, and integer division. DuckDB is not queried here: types
come from the schema.

Shows DuckDB's SQL as it would have been written for SQLite, without what only DuckDB needs.

It is for reading, not for running: `sqlite_to_duckdb` gives back what is left out here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.schema import Schema
from tools.sql.casts import cast_arguments, cast_comparisons
from tools.sql.periods import dates_of_periods, periods_in_order
from tools.sql.quoted_names import named_columns
from tools.sql.scope import enclosing, kind_of, owner, parse_or_nothing, parse_quietly, projections, sources


def moments(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Rewrites DATETIME, TIME, JULIANDAY, TOTAL and 'now'. What is no moment becomes NULL, as in SQLite.

    Raises ValueError for modifiers such as '+1 day', which have no counterpart.

    >>> from tools.sql.sqlite_to_duckdb import sqlite_to_duckdb
    >>> schema = Schema((), "duckdb")
    >>> sqlite_to_duckdb("SELECT JULIANDAY(ended) - JULIANDAY(begun), TIME(begun) FROM visit", schema)
    'SELECT JULIAN(TRY_CAST(ended AS TIMESTAMP)) - JULIAN(TRY_CAST(begun AS TIMESTAMP)), TRY_CAST(begun AS TIME) FROM visit'
    >>> sqlite_to_duckdb("SELECT STRFTIME('%Y', 'now'), DATE()", schema)
    "SELECT STRFTIME(CAST(CURRENT_TIMESTAMP AS TIMESTAMP), '%Y'), CURRENT_DATE"
    """
    for node in list(tree.find_all(exp.Anonymous)):
        if rewrite := _FUNCTIONS.get(node.name.upper()):
            node.replace(rewrite(node.expressions))
    for date in list(tree.find_all(exp.Date)):
        if date.this is None or _is_now(date.this):
            date.replace(exp.CurrentDate())
    for moment in list(tree.find_all(exp.TsOrDsToTimestamp)):
        if _is_now(moment.this):
            moment.set("this", exp.CurrentTimestamp())
    return tree


def _is_now(node: exp.Expr) -> bool:
    return node.is_string and node.name.lower() == "now"


def _moment(kind: str, arguments: Sequence[exp.Expr]) -> exp.Expr:
    if len(arguments) > 1:
        raise ValueError(f"modifiers of dates have no counterpart in DuckDB: {arguments[1].sql()}")
    if not arguments or _is_now(arguments[0]):
        return exp.cast(exp.CurrentTimestamp(), kind)
    return exp.TryCast(this=arguments[0].copy(), to=exp.DataType.build(kind))


def _total(arguments: Sequence[exp.Expr]) -> exp.Expr:
    return exp.Coalesce(this=exp.Sum(this=arguments[0].copy()), expressions=[exp.Literal.number("0.0")])


_FUNCTIONS: Mapping[str, Callable[[Sequence[exp.Expr]], exp.Expr]] = {
    "DATE": lambda arguments: _moment("DATE", arguments),
    "DATETIME": lambda arguments: _moment("TIMESTAMP", arguments),
    "TIME": lambda arguments: _moment("TIME", arguments),
    "JULIANDAY": lambda arguments: exp.Anonymous(this="JULIAN", expressions=[_moment("TIMESTAMP", arguments)]),
    "TOTAL": _total,
}


Rule = Callable[[exp.Expr, Schema], exp.Expr]


def sqlite_to_duckdb(sql: str, schema: Schema, *, exactly: bool = True) -> str:
    """The query in DuckDB's SQL. `schema` is that of the DuckDB database: its column types determine the casts.

    exactly: also where SQLite's answer is the less useful one. Otherwise integers are divided to fractions, and NULLs are
    sorted last, as DuckDB does. Raises ValueError if the text is not one SQLite query.

    Three rules act on this query:

    >>> from tools.schema import Column, Schema, Table
    >>> singer = Table("singer", (Column("name", "VARCHAR"), Column("age", "INTEGER")))
    >>> schema = Schema((singer,), "duckdb")
    >>> sqlite_to_duckdb('SELECT name, max(age) FROM singer WHERE name LIKE "a%"', schema)
    "SELECT ARG_MAX(name, age), MAX(age) FROM singer WHERE name ILIKE 'a%'"
    """
    try:
        statements = parse_quietly(sql, "sqlite")
        if len(statements) != 1 or not isinstance(statements[0], exp.Query):
            raise ValueError(f"not one SQLite query: {sql[:80]}")
        tree: exp.Expr = statements[0]
        for rule in RULES if exactly else USEFUL_RULES:
            tree = rule(tree, schema)
        return tree.sql("duckdb")
    except SqlglotError as error:
        raise ValueError(f"not a SQLite query: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ValueError(f"not a SQLite query: nested too deeply: {sql[:80]}") from error
    except (AttributeError, TypeError, KeyError, IndexError, AssertionError) as error:  # sqlglot's writer gave up
        raise ValueError(f"cannot be written in DuckDB's dialect: {sql[:80]}") from error


def quoted_strings(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Rewrites `"France"` as a string, which it is in SQLite if nothing in scope has that name.

    No column is called France:

    >>> from tools.schema import Column, Schema, Table
    >>> singer = Table("singer", (Column("country", "VARCHAR"),))
    >>> schema = Schema((singer,), "duckdb")
    >>> sqlite_to_duckdb('SELECT COUNT(*) FROM singer WHERE country = "France"', schema)
    "SELECT COUNT(*) FROM singer WHERE country = 'France'"
    """
    for column in list(tree.find_all(exp.Column)):
        if column.this.args.get("quoted") and not column.table and not _is_name(column, schema):
            column.replace(exp.Literal.string(column.name))
    return tree


def _is_name(column: exp.Column, schema: Schema) -> bool:
    if owner(column, schema) is not None:
        return True
    visible = [entry for select in enclosing(column) for entry in sources(select, schema)]
    if any(not source.known for source in visible):
        return True  # a table that the schema does not know may have this column
    aliases = {item.alias.casefold() for select in enclosing(column) for item in select.expressions}
    operation = column.find_ancestor(exp.SetOperation)
    outputs = projections(operation, schema) if operation is not None else {}
    return column.name.casefold() in aliases | set(outputs)


def case_insensitive_like(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Rewrites LIKE as ILIKE, because SQLite's LIKE ignores the case of ASCII letters.

    Both queries find Ada:

    >>> from tools.schema import Column, Schema, Table
    >>> singer = Table("singer", (Column("name", "VARCHAR"),))
    >>> schema = Schema((singer,), "duckdb")
    >>> sqlite_to_duckdb("SELECT name FROM singer WHERE name LIKE 'a%'", schema)
    "SELECT name FROM singer WHERE name ILIKE 'a%'"
    """
    for like in list(tree.find_all(exp.Like)):
        like.replace(exp.ILike(**like.args))
    return tree


def loose_group_by(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Aggregates a column outside GROUP BY: from the row of the only max() or min(), as SQLite documents, else from any row.

    Next to a maximum, the name is that row's; next to a count it is any row's:

    >>> from tools.schema import Column, Schema, Table
    >>> singer = Table("singer", (Column("name", "VARCHAR"), Column("country", "VARCHAR"), Column("age", "INTEGER")))
    >>> schema = Schema((singer,), "duckdb")
    >>> sqlite_to_duckdb("SELECT name, country, MAX(age) FROM singer GROUP BY country", schema)
    'SELECT ARG_MAX(name, age), country, MAX(age) FROM singer GROUP BY country'
    >>> sqlite_to_duckdb("SELECT name, COUNT(*) FROM singer GROUP BY country", schema)
    'SELECT ANY_VALUE(name), COUNT(*) FROM singer GROUP BY country'
    """
    for select in list(tree.find_all(exp.Select)):
        aggregates = list(_aggregates(select))
        if aggregates or select.args.get("group"):
            _expand_stars(select, schema)
            for column in list(_bare_columns(select, schema)):
                _wrap(column, aggregates)
    return tree


def _regions(select: exp.Select) -> list[exp.Expr]:
    """The parts of a query that are evaluated once per group."""
    parts = [*select.expressions, select.args.get("having"), select.args.get("order")]
    return [part for part in parts if part is not None]


def _aggregates(select: exp.Select) -> Iterator[exp.Expr]:
    for region in _regions(select):
        for node in region.walk(prune=lambda node: isinstance(node, exp.AggFunc | exp.Query | exp.Window)):
            if isinstance(node, exp.AggFunc):
                yield node


def _expand_stars(select: exp.Select, schema: Schema) -> None:
    expanded: list[exp.Expr] = []
    for item in select.expressions:
        if not item.is_star:
            expanded.append(item)
            continue
        wanted = item.args["table"].name.casefold() if isinstance(item, exp.Column) else None
        for source in sources(select, schema):
            if wanted in (None, source.alias.casefold()):
                names = [column.name for column in source.table.columns] if source.table else list(source.columns)
                expanded += [exp.column(name, source.alias, quoted=not name.isidentifier()) for name in names]
    select.set("expressions", expanded)


def _bare_columns(select: exp.Select, schema: Schema) -> Iterator[exp.Column]:
    keys = {_identity(key, schema) for key in _group_keys(select)}
    aliases = {item.alias.casefold() for item in select.expressions if item.alias}

    def settled(node: exp.Expr) -> bool:
        return isinstance(node, exp.AggFunc | exp.Filter | exp.Query | exp.Window) or _identity(node, schema) in keys

    for region in _regions(select):
        for node in region.walk(prune=settled):
            if isinstance(node, exp.Column) and not settled(node) and not _is_alias(node, region, aliases):
                yield node


def _is_alias(column: exp.Column, region: exp.Expr, aliases: set[str]) -> bool:
    in_clause = isinstance(region, exp.Order | exp.Having)
    return in_clause and not column.table and column.name.casefold() in aliases


def _group_keys(select: exp.Select) -> Iterator[exp.Expr]:
    group = select.args.get("group")
    by_alias = {item.alias.casefold(): item.this for item in select.expressions if item.alias}
    for key in group.expressions if group else []:
        yield key
        if key.is_int and 1 <= int(key.name) <= len(select.expressions):
            yield select.expressions[int(key.name) - 1].unalias()
        elif isinstance(key, exp.Column) and not key.table and key.name.casefold() in by_alias:
            yield by_alias[key.name.casefold()]


def _identity(node: exp.Expr, schema: Schema) -> str:
    """One text for all ways to write the same column or expression."""
    if not isinstance(node, exp.Column):
        return node.sql().casefold()
    source = owner(node, schema)
    return f"{source.alias if source else node.table}.{node.name}".casefold()


def _wrap(column: exp.Column, aggregates: list[exp.Expr]) -> None:
    one = aggregates[0] if len({node.sql() for node in aggregates}) == 1 else None
    if isinstance(one, exp.Max | exp.Min):
        choose = exp.ArgMax if isinstance(one, exp.Max) else exp.ArgMin
        chosen: exp.Expr = choose(this=column.copy(), expression=one.this.copy())
    else:
        chosen = exp.AnyValue(this=column.copy())
    select = column.parent
    outputs_name = isinstance(select, exp.Select) and select.find_ancestor(exp.Query) is not None
    column.replace(exp.alias_(chosen, column.name, quoted=column.this.quoted) if outputs_name else chosen)


def division(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Divides as SQLite does: integers give an integer, and division by zero gives NULL.

    Only the divisor that may be zero is guarded:

    >>> from tools.schema import Column, Schema, Table
    >>> team = Table("team", (Column("won", "INTEGER"), Column("played", "INTEGER")))
    >>> schema = Schema((team,), "duckdb")
    >>> sqlite_to_duckdb("SELECT won / played, won / 2, won / 2.0 FROM team", schema)
    'SELECT won // NULLIF(played, 0), won // 2, won / 2.0 FROM team'
    """
    for node in list(tree.find_all(exp.Div)):
        left, right = node.this, node.expression
        never_zero = right.is_number and float(right.name) != 0
        if kind_of(left, schema) == kind_of(right, schema) == "integer":
            divisor = right if never_zero else exp.Nullif(this=right.copy(), expression=exp.Literal.number(0))
            node.replace(exp.IntDiv(this=left.copy(), expression=divisor.copy()))
        elif never_zero:
            node.set("safe", False)
    return tree


def null_order(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Sorts NULLs first, as SQLite does, and omits that where there can be none.

    An age may be missing, a primary key cannot:

    >>> from tools.schema import Column, Schema, Table
    >>> singer = Table("singer", (Column("id", "INTEGER", primary_key=True), Column("age", "INTEGER")))
    >>> schema = Schema((singer,), "duckdb")
    >>> sqlite_to_duckdb("SELECT id FROM singer ORDER BY age, id", schema)
    'SELECT id FROM singer ORDER BY age NULLS FIRST, id'
    """
    for ordered in tree.find_all(exp.Ordered):
        key = ordered.this
        source = owner(key, schema) if isinstance(key, exp.Column) else None
        column = source.table.column(key.name) if source and source.table else None
        if isinstance(key, exp.Count) or (column is not None and (column.primary_key or not column.nullable)):
            ordered.set("nulls_first", False)
    return tree


def fractions(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Divides integers to fractions. Division by zero gives NULL all the same.

    >>> from tools.schema import Column, Schema, Table
    >>> schema = Schema((Table("team", (Column("won", "INTEGER"), Column("played", "INTEGER"))),), "duckdb")
    >>> sqlite_to_duckdb("SELECT won / played, won / 2 FROM team", schema, exactly=False)
    'SELECT won / NULLIF(played, 0), won / 2 FROM team'
    """
    for node in tree.find_all(exp.Div):
        node.set("typed", False)
        if node.expression.is_number and float(node.expression.name) != 0:
            node.set("safe", False)
    return tree


def nulls_last(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Leaves NULLs where DuckDB sorts them: last, so that the smallest value is no missing one.

    >>> schema = Schema((), "duckdb")
    >>> sqlite_to_duckdb("SELECT id FROM singer ORDER BY age LIMIT 1", schema, exactly=False)
    'SELECT id FROM singer ORDER BY age LIMIT 1'
    """
    for ordered in tree.find_all(exp.Ordered):
        ordered.set("nulls_first", False)
    return tree


# The order matters: strings must be known before kinds are determined, and kinds before columns are wrapped.
RULES: tuple[Rule, ...] = (
    moments,
    quoted_strings,
    cast_comparisons,
    cast_arguments,
    division,
    case_insensitive_like,
    null_order,
    loose_group_by,
)

_USEFUL: dict[Rule, Rule] = {division: fractions, null_order: nulls_last}
USEFUL_RULES: tuple[Rule, ...] = (
    named_columns,
    dates_of_periods,
    periods_in_order,
    *(_USEFUL.get(rule, rule) for rule in RULES),
)


def in_sqlite(sql: str, schema: Schema) -> str:
    """The query for SQLite itself, with the columns that its names in quotes mean, and with periods in order; as it is where it
    cannot be read or nothing changes."""
    trees = parse_or_nothing(sql, "sqlite")
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        return sql
    tree: exp.Expr = trees[0]
    before = tree.sql("sqlite")
    for rule in (named_columns, dates_of_periods, periods_in_order):
        tree = rule(tree, schema)
    after = tree.sql("sqlite")
    return sql if after == before else after


def duckdb_to_sqlite(sql: str) -> str:
    """The query in SQLite's SQL; as it is where it cannot be read.

    Columns stand bare beside aggregates, LIKE ignores case, and texts are compared with numbers without casts:

    >>> duckdb_to_sqlite("SELECT ANY_VALUE(name), COUNT(*) FROM singer WHERE name ILIKE 'a%' GROUP BY country")
    "SELECT name, COUNT(*) FROM singer WHERE name LIKE 'a%' GROUP BY country"
    >>> duckdb_to_sqlite("SELECT name FROM singer WHERE TRY_CAST(age AS DOUBLE) > 30 ORDER BY age NULLS FIRST")
    'SELECT name FROM singer WHERE age > 30 ORDER BY age'
    """
    trees = parse_or_nothing(sql, "duckdb")
    if len(trees) != 1:
        return sql
    try:
        for node in reversed(list(trees[0].bfs())):  # the innermost first
            node.replace(_simpler(node))
        return trees[0].sql("sqlite")
    except Exception:  # whatever sqlglot's writer may raise
        return sql


def _simpler(node: exp.Expr) -> exp.Expr:
    inner: exp.Expr = node.this
    if isinstance(node, exp.Alias) and inner.sql() == node.alias:
        return inner  # the name that ANY_VALUE was given
    if isinstance(node, exp.AnyValue | exp.ArgMax | exp.ArgMin | exp.TryCast | exp.IgnoreNulls):
        return inner
    if isinstance(node, exp.ILike):
        return exp.Like(**node.args)
    if isinstance(node, exp.IntDiv | exp.Div):
        return exp.Div(this=node.this, expression=node.expression, typed=True, safe=True)
    if isinstance(node, exp.Anonymous) and node.name.upper() == "JULIAN":
        return exp.Anonymous(this="JULIANDAY", expressions=node.expressions)
    if isinstance(node, exp.Ordered):
        node.set("nulls_first", not node.args.get("desc"))  # SQLite's own order, which is not written
    return node
