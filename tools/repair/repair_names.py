"""Deterministic repair of SQL whose names do not fit the schema. No model, no guess: a rule acts only when exactly one
reading is left, and a statement whose names all resolve is never touched.

The commonest error of small models is a column that exists in another table of the query (77 % of one peer's execution
errors), which the first column rule mends.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.repair.add_join import add_join
from tools.repair.close_names import near_miss, same_words
from tools.result import QueryError
from tools.schema import Column, Schema
from tools.sql.casts import cast_arguments, cast_comparisons
from tools.sql.parse_quietly import parse_quietly
from tools.sql.scope import Origin, Source, common_table, enclosing, full_name, sources, type_kind
from tools.sql.sqlite_to_duckdb import loose_group_by, quoted_strings

PASSES = 8
_NOT_ABOUT_NAMES = ("refused", "timeout", "memory", "interrupted", "connection")
_ROW_NUMBERS = ("rowid", "oid", "_rowid_")


def repair(sql: str, error: QueryError | None, schema: Schema) -> str | None:
    """The statement with its names mended, in the schema's dialect; None when no rule applies.

    `error` is what the engine said of it, if it was asked. The result always parses, and repairing it again gives None.
    """
    if error is not None and error.kind in _NOT_ABOUT_NAMES:
        return None
    try:
        return _repaired(sql, error, schema)
    except RecursionError:  # nested a hundred levels deep
        return None


def _repaired(sql: str, error: QueryError | None, schema: Schema) -> str | None:
    tree = _parse(sql, schema.dialect) or (_parse(sql, "sqlite") if schema.dialect == "duckdb" else None)
    if tree is None:
        return None
    # Of a statement that the engine could not read, another spelling of the same tree is a repair too.
    before = sql.strip("; \n") if error is not None and error.kind == "syntax" else tree.sql(schema.dialect)
    for _ in range(PASSES):
        if not any(rule(tree, error, schema) for rule in RULES):
            break
    else:
        return None
    fixed = tree.sql(schema.dialect)
    return fixed if fixed != before and _parse(fixed, schema.dialect) is not None else None


def _parse(sql: str, dialect: str) -> exp.Expr | None:
    """The tree of one query; None for anything else."""
    try:
        statements = parse_quietly(sql, dialect)
    except (SqlglotError, RecursionError):
        return None
    return statements[0] if len(statements) == 1 and isinstance(statements[0], exp.Query) else None


@dataclass(frozen=True, slots=True)
class Defect:
    """A column that does not resolve. `source` is what its qualifier names, if anything; `near` are the sources in
    reach, of which the first `innermost` belong to its own query."""

    column: exp.Column
    select: exp.Select
    source: Source | None
    near: tuple[Source, ...]
    innermost: int

    @property
    def name(self) -> str:
        return self.column.name.casefold()


def _defects(tree: exp.Expr, schema: Schema) -> Iterator[Defect]:
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


def _named(column: exp.Column, near: tuple[Source, ...]) -> Source | None:
    return next((source for source in near if source.alias.casefold() == column.table.casefold()), None)


def _resolves(column: exp.Column, near: tuple[Source, ...]) -> bool:
    source = _named(column, near)
    if source is None:
        return any(_may_have_fields(other.columns.get(column.table.casefold())) for other in near)
    return column.name.casefold() in source.columns


def _may_have_fields(origin: Origin | None) -> bool:
    """Whether `origin.x` may be a field of a column, rather than a column of a table."""
    return type_kind(origin.type) in ("other", None) if isinstance(origin, Column) else origin is not None


Rule = Callable[[exp.Expr, QueryError | None, Schema], bool]
ColumnRule = Callable[[Defect, Schema], bool]


def misspelt_table(tree: exp.Expr, error: QueryError | None, schema: Schema) -> bool:
    """`FROM singers` where the one close name is `singer`."""
    names = [table.name for table in schema.tables]
    for table in list(tree.find_all(exp.Table)):
        is_name = isinstance(table.this, exp.Identifier) and not table.args.get("db")
        if not is_name or schema.table(full_name(table)) is not None or common_table(table) is not None:
            continue
        meant = same_words(table.name, names) or near_miss(table.name, names)
        if meant is not None:
            _rename_table(table, meant)
            return True
    return False


def _rename_table(table: exp.Table, meant: str) -> None:
    wrong = table.name.casefold()
    select = table.parent_select
    if select is not None and not table.alias:
        for column in select.find_all(exp.Column):
            if column.table.casefold() == wrong:
                _qualify(column, meant)
    table.set("this", exp.to_identifier(meant))


def _qualify(column: exp.Column, alias: str) -> None:
    column.set("table", exp.to_identifier(alias))


def table_for_alias(defect: Defect, schema: Schema) -> bool:
    """`singer.name` where the query calls singer T1."""
    qualifier = defect.column.table.casefold()
    called = [source for source in defect.near if source.table and source.table.name.casefold() == qualifier]
    if defect.source is not None or len(called) != 1 or defect.name not in called[0].columns:
        return False
    _qualify(defect.column, called[0].alias)
    return True


def wrong_qualifier(defect: Defect, schema: Schema) -> bool:
    """`T1.name` where T1 has no name, and exactly one other table of the query has."""
    owners = {source.alias for source in defect.near if defect.name in source.columns} - _compared_with(defect.column)
    if not defect.column.table or len(owners) != 1:
        return False
    _qualify(defect.column, owners.pop())
    return True


def _compared_with(column: exp.Column) -> set[str]:
    """In `T1.id = T2.id` the other side's qualifier: nobody means `T2.id = T2.id`."""
    sides = (column.parent.this, column.parent.expression) if isinstance(column.parent, exp.EQ) else ()
    return {
        s.table
        for s in sides
        if isinstance(s, exp.Column) and s is not column and s.name.casefold() == column.name.casefold()
    }


def other_spelling(defect: Defect, schema: Schema) -> bool:
    """`singer.singerName` or `singer.names` for `singer.name`."""
    return _rename(defect, lambda wanted, names, owner: same_words(wanted, names, owner))


def missing_table(defect: Defect, schema: Schema) -> bool:
    """The column's table is not in the query, and exactly one foreign-key path reaches it: join it."""
    wanted = schema.table(defect.column.table) if defect.column.table and defect.source is None else None
    owners = [wanted.name] if wanted is not None and wanted.column(defect.name) else schema.owners(defect.name)
    alias = add_join(defect.select, owners, schema)
    if alias is None:
        return False
    _qualify(defect.column, alias)
    return True


def misspelt_column(defect: Defect, schema: Schema) -> bool:
    """`capasity` where the one close name is `capacity`."""
    return _rename(defect, lambda wanted, names, owner: near_miss(wanted, names))


def _rename(defect: Defect, find: Callable[[str, list[str], str], str | None]) -> bool:
    """Give the column the one name that `find` sees in its table, or, when it names none, in the innermost query's."""
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
    """`T1.id = T1.friend_id` is hardly what a join condition was meant to be."""
    sides = (column.parent.this, column.parent.expression) if isinstance(column.parent, exp.EQ) else ()
    return any(isinstance(side, exp.Column) and side is not column and side.table == column.table for side in sides)


COLUMN_RULES: tuple[ColumnRule, ...] = (
    table_for_alias,
    wrong_qualifier,
    other_spelling,
    missing_table,
    misspelt_column,
)


def lost_column(tree: exp.Expr, error: QueryError | None, schema: Schema) -> bool:
    """The first column that does not resolve and that a rule of COLUMN_RULES can mend."""
    return any(rule(defect, schema) for defect in _defects(tree, schema) for rule in COLUMN_RULES)


def ambiguous_column(tree: exp.Expr, error: QueryError | None, schema: Schema) -> bool:
    """A name that several tables have, where the join makes them equal or the output list says which: any will do."""
    if error is None or error.kind != "ambiguous_column":
        return False
    for column in list(tree.find_all(exp.Column)):
        select = column.parent_select
        if isinstance(select, exp.Select) and not column.table and column.name:
            owners = [s.alias for s in sources(select, schema) if column.name.casefold() in s.columns]
            said = [a for a in _output_qualifiers(select, column.name) if a in owners]
            if len(owners) > 1 and (len(said) == 1 or _joined_on(select, column.name)):
                _qualify(column, said[0] if len(said) == 1 else owners[0])
                return True
    return False


def _output_qualifiers(select: exp.Select, name: str) -> list[str]:
    items = [item for item in select.expressions if isinstance(item, exp.Column) and item.table]
    return list({item.table for item in items if item.name.casefold() == name.casefold()})


def _joined_on(select: exp.Select, name: str) -> bool:
    joins = select.args.get("joins") or []
    equalities = [equal for join in joins if join.args.get("on") for equal in join.args["on"].find_all(exp.EQ)]
    return any(
        isinstance(side, exp.Column) and isinstance(other, exp.Column)
        and side.name.casefold() == other.name.casefold() == name.casefold()
        for side, other in ((equal.this, equal.expression) for equal in equalities)
    )  # fmt: skip


def sqlite_habits(tree: exp.Expr, error: QueryError | None, schema: Schema) -> bool:
    """What SQLite takes and DuckDB does not: "text" in double quotes, columns outside GROUP BY, text beside numbers."""
    if error is None or schema.dialect != "duckdb":
        return False
    before = tree.sql("duckdb")
    for rule in (quoted_strings, cast_comparisons, cast_arguments, loose_group_by):
        rule(tree, schema)
    return tree.sql("duckdb") != before


RULES: tuple[Rule, ...] = (misspelt_table, lost_column, ambiguous_column, sqlite_habits)
