"""Translates SQLite's SQL, which the embedded model writes for every engine, to the dialect of a schema, so that it returns
the same rows, with one rule for each difference that sqlglot's transpiler leaves out. Types come from the schema; no engine is
asked.

What differs was counted on the executable gold queries of Spider dev (log/dialects.md): functions of dates, double-quoted
strings, text compared with numbers, LIKE's case, integer division, columns outside GROUP BY, truth values, NULLs in order, and
how names are spelled.
"""

import re
from collections.abc import Callable, Mapping

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.schema import Schema
from tools.sql.arithmetic import division, fractions, joined_texts, numbers_of_truth, rounding
from tools.sql.casts import cast_arguments, cast_comparisons, kinds_alike, looked_at_casts
from tools.sql.grouping import derived_tables, loose_group_by, names_of_outputs
from tools.sql.moments import moments, parts_of_moments
from tools.sql.ordering import distinct_order, null_order, nulls_last
from tools.sql.periods import periods_in_order
from tools.sql.quoted_names import named_columns
from tools.sql.scope import enclosing, owner, parse_or_nothing, parse_quietly, projections, sources
from tools.sql.spelling import spelled_names

Rule = Callable[[exp.Expr, Schema], exp.Expr]


def from_sqlite(sql: str, schema: Schema, *, exactly: bool = True) -> str:
    """The query in the schema's dialect; its column types, primary keys and spellings are what the rules know.

    exactly: also where SQLite's answer is the less useful one. Otherwise integers are divided to fractions, NULLs are sorted
    last, names in quotes are the columns that they nearly name, and groups by a month or a year come in order. Raises
    ValueError if the text is not one SQLite query, or cannot be written.

    Three rules act on this query:

    >>> from tools.schema import Column, Schema, Table
    >>> singer = Table("singer", (Column("name", "VARCHAR"), Column("age", "INTEGER")))
    >>> schema = Schema((singer,), "duckdb")
    >>> from_sqlite('SELECT name, max(age) FROM singer WHERE name LIKE "a%"', schema)
    "SELECT ARG_MAX(name, age), MAX(age) FROM singer WHERE name ILIKE 'a%'"
    """
    try:
        statements = parse_quietly(sql, "sqlite")
        if len(statements) != 1 or not isinstance(statements[0], exp.Query):
            raise ValueError(f"not one SQLite query: {sql[:80]}")
        tree: exp.Expr = statements[0]
        rules = rules_for(schema.dialect)
        for rule in rules if exactly else (*_MEANT, *(_USEFUL.get(rule, rule) for rule in rules)):
            tree = rule(tree, schema)
        return tree.sql(schema.dialect)
    except SqlglotError as error:
        raise ValueError(f"not a SQLite query: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ValueError(f"not a SQLite query: nested too deeply: {sql[:80]}") from error
    except (AttributeError, TypeError, KeyError, IndexError, AssertionError) as error:  # sqlglot's writer gave up
        raise ValueError(f"cannot be written in the dialect {schema.dialect}: {sql[:80]}") from error


def in_sqlite(sql: str, schema: Schema) -> str:
    """The query for SQLite itself, with the columns that its names in quotes mean, and with periods in order; as it is where
    it cannot be read or nothing changes."""
    trees = parse_or_nothing(sql, "sqlite")
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        return sql
    tree: exp.Expr = trees[0]
    before = tree.sql("sqlite")
    for rule in _MEANT:
        tree = rule(tree, schema)
    after = tree.sql("sqlite")
    return sql if after == before else after


def quoted_strings(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Rewrites `"France"` as a string, which it is in SQLite if nothing in scope has that name.

    No column is called France:

    >>> from tools.schema import Column, Schema, Table
    >>> singer = Table("singer", (Column("country", "VARCHAR"),))
    >>> schema = Schema((singer,), "duckdb")
    >>> from_sqlite('SELECT COUNT(*) FROM singer WHERE country = "France"', schema)
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
    >>> from_sqlite("SELECT name FROM singer WHERE name LIKE 'a%'", schema)
    "SELECT name FROM singer WHERE name ILIKE 'a%'"
    """
    for like in list(tree.find_all(exp.Like)):
        if schema.dialect != "mysql" or _minds_case(like.this, schema):
            like.replace(exp.ILike(**like.args))
    return tree


def _minds_case(node: exp.Expr, schema: Schema) -> bool:
    """Whether a column of MySQL compares its texts with regard to case, as its collation says."""
    source = owner(node, schema) if isinstance(node, exp.Column) else None
    column = source.table.column(node.name) if source and source.table else None
    return column is not None and _MINDING.search(column.type) is not None


_MINDING = re.compile(r"COLLATE \S*_(?:bin|cs)\b", re.IGNORECASE)


# The order matters: strings must be known before kinds are determined, and kinds before columns are wrapped.
_DUCKDB: tuple[Rule, ...] = (
    moments,
    quoted_strings,
    cast_comparisons,
    cast_arguments,
    division,
    case_insensitive_like,
    null_order,
    loose_group_by,
)
_STRICT: tuple[Rule, ...] = (
    moments,
    quoted_strings,
    names_of_outputs,
    parts_of_moments,
    numbers_of_truth,
    cast_comparisons,
    cast_arguments,
    kinds_alike,
    joined_texts,
    division,
    rounding,
    case_insensitive_like,
    distinct_order,
    null_order,
    loose_group_by,
    derived_tables,
    looked_at_casts,
    spelled_names,
)
_WITHOUT: Mapping[str, tuple[Rule, ...]] = {
    "mysql": (numbers_of_truth, kinds_alike),
    "tsql": (case_insensitive_like,),
}
_MEANT: tuple[Rule, ...] = (named_columns, periods_in_order)
_USEFUL: Mapping[Rule, Rule] = {division: fractions, null_order: nulls_last}


def rules_for(dialect: str) -> tuple[Rule, ...]:
    """The rules of a dialect, in their order. Only PostgreSQL has to be spared a cast that fails: others have one that does
    not, which sqlglot writes."""
    if dialect == "duckdb":
        return _DUCKDB
    left_out = _WITHOUT.get(dialect, ()) + (() if dialect == "postgres" else (looked_at_casts,))
    return tuple(rule for rule in _STRICT if rule not in left_out)
