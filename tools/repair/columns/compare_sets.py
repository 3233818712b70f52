"""Compares names of the same things: artists are left out of artists, and not the names of stores."""

from sqlglot import exp

from tools.linking.word_forms import name_words
from tools.repair.add_join import add_join
from tools.schema import ColumnRef, Schema
from tools.sql.joinable_columns import joinable
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import column_ref, sources

_OWN = frozenset({"name", "title", "id", "label", "code"})  # words of columns that say which thing a row is


def compare_sets(sql: str, schema: Schema) -> str | None:
    """The statement in which both sides of EXCEPT or INTERSECT show the first one's column, where the second shows the name of
    something else and its tables lead to the first one's table; None if nothing changes.

    >>> from tools.schema import Column, ForeignKey, Table
    >>> artist, store = (Table(name, (Column("id", "INTEGER"), Column("name", "TEXT"))) for name in ("artist", "store"))
    >>> keys = (ForeignKey(("artist",), "artist", ("id",)), ForeignKey(("store",), "store", ("id",)))
    >>> concert = Table("concert", (Column("artist", "INTEGER"), Column("store", "INTEGER")), keys)
    >>> sql = "SELECT name FROM artist EXCEPT SELECT store.name FROM concert JOIN store ON concert.store = store.id"
    >>> print(compare_sets(sql, Schema((artist, store, concert), "sqlite")))
    SELECT name FROM artist EXCEPT SELECT artist.name FROM concert JOIN store ON concert.store = store.id JOIN artist ON \
concert.artist = artist.id
    """
    trees = parse_or_nothing(sql, schema.dialect)
    both = trees[0] if len(trees) == 1 else None
    if not isinstance(both, exp.Except | exp.Intersect):
        return None
    first, second = both.this, both.expression
    if not (isinstance(first, exp.Select) and isinstance(second, exp.Select)):
        return None
    wanted, shown = _only(first, schema), _only(second, schema)
    if wanted is None or shown is None or not _differ(wanted, shown, schema):
        return None
    alias = _reached(second, wanted[0], schema)
    if alias is None:
        return None
    second.set("expressions", [exp.column(wanted[1], table=alias)])
    return both.sql(schema.dialect)


def _only(select: exp.Select, schema: Schema) -> ColumnRef | None:
    """The one column that a query shows."""
    shown = select.selects[0].unalias() if len(select.selects) == 1 else None
    return column_ref(shown, schema) if isinstance(shown, exp.Column) else None


def _differ(wanted: ColumnRef, shown: ColumnRef, schema: Schema) -> bool:
    """Whether these say which row of two tables one is, and no join may equate them."""
    if wanted[0] == shown[0] or any(_OWN.isdisjoint(name_words(column)) for _, column in (wanted, shown)):
        return False
    pairs = joinable(schema).between(wanted[0].lower(), shown[0].lower())
    return (wanted[1].lower(), shown[1].lower()) not in pairs


def _reached(select: exp.Select, table: str, schema: Schema) -> str | None:
    """What the table is called in FROM, where it is joined if one key leads to it."""
    there = [source.alias for source in sources(select, schema) if source.table and source.table.name == table]
    return there[0] if len(there) == 1 else None if there else add_join(select, [table], schema)
