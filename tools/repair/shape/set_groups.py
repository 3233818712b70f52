"""Groups by what a query shows: a name whose rows fall into several groups, and several of whose values fall into one, is any
one of them."""

from collections.abc import Collection, Iterable, Sequence

from sqlglot import exp

from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import FromItem, one_value, owner, sources

Known = set[tuple[str, str]]  # columns whose value a group fixes, as (alias, name) in lower case


def set_groups(sql: str, schema: Schema) -> str | None:
    """The statement grouped by the table whose columns it shows beside aggregates, where its groups fix none of that table's
    columns; None if there is nothing to change.

    >>> from tools.schema import Column, ForeignKey, Table
    >>> store = Table("store", (Column("id", "INTEGER", primary_key=True), Column("name", "TEXT")))
    >>> columns = Column("boss", "INTEGER"), Column("store", "INTEGER")
    >>> clerk = Table("clerk", columns, (ForeignKey(("store",), "store", ("id",)),))
    >>> schema = Schema((store, clerk), "sqlite")
    >>> sql = "SELECT store.name, COUNT(*) FROM clerk JOIN store ON clerk.store = store.id GROUP BY clerk."
    >>> set_groups(sql + "boss", schema)
    'SELECT store.name, COUNT(*) FROM clerk JOIN store ON clerk.store = store.id GROUP BY store.id'
    >>> set_groups(sql + "store", schema)
    """
    trees = parse_or_nothing(sql, schema.dialect)
    changed = [_regrouped(select, schema) for tree in trees[:1] for select in list(tree.find_all(exp.Select))]
    return trees[0].sql(schema.dialect) if any(changed) else None


def _regrouped(select: exp.Select, schema: Schema) -> bool:
    """Whether the query's groups were changed."""
    group: exp.Group = select.args.get("group") or exp.Group()
    keys = group.expressions
    shown = [column for item in select.expressions if isinstance(column := one_value(item), exp.Column)]
    owners = [owner(column, schema) for column in [*keys, *shown] if isinstance(column, exp.Column)]
    if not keys or not shown or len(owners) < len(keys) + len(shown) or None in owners:
        return False
    aliases = [source.alias.casefold() for source in owners if source]
    of = aliases[-1]
    tables = {source.alias.casefold(): source for source in sources(select, schema)}
    if of in aliases[: len(keys)] or {*aliases[len(keys) :]} != {of} or not {*aliases} <= {*tables}:
        return False
    equal = _equal(select, schema)
    known = _fixed({_named(alias, key) for alias, key in zip(aliases, keys, strict=False)}, equal, tables.values())
    if any(alias == of for alias, _ in known):
        return False
    key = _key(tables[of], equal) or shown[-1]
    group.set("expressions", [key.copy()])
    return True


def _named(alias: str, column: exp.Expr) -> tuple[str, str]:
    return alias, column.name.casefold()


def _equal(select: exp.Select, schema: Schema) -> list[tuple[exp.Column, exp.Column, str, str]]:
    """The pairs of columns that joins and conditions make equal, each with the aliases of their tables."""
    conditions: Iterable[exp.Expr] = filter(
        None, [select.args.get("where"), *(join.args.get("on") for join in select.args.get("joins") or [])]
    )
    found = []
    for node in (each for on in conditions for each in on.find_all(exp.EQ)):
        left, right = node.this, node.expression
        if isinstance(left, exp.Column) and isinstance(right, exp.Column):
            first, second = owner(left, schema), owner(right, schema)
            if first and second:
                found.append((left, right, first.alias.casefold(), second.alias.casefold()))
    return found


def _fixed(
    known: Known, equal: Sequence[tuple[exp.Column, exp.Column, str, str]], tables: Collection[FromItem]
) -> Known:
    """All columns that are fixed where those in `known` are: those that joins make equal to one, and a row's whose key is."""
    before: Known = set()
    while known != before:
        before = set(known)
        for left, right, first, second in equal:
            pair = {_named(first, left), _named(second, right)}
            known = known | pair if pair & known else known
        for source in tables:
            alias = source.alias.casefold()
            columns = source.table.columns if source.table else ()
            primary = {(alias, column.name.casefold()) for column in columns if column.primary_key}
            if primary and primary <= known:
                known = known | {(alias, column.name.casefold()) for column in columns}
    return known


def _key(source: FromItem, equal: Sequence[tuple[exp.Column, exp.Column, str, str]]) -> exp.Expr | None:
    """What tells the rows of a table apart: its primary key, or the column by which it is joined."""
    primary = [column.name for column in source.table.columns if column.primary_key] if source.table else []
    if len(primary) == 1:
        return exp.column(primary[0], source.alias, quoted=not primary[0].isidentifier())
    alias = source.alias.casefold()
    ends = [end for left, right, first, second in equal for end, of in ((left, first), (right, second)) if of == alias]
    return ends[0] if ends else None
