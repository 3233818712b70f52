"""Columns that do not resolve, and the rules that repair one if only one meaning is possible. They never guess.

`tools.repair.names` repairs whole statements; `add_join` joins the table that a column needs, and `same_words` and
`near_miss` find the existing name that a wrong one means.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from sqlglot import exp

from tools.linking.word_forms import name_words, stem
from tools.schema import Column, Schema
from tools.sql.join_graph import Edge, edges, shortest_paths
from tools.sql.scope import FromItem, Origin, enclosing, sources, type_kind

NEAR_MISS = 0.8
CLEARLY = 0.08
SHORTEST = 4
LONGEST_PATH = 2  # joins
_ROW_NUMBERS = ("rowid", "oid", "_rowid_")


@dataclass(frozen=True, slots=True)
class Defect:
    """A column that does not resolve. `source` is what its qualifier names, if anything; `near` are the sources in scope,
    of which the first `innermost` belong to its own query."""

    column: exp.Column
    select: exp.Select
    source: FromItem | None
    near: tuple[FromItem, ...]
    innermost: int

    @property
    def name(self) -> str:
        return self.column.name.casefold()


def defects(tree: exp.Expr, schema: Schema) -> Iterator[Defect]:
    for column in list(tree.find_all(exp.Column)):
        defect = _defect(column, schema)
        if defect is not None:
            yield defect


def _defect(column: exp.Column, schema: Schema) -> Defect | None:
    selects = list(enclosing(column))
    if not selects or column.is_star or column.args.get("db") or column.name.casefold() in _ROW_NUMBERS:
        return None
    if column.find_ancestor(exp.Lambda, exp.PropertyEQ, exp.Lateral, exp.Unnest, exp.Pivot):
        return None
    levels = [sources(select, schema) for select in selects]
    near = tuple(source for level in levels for source in level)
    if not near or not all(source.known for source in near):
        return None
    if column.table:
        return (
            None if _resolves(column, near) else Defect(column, selects[0], _named(column, near), near, len(levels[0]))
        )
    aliases = {item.alias.casefold() for select in selects for item in select.expressions}
    text = schema.dialect == "sqlite" and column.this.args.get("quoted")
    if text or column.name.casefold() in aliases or any(column.name.casefold() in s.columns for s in near):
        return None
    return Defect(column, selects[0], None, near, len(levels[0]))


def _named(column: exp.Column, near: tuple[FromItem, ...]) -> FromItem | None:
    return next((source for source in near if source.alias.casefold() == column.table.casefold()), None)


def _resolves(column: exp.Column, near: tuple[FromItem, ...]) -> bool:
    source = _named(column, near)
    if source is None:
        return any(_may_have_fields(other.columns.get(column.table.casefold())) for other in near)
    return column.name.casefold() in source.columns


def _may_have_fields(origin: Origin | None) -> bool:
    """Whether `origin.x` may be a field of a column, rather than a column of a table."""
    return type_kind(origin.type) in ("other", None) if isinstance(origin, Column) else origin is not None


ColumnRule = Callable[[Defect, Schema], bool]


def qualify(column: exp.Column, alias: str) -> None:
    column.set("table", exp.to_identifier(alias))


def table_for_alias(defect: Defect, schema: Schema) -> bool:
    """Repairs `singer.name` if the query calls singer T1.

    Once a table has an alias, its own name is no longer valid:

    >>> from tools.repair.names import repair_names
    >>> from tools.schema import Column, Schema, Table
    >>> schema = Schema((Table("singer", (Column("name", "TEXT"),)),), "sqlite")
    >>> repair_names("SELECT singer.name FROM singer AS T1", None, schema)
    'SELECT T1.name FROM singer AS T1'
    """
    qualifier = defect.column.table.casefold()
    called = [source for source in defect.near if source.table and source.table.name.casefold() == qualifier]
    if defect.source is not None or len(called) != 1 or defect.name not in called[0].columns:
        return False
    qualify(defect.column, called[0].alias)
    return True


def wrong_qualifier(defect: Defect, schema: Schema) -> bool:
    """Repairs `T1.name` if T1 has no such column, and exactly one other table of the query has.

    T1 is the singer, and only a song has a title:

    >>> from tools.repair.names import repair_names
    >>> from tools.schema import Column, Schema, Table
    >>> singer = Table("singer", (Column("id", "INTEGER"), Column("name", "TEXT")))
    >>> song = Table("song", (Column("title", "TEXT"), Column("singer_id", "INTEGER")))
    >>> sql = "SELECT T1.title FROM singer AS T1 JOIN song AS T2 ON T1.id = T2.singer_id"
    >>> repair_names(sql, None, Schema((singer, song), "sqlite"))
    'SELECT T2.title FROM singer AS T1 JOIN song AS T2 ON T1.id = T2.singer_id'
    """
    owners = {source.alias for source in defect.near if defect.name in source.columns} - _compared_with(defect.column)
    if not defect.column.table or len(owners) != 1:
        return False
    qualify(defect.column, owners.pop())
    return True


def _compared_with(column: exp.Column) -> set[str]:
    """The qualifier of the other side of `T1.id = T2.id`: nobody means `T2.id = T2.id`."""
    sides = (column.parent.this, column.parent.expression) if isinstance(column.parent, exp.EQ) else ()
    return {
        s.table
        for s in sides
        if isinstance(s, exp.Column) and s is not column and s.name.casefold() == column.name.casefold()
    }


def other_spelling(defect: Defect, schema: Schema) -> bool:
    """Repairs `singer.singerName` or `singer.names` for `singer.name`.

    Case, underscores, plurals and the table's name as a prefix do not matter:

    >>> from tools.repair.names import repair_names
    >>> from tools.schema import Column, Schema, Table
    >>> schema = Schema((Table("singer", (Column("name", "TEXT"), Column("birth_year", "INTEGER"))),), "sqlite")
    >>> repair_names("SELECT singer.singerName FROM singer ORDER BY BirthYears", None, schema)
    'SELECT singer.name FROM singer ORDER BY birth_year'
    """
    return _rename(defect, lambda wanted, names, owner: same_words(wanted, names, owner))


def missing_table(defect: Defect, schema: Schema) -> bool:
    """Joins the column's table if the query lacks it and exactly one foreign-key path reaches it.

    The name is the singer's, and one key leads to singers:

    >>> from tools.repair.names import repair_names
    >>> from tools.schema import Column, ForeignKey, Schema, Table
    >>> singer = Table("singer", (Column("id", "INTEGER"), Column("name", "TEXT")))
    >>> key = ForeignKey(("singer_id",), "singer", ("id",))
    >>> song = Table("song", (Column("title", "TEXT"), Column("singer_id", "INTEGER")), (key,))
    >>> repair_names("SELECT title FROM song WHERE name = 'Ada'", None, Schema((singer, song), "sqlite"))
    "SELECT song.title FROM song JOIN singer ON song.singer_id = singer.id WHERE singer.name = 'Ada'"
    """
    wanted = schema.table(defect.column.table) if defect.column.table and defect.source is None else None
    owners = [wanted.name] if wanted is not None and wanted.column(defect.name) else schema.owners(defect.name)
    alias = add_join(defect.select, owners, schema)
    if alias is None:
        return False
    qualify(defect.column, alias)
    return True


def misspelt_column(defect: Defect, schema: Schema) -> bool:
    """Repairs `capasity` if the only close name is `capacity`.

    One letter is wrong:

    >>> from tools.repair.names import repair_names
    >>> from tools.schema import Column, Schema, Table
    >>> schema = Schema((Table("stadium", (Column("capacity", "INTEGER"),)),), "sqlite")
    >>> repair_names("SELECT capasity FROM stadium", None, schema)
    'SELECT capacity FROM stadium'
    """
    return _rename(defect, lambda wanted, names, owner: near_miss(wanted, names))


def _rename(defect: Defect, find: Callable[[str, list[str], str], str | None]) -> bool:
    """Give the column the one name that `find` finds in its table or, without a qualifier, in the innermost query's tables."""
    if defect.column.table and (defect.source is None or _is_compared_within(defect.column)):
        return False
    candidates = (defect.source,) if defect.source else defect.near[: defect.innermost]
    found: dict[str, str] = {}
    for source in candidates:
        owner = source.table.name if source.table else source.alias
        names = [column.name for column in source.table.columns] if source.table else list(source.columns)
        name = find(defect.column.name, names, owner)
        if name is not None:
            found[source.alias] = name
    if len(found) != 1:
        return False
    defect.column.set("this", exp.to_identifier(found.popitem()[1]))
    return True


def _is_compared_within(column: exp.Column) -> bool:
    """Whether a column is compared within its own table: `T1.id = T1.friend_id` is hardly meant as a join condition."""
    sides = (column.parent.this, column.parent.expression) if isinstance(column.parent, exp.EQ) else ()
    return any(isinstance(side, exp.Column) and side is not column and side.table == column.table for side in sides)


COLUMN_RULES: tuple[ColumnRule, ...] = (
    table_for_alias,
    wrong_qualifier,
    other_spelling,
    missing_table,
    misspelt_column,
)


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
            *(_column(left, called[edge.table]).eq(_column(right, called[edge.ref_table])) for left, right in pairs)
        )
        table = exp.Table(this=exp.to_identifier(new))
        select.append("joins", exp.Join(this=table, on=condition))
    return new


def _column(column: str, table: str) -> exp.Column:
    return exp.Column(this=exp.to_identifier(column), table=exp.to_identifier(table))


def same_words(wanted: str, names: Iterable[str], owner: str = "") -> str | None:
    """The one name with the same words, except for case, plural, underscores, or the owner's name as a prefix: `singers` is
    `Singer`, `name` of singer is `singer_name`. None if there is none, or more than one.

    >>> same_words("singers", ["Singer", "Song"])
    'Singer'
    >>> same_words("name", ["singer_name", "country"], owner="singer")
    'singer_name'
    """
    key, prefix = _key(wanted), _key(owner)
    variants = {key, prefix + key} | ({key.removeprefix(prefix)} if prefix and key != prefix else set())
    found = {name for name in names if _key(name) in variants}
    return found.pop() if len(found) == 1 else None


def near_miss(wanted: str, names: Iterable[str]) -> str | None:
    """The name whose letters are at least 0.8 similar, and clearly more similar than the next name's; None if there is none.

    >>> near_miss("capasity", ["capacity", "city"])
    'capacity'
    >>> near_miss("name1", ["name2", "name3"]) is None  # which of the two?
    True
    """
    letters = _letters(wanted)
    if len(letters) < SHORTEST:
        return None
    ranked = sorted(((_similarity(letters, _letters(name)), name) for name in set(names)), reverse=True)
    close = [(score, name) for score, name in ranked if score >= NEAR_MISS]
    clear = len(close) == 1 or (len(close) > 1 and close[0][0] - close[1][0] >= CLEARLY)
    return close[0][1] if clear else None


def _similarity(first: str, second: str) -> float:
    return SequenceMatcher(None, min(first, second), max(first, second)).ratio()


def _letters(name: str) -> str:
    return "".join(name_words(name))


def _key(name: str) -> str:
    return "".join(stem(word) for word in name_words(name))
