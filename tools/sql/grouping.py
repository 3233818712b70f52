"""What SQLite lets a query say of its groups and its names for them, and stricter engines do not: columns outside GROUP BY, and
names of the SELECT list in other clauses.
"""

from collections.abc import Iterator

from sqlglot import exp, parse_one

from tools.schema import Schema
from tools.sql.scope import kind_of, owner, sources

_SMALLEST = ("text", "integer", "real", "time")  # kinds of which every engine knows the smallest value


def loose_group_by(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Aggregates a column outside GROUP BY: from the row of the only max() or min(), as SQLite documents, else from any row.

    Next to a maximum, the name is that row's; next to a count it is any row's:

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> from tools.schema import Column, Schema, Table
    >>> columns = (Column("name", "VARCHAR"), Column("country", "VARCHAR"), Column("age", "INTEGER"))
    >>> schema = Schema((Table("singer", columns),), "duckdb")
    >>> from_sqlite("SELECT name, country, MAX(age) FROM singer GROUP BY country", schema)
    'SELECT ARG_MAX(name, age), country, MAX(age) FROM singer GROUP BY country'
    >>> from_sqlite("SELECT name, COUNT(*) FROM singer GROUP BY country", schema)
    'SELECT ANY_VALUE(name), COUNT(*) FROM singer GROUP BY country'

    Where ANY_VALUE is not known everywhere, the smallest value is one of them:

    >>> from_sqlite("SELECT name, COUNT(*) FROM singer GROUP BY country", Schema(schema.tables, "postgres"))
    'SELECT MIN(name) AS name, COUNT(*) FROM singer GROUP BY country'
    """
    for select in list(tree.find_all(exp.Select)):
        aggregates = list(_aggregates(select))
        if aggregates or select.args.get("group"):
            _expand_stars(select, schema)
            for column in list(_bare_columns(select, schema)):
                _wrap(column, aggregates, schema)
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
    whole = _whole_rows(select, keys, schema)
    aliases = {item.alias.casefold() for item in select.expressions if item.alias}

    def settled(node: exp.Expr) -> bool:
        return isinstance(node, exp.AggFunc | exp.Filter | exp.Query | exp.Window) or _identity(node, schema) in keys

    for region in _regions(select):
        for node in region.walk(prune=settled):
            if isinstance(node, exp.Column) and not settled(node) and not _is_alias(node, region, aliases):
                source = owner(node, schema) if whole else None
                if source is None or source.alias.casefold() not in whole:
                    yield node


def _whole_rows(select: exp.Select, keys: set[str], schema: Schema) -> set[str]:
    """The sources of which a group has one row: it is grouped by their primary keys, which servers know."""
    if schema.dialect not in ("postgres", "mysql"):
        return set()
    found = set()
    for source in sources(select, schema):
        primary = [column.name for column in source.table.columns if column.primary_key] if source.table else []
        if primary and all(f"{source.alias}.{name}".casefold() in keys for name in primary):
            found.add(source.alias.casefold())
    return found


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


def _wrap(column: exp.Column, aggregates: list[exp.Expr], schema: Schema) -> None:
    one = aggregates[0] if len({node.sql() for node in aggregates}) == 1 else None
    chosen = _beside(column, one, schema) if isinstance(one, exp.Max | exp.Min) else _any(column, schema)
    select = column.parent
    is_shown = isinstance(select, exp.Select) and any(item is column for item in select.expressions)
    is_inner = select is not None and select.find_ancestor(exp.Query) is not None
    is_named = is_shown and (schema.dialect != "duckdb" or is_inner)
    column.replace(exp.alias_(chosen, column.name, quoted=column.this.quoted) if is_named else chosen)


def _any(column: exp.Column, schema: Schema) -> exp.Expr:
    """The value of any row of a group."""
    if schema.dialect not in ("postgres", "mysql"):
        return exp.AnyValue(this=column.copy())
    if schema.dialect == "mysql" or kind_of(column, schema) in _SMALLEST:
        return exp.Min(this=column.copy())
    return parse_one(f"(ARRAY_AGG({column.sql('postgres')}))[1]", dialect="postgres")


def _beside(column: exp.Column, extreme: exp.Expr, schema: Schema) -> exp.Expr:
    """The value of the row that has the largest value, or the smallest."""
    is_largest = isinstance(extreme, exp.Max)
    if schema.dialect not in ("postgres", "mysql", "tsql"):
        choose = exp.ArgMax if is_largest else exp.ArgMin
        return choose(this=column.copy(), expression=extreme.this.copy())
    if schema.dialect == "tsql":
        return _any(column, schema)
    value, key = column.sql(schema.dialect), extreme.this.sql(schema.dialect)
    order = f"{value} ORDER BY {key} {'DESC' if is_largest else 'ASC'}"
    if schema.dialect == "postgres":
        return parse_one(f"(ARRAY_AGG({order} NULLS LAST))[1]", dialect="postgres")
    listed = parse_one(f"SUBSTRING_INDEX(GROUP_CONCAT({order} SEPARATOR '\n'), '\n', 1)", dialect="mysql")
    kind = {"integer": "SIGNED", "real": "DOUBLE", "time": "DATETIME"}.get(kind_of(column, schema) or "")
    return exp.cast(listed, exp.DataType.build(kind, dialect="mysql")) if kind else listed


def names_of_outputs(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Writes out the names of the SELECT list in WHERE, HAVING and inside sort keys, where only SQLite and DuckDB know them.

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> from tools.schema import Column, Schema, Table
    >>> team = Table("team", (Column("won", "INTEGER"),))
    >>> from_sqlite("SELECT won, COUNT(*) AS n FROM team GROUP BY won HAVING n > 1 ORDER BY n", Schema((team,), "postgres"))
    'SELECT won, COUNT(*) AS n FROM team GROUP BY won HAVING COUNT(*) > 1 ORDER BY n NULLS FIRST'
    """
    for select in list(tree.find_all(exp.Select)):
        named = {item.alias.casefold(): item.this for item in select.expressions if isinstance(item, exp.Alias)}
        for clause in ("where", "having", "order", *(() if schema.dialect in ("postgres", "mysql") else ("group",))):
            part = select.args.get(clause)
            for column in list(part.find_all(exp.Column)) if part is not None and named else ():
                meant = named.get(column.name.casefold())
                is_own = column.parent_select is select and not column.table
                if meant is None or not is_own or isinstance(column.parent, exp.Ordered):
                    continue
                if owner(column, schema) is None:
                    column.replace(exp.paren(meant.copy()) if isinstance(meant, exp.Binary) else meant.copy())
    return tree


def derived_tables(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Names every query in FROM, which many engines ask for, and lets MySQL's IN read a query with a LIMIT.

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> from_sqlite("SELECT COUNT(*) FROM (SELECT 1)", Schema((), "postgres"))
    'SELECT COUNT(*) FROM (SELECT 1) AS derived_1'
    """
    for membership in list(tree.find_all(exp.In)) if schema.dialect == "mysql" else ():
        query = membership.args.get("query")
        if isinstance(query, exp.Subquery) and query.this.args.get("limit") is not None:
            inner = exp.Subquery(this=query.this.copy())
            query.set("this", exp.select("*").from_(inner))
    nameless = [
        node
        for node in tree.find_all(exp.Subquery)
        if isinstance(node.parent, exp.From | exp.Join) and not node.alias and isinstance(node.this, exp.Query)
    ]
    for number, node in enumerate(nameless, 1):
        node.set("alias", exp.TableAlias(this=exp.to_identifier(f"derived_{number}")))
    return tree
