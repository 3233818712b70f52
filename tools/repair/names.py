"""Deterministic repair of SQL whose names do not fit the schema. It uses no model and does not guess: a rule acts only if
exactly one meaning is possible, and a statement whose names all resolve is never changed.

The most common error of small models is a column that exists in another table of the query (77 % of one peer's execution
errors); the column rule `wrong_qualifier` repairs it.
"""

from collections.abc import Callable

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.linking.mentions import QuestionContext
from tools.repair.lost_columns import COLUMN_RULES, defects, near_miss, qualify, same_words
from tools.result import QueryError
from tools.schema import Schema, derived
from tools.sql.casts import cast_arguments, cast_comparisons, looked_at_casts
from tools.sql.from_sqlite import quoted_strings
from tools.sql.grouping import loose_group_by
from tools.sql.scope import common_table, full_name, parse_quietly, sources

PASSES = 8
_FOLDING = ("sqlite", "duckdb")  # where a name in quotes means the same in capitals and in small letters
_NOT_ABOUT_NAMES = ("refused", "timeout", "memory", "interrupted", "connection")


def repair_names(sql: str, error: QueryError | None, schema: Schema) -> str | None:
    """The statement with its names repaired, in the schema's dialect; None if no rule applies.

    `error` is the engine's error for it, if there is one. The result always parses, and repairing it again gives None.

    Two wrong names at once, and one that could mean anything:

    >>> from tools.schema import Column, Schema, Table
    >>> singer = Table("singer", (Column("name", "TEXT"), Column("age", "INTEGER")))
    >>> schema = Schema((singer,), "sqlite")
    >>> repair_names("SELECT singers.names FROM singers ORDER BY agee", None, schema)
    'SELECT singer.name FROM singer ORDER BY age'
    >>> repair_names("SELECT colour FROM singer", None, schema) is None  # no name is close
    True
    """
    if error is not None and error.kind in _NOT_ABOUT_NAMES:
        return None
    try:
        return _repaired(sql, error, schema)
    except (
        RecursionError,
        AttributeError,
    ):  # nested a hundred levels deep; sqlglot cannot write `DATETIME()` for DuckDB
        return None


def _repaired(sql: str, error: QueryError | None, schema: Schema) -> str | None:
    tree = _parse(sql, schema.dialect) or _parse(sql, "sqlite")
    if tree is None:
        return None
    # If the engine could not parse the statement, another spelling of the same tree is a repair, too.
    before = sql.strip("; \n") if error is not None and error.kind == "syntax" else tree.sql(schema.dialect)
    for _ in range(PASSES):
        if not any(rule(tree, error, schema) for rule in NAME_RULES):
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


NameRule = Callable[[exp.Expr, QueryError | None, Schema], bool]


def misspelt_table(tree: exp.Expr, error: QueryError | None, schema: Schema) -> bool:
    """Repairs `FROM singers` if the only close name is `singer`.

    A plural:

    >>> from tools.schema import Column, Schema, Table
    >>> schema = Schema((Table("singer", (Column("name", "TEXT"),)),), "sqlite")
    >>> repair_names("SELECT name FROM singers", None, schema)
    'SELECT name FROM singer'
    """
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
                qualify(column, meant)
    table.set("this", exp.to_identifier(meant))


def lost_column(tree: exp.Expr, error: QueryError | None, schema: Schema) -> bool:
    """Repairs the first column that does not resolve and that a rule of COLUMN_RULES can repair.

    One rule recognises the plural, another the typing error:

    >>> from tools.schema import Column, Schema, Table
    >>> schema = Schema((Table("singer", (Column("name", "TEXT"), Column("age", "INTEGER"))),), "sqlite")
    >>> repair_names("SELECT names FROM singer ORDER BY agee", None, schema)
    'SELECT name FROM singer ORDER BY age'
    """
    return any(rule(defect, schema) for defect in defects(tree, schema) for rule in COLUMN_RULES)


def ambiguous_column(tree: exp.Expr, error: QueryError | None, schema: Schema) -> bool:
    """Qualifies a name that several tables have, if the join makes them equal or the output list says which is meant.

    The join makes both ids equal, so either can be taken:

    >>> from tools.schema import Column, Schema, Table
    >>> tables = [Table(name, (Column("id", "INTEGER"),)) for name in ("singer", "song")]
    >>> error = QueryError("ambiguous_column", "ambiguous column name: id")
    >>> repair_names("SELECT id FROM singer JOIN song ON singer.id = song.id", error, Schema(tuple(tables), "sqlite"))
    'SELECT singer.id FROM singer JOIN song ON singer.id = song.id'
    """
    if error is None or error.kind != "ambiguous_column":
        return False
    for column in list(tree.find_all(exp.Column)):
        select = column.parent_select
        if isinstance(select, exp.Select) and not column.table and column.name:
            owners = [s.alias for s in sources(select, schema) if column.name.casefold() in s.columns]
            selected = [a for a in _output_qualifiers(select, column.name) if a in owners]
            if len(owners) > 1 and (len(selected) == 1 or _joined_on(select, column.name)):
                qualify(column, selected[0] if len(selected) == 1 else owners[0])
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
    """Rewrites what SQLite accepts and others do not: "text" in double quotes, columns outside GROUP BY, text with numbers.

    For DuckDB, text in double quotes is a name:

    >>> from tools.schema import Column, Schema, Table
    >>> schema = Schema((Table("singer", (Column("name", "VARCHAR"),)),), "duckdb")
    >>> error = QueryError("unknown_column", 'Referenced column "Ada" not found')
    >>> repair_names('SELECT name FROM singer WHERE name = "Ada"', error, schema)
    "SELECT name FROM singer WHERE name = 'Ada'"
    """
    if error is None or schema.dialect == "sqlite":
        return False
    before = tree.sql(schema.dialect)
    habits = [quoted_strings, cast_comparisons, cast_arguments, loose_group_by]
    habits += [looked_at_casts] if schema.dialect == "postgres" else []
    for rule in habits:
        rule(tree, schema)
    return tree.sql(schema.dialect) != before


NAME_RULES: tuple[NameRule, ...] = (misspelt_table, lost_column, ambiguous_column, sqlite_habits)


def spell_names(tree: exp.Query, schema: Schema, context: QuestionContext) -> exp.Query | None:
    """Writes names as the schema writes them. A model under a grammar may write `aLBUMS`, which engines read as `albums`.

    >>> from sqlglot import parse_one
    >>> from tools.schema import Column, Table
    >>> schema = Schema((Table("albums", (Column("title", "TEXT"),)),), "sqlite")
    >>> tree = parse_one("SELECT aLBUMS.Title FROM aLBUMS AS T1 WHERE T1.title = 'ALBUMS'")
    >>> spell_names(tree, schema, QuestionContext("?")).sql()
    "SELECT albums.title FROM albums AS T1 WHERE T1.title = 'ALBUMS'"
    """
    if schema.dialect not in _FOLDING:
        return None
    spelled = _spellings(schema)
    found = [each for each in _identifiers(tree) if each.name not in spelled.get(each.name.lower(), (each.name,))]
    for each in found:
        each.set("this", spelled[each.name.lower()][0])
    return tree if found else None


@derived
def _spellings(schema: Schema) -> dict[str, list[str]]:
    """The names of tables and columns by their small letters."""
    spellings: dict[str, list[str]] = {}
    for table in schema.tables:
        for name in (table.name, *(column.name for column in table.columns)):
            spellings.setdefault(name.lower(), []).append(name)
    return spellings


def _identifiers(tree: exp.Expr) -> list[exp.Identifier]:
    """The identifiers of tables and columns; aliases stay as they are where they are made."""
    places = [table.parts for table in tree.find_all(exp.Table)] + [
        column.parts for column in tree.find_all(exp.Column)
    ]
    return [part for parts in places for part in parts if isinstance(part, exp.Identifier)]
