"""Joins to a query the one table that a column needs, along the only foreign-key path to it."""

from collections.abc import Sequence

from sqlglot import exp

from tools.schema import Schema
from tools.sql.join_graph import Edge, edges, shortest_paths
from tools.sql.scope import FromItem, sources

LONGEST_PATH = 2  # joins


def add_join(select: exp.Select, owners: Sequence[str], schema: Schema) -> str | None:
    """Join the one table of `owners` that exactly one shortest path reaches, and return its name; otherwise change nothing.

    Of several owners, the nearest counts. Columns without a qualifier get one, because the new table may have columns of
    the same name.

    One key leads from songs to singers:

    >>> from sqlglot import parse_one
    >>> from tools.schema import Column, ForeignKey, Schema, Table
    >>> singer = Table("singer", (Column("id", "INTEGER"), Column("name", "TEXT")))
    >>> key = ForeignKey(("singer_id",), "singer", ("id",))
    >>> song = Table("song", (Column("title", "TEXT"), Column("singer_id", "INTEGER")), (key,))
    >>> select = parse_one("SELECT title FROM song")
    >>> add_join(select, ["singer"], Schema((singer, song), "sqlite")), select.sql()
    ('singer', 'SELECT song.title FROM song JOIN singer ON song.singer_id = singer.id')
    """
    present = sources(select, schema)
    tables = [source.table.name for source in present if source.table]
    if len(set(tables)) != len(present) or _has_commas(select):
        return None  # a sub-query, or the same table twice: it is not clear what to join to
    found = [path for owner in owners for path in shortest_paths(edges(schema), tables, owner)]
    nearest = min((len(path) for path in found), default=0)
    paths = [path for path in found if len(path) == nearest]
    if not 0 < nearest <= LONGEST_PATH or len(paths) != 1:
        return None
    _qualify_all(select, present)
    return _join_along(select, paths[0], present)


def _has_commas(select: exp.Select) -> bool:
    joins = select.args.get("joins") or []
    return any(not (join.args.get("on") or join.args.get("using") or join.kind or join.method) for join in joins)


def _qualify_all(select: exp.Select, present: Sequence[FromItem]) -> None:
    for column in select.find_all(exp.Column):
        if not column.table and column.parent_select is select:
            owners = [source.alias for source in present if column.name.casefold() in source.columns]
            if len(owners) == 1:
                column.set("table", exp.to_identifier(owners[0]))
    stars = [exp.Column(this=exp.Star(), table=exp.to_identifier(source.alias)) for source in present]
    items = [part for item in select.expressions for part in (stars if isinstance(item, exp.Star) else [item])]
    select.set("expressions", items)


def _join_along(select: exp.Select, path: Sequence[Edge], present: Sequence[FromItem]) -> str:
    called = {source.table.name: source.alias for source in present if source.table}
    new = ""
    for edge in path:
        new = next(name for name in (edge.table, edge.ref_table) if name not in called)
        called[new] = new
        pairs = zip(edge.columns, edge.ref_columns, strict=True)
        condition = exp.and_(
            *(_name(left, called[edge.table]).eq(_name(right, called[edge.ref_table])) for left, right in pairs)
        )
        table = exp.Table(this=exp.to_identifier(new))
        select.append("joins", exp.Join(this=table, on=condition))
    return new


def _name(column: str, table: str) -> exp.Column:
    return exp.Column(this=exp.to_identifier(column), table=exp.to_identifier(table))
