"""SQL that was written for SQLite becomes another engine's.

A heading such as `Net amount (€)` is written as "Net amount", "net amount (EUR)" or 'Net amount (€)' as well. SQLite takes what
names nothing for a text, and sums it to 0; here it becomes the column that is meant, if exactly one can be. A text that is
summed, grouped by or shown alone is never meant; one that is compared with a column is.

What differs was counted on the executable gold queries of Spider dev (log/dialects.md): functions of dates, double-quoted
strings, text compared with numbers, LIKE's case, integer division, columns outside GROUP BY, truth values, NULLs in order, and
how names are spelled.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.schema import Column, Schema
from tools.sql.casts import (
    cast_arguments,
    cast_comparisons,
    division,
    fractions,
    joined_texts,
    kinds_alike,
    looked_at_casts,
    numbers_of_truth,
    rounding,
)
from tools.sql.grouping import derived_tables, loose_group_by, names_of_outputs
from tools.sql.scope import column_ref, enclosing, kind_of, owner, parse_or_nothing, parse_quietly, projections, sources
from tools.sql.spelling import spelled_names
from tools.sql.to_sqlite import moments, parts_of_moments


def null_order(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Sorts NULLs first, as SQLite does, and omits that where there can be none.

    An age may be missing, a primary key cannot:

    >>> from tools.schema import Column, Schema, Table
    >>> singer = Table("singer", (Column("id", "INTEGER", primary_key=True), Column("age", "INTEGER")))
    >>> schema = Schema((singer,), "duckdb")
    >>> from_sqlite("SELECT id FROM singer ORDER BY age, id", schema)
    'SELECT id FROM singer ORDER BY age NULLS FIRST, id'
    """
    for ordered in tree.find_all(exp.Ordered):
        if not _may_be_null(ordered, schema):
            ordered.set("nulls_first", _is_first_anyway(ordered, schema))
    return tree


def nulls_last(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Sorts NULLs last, so that the smallest value is no missing one, and omits that where an engine does so by itself.

    >>> schema = Schema((), "duckdb")
    >>> from_sqlite("SELECT id FROM singer ORDER BY age LIMIT 1", schema, exactly=False)
    'SELECT id FROM singer ORDER BY age LIMIT 1'
    >>> from_sqlite("SELECT id FROM singer ORDER BY age DESC LIMIT 1", Schema((), "postgres"), exactly=False)
    'SELECT id FROM singer ORDER BY age DESC NULLS LAST LIMIT 1'
    """
    for ordered in tree.find_all(exp.Ordered):
        spelled = schema.dialect != "mysql" or _may_sort_by_more(ordered)
        last = spelled and _may_be_null(ordered, schema)
        ordered.set("nulls_first", False if last else _is_first_anyway(ordered, schema))
    return tree


def _may_be_null(ordered: exp.Ordered, schema: Schema) -> bool:
    key = ordered.this
    source = owner(key, schema) if isinstance(key, exp.Column) else None
    column = source.table.column(key.name) if source and source.table else None
    return not (isinstance(key, exp.Count) or (column is not None and (column.primary_key or not column.nullable)))


def _is_first_anyway(ordered: exp.Ordered, schema: Schema) -> bool:
    """The dialect's own order, which is not written. DuckDB's is last, PostgreSQL takes NULL for the largest value, and most
    others for the smallest."""
    descending = bool(ordered.args.get("desc"))
    if schema.dialect in ("duckdb", "trino"):
        return False
    return descending if schema.dialect in ("postgres", "snowflake", "oracle") else not descending


def _may_sort_by_more(ordered: exp.Ordered) -> bool:
    """Whether the rows may be sorted by what they do not show: MySQL writes the order of NULLs as one more key."""
    query = ordered.parent.parent if ordered.parent else None
    return isinstance(query, exp.Select) and query.args.get("distinct") is None


def distinct_order(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Groups rows that are all different where they are sorted by something that they do not show.

    >>> from tools.schema import Column, Schema, Table
    >>> singer = Table("singer", (Column("name", "TEXT"), Column("age", "INTEGER", nullable=False)))
    >>> from_sqlite("SELECT DISTINCT name FROM singer ORDER BY age", Schema((singer,), "postgres"))
    'SELECT name FROM singer GROUP BY name ORDER BY MIN(age) NULLS FIRST'
    """
    for select in list(tree.find_all(exp.Select)):
        order = select.args.get("order")
        shown = {item.unalias().sql().casefold() for item in select.expressions} | {
            item.alias_or_name.casefold() for item in select.expressions
        }
        if select.args.get("distinct") is None or order is None or select.args.get("group"):
            continue
        hidden = [
            each
            for each in order.expressions
            if each.this.sql().casefold() not in shown and not each.this.is_int and not _is_named(each.this, shown)
        ]
        if not hidden or any(item.is_star or item.find(exp.AggFunc) for item in select.expressions):
            continue
        select.set("distinct", None)
        select.set("group", exp.Group(expressions=[item.unalias().copy() for item in select.expressions]))
        for ordered in hidden:
            if kind_of(ordered.this, schema) != "boolean":
                first = exp.Max if ordered.args.get("desc") else exp.Min
                ordered.set("this", first(this=ordered.this.copy()))
    return tree


def _is_named(key: exp.Expr, shown: set[str]) -> bool:
    return isinstance(key, exp.Column) and not key.table and key.name.casefold() in shown


_PARTS = (exp.TimeToStr, exp.Extract, exp.Year, exp.Month, exp.Day, exp.Quarter, exp.DateTrunc, exp.TimestampTrunc)


def periods_in_order(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Sorts groups by a month, a year, an hour or a day, where nothing else sorts them.

    >>> from sqlglot import parse_one
    >>> from tools.schema import Column, Table
    >>> schema = Schema((Table("sale", (Column("sold", "DATE"),)),), "duckdb")
    >>> query = "SELECT STRFTIME('%Y', sold), COUNT(*) FROM sale GROUP BY STRFTIME('%Y', sold)"
    >>> periods_in_order(parse_one(query, dialect="sqlite"), schema).sql("duckdb").partition(" ORDER BY ")[2]
    "STRFTIME(CAST(sold AS TIMESTAMP), '%Y')"
    """
    if not isinstance(tree, exp.Select) or tree.args.get("order") or tree.args.get("limit"):
        return tree
    group = tree.args.get("group")
    keys = [key for key in (group.expressions if group else ()) if _is_period(_meant(key, tree), schema)]
    if keys:
        tree.set(
            "order",
            exp.Order(
                expressions=[exp.Ordered(this=key.copy(), nulls_first=schema.dialect == "sqlite") for key in keys]
            ),
        )
    return tree


def _meant(key: exp.Expr, select: exp.Select) -> exp.Expr:
    """What a key of groups stands for: a place or another name of something selected."""
    items: list[exp.Expr] = select.expressions
    if key.is_int and 1 <= int(key.name) <= len(items):
        return items[int(key.name) - 1].unalias()
    if isinstance(key, exp.Column) and not key.table:
        named = [item for item in items if item.alias and item.alias.casefold() == key.name.casefold()]
        return named[0].unalias() if named else key
    return key


def _is_period(key: exp.Expr, schema: Schema) -> bool:
    if isinstance(key, exp.Cast):
        return _is_period(key.this, schema)
    if isinstance(key, exp.Column):
        ref = column_ref(key, schema)
        return ref is not None and (kind_of(key, schema) == "time" or _NAMES_A_PERIOD.fullmatch(ref[1]) is not None)
    return isinstance(key, _PARTS)


_NAMES_A_PERIOD = re.compile(r"(?i)(?:.*[_ ])?(?:year|month|quarter|week|hour|day)")


_SIGNS = {"€": "eur", "$": "usd", "£": "gbp", "¥": "jpy", "%": "percent", "#": "number", "&": "and", "№": "number"}
_IN_BRACKETS = re.compile(r"\s*[(\[{].*?[)\]}]\s*")
_SHORTEST = 4  # letters of a beginning that stands for a whole name


def named_columns(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Makes columns of names that are nearly spelt as the only column that they can mean.

    >>> from tools.schema import Table
    >>> sale = Table("sale", (Column("Net amount (€)", "DOUBLE"), Column("Qty.", "BIGINT"), Column("Region", "VARCHAR")))
    >>> schema = Schema((sale,), "duckdb")
    >>> query = 'SELECT SUM("Net amount"), SUM(\\'qty\\') FROM sale WHERE "region" = "North"'
    >>> from sqlglot import parse_one
    >>> named_columns(parse_one(query, dialect="sqlite"), schema).sql("duckdb")
    'SELECT SUM("Net amount (€)"), SUM("Qty.") FROM sale WHERE "region" = "North"'
    """
    for column in list(tree.find_all(exp.Column)):
        is_lost = _is_lost(column, schema) and not _is_compared_value(column, schema)
        if is_lost and (found := _meant_column(column, schema)) is not None:
            column.replace(exp.column(found, column.table or None, quoted=True))
    for text in list(tree.find_all(exp.Literal)):
        if text.is_string and _needs_column(text) and (found := _meant_column(text, schema)) is not None:
            text.replace(exp.column(found, quoted=True))
    return tree


def _is_lost(node: exp.Column, schema: Schema) -> bool:
    """Whether a quoted name is none of those in scope."""
    if not node.this.args.get("quoted") or owner(node, schema) is not None:
        return False
    operation = node.find_ancestor(exp.SetOperation)
    outputs = projections(operation, schema) if operation is not None else {}
    aliases = {item.alias.casefold() for select in enclosing(node) for item in select.expressions}
    return node.name.casefold() not in aliases | set(outputs)


def _needs_column(node: exp.Expr) -> bool:
    """Whether a text stands where only a column makes sense."""
    parent = node.parent
    if isinstance(parent, exp.Distinct | exp.Paren | exp.Cast):
        return _needs_column(parent)
    if isinstance(parent, exp.Alias):
        return isinstance(parent.parent, exp.Select)
    if isinstance(parent, exp.Select):
        return any(node is item for item in parent.expressions)
    return isinstance(parent, exp.AggFunc | exp.Group | exp.Ordered | exp.TimeToStr | exp.TsOrDsToTimestamp)


def _is_compared_value(node: exp.Expr, schema: Schema) -> bool:
    """Whether it is compared with a column, as a value is."""
    parent = node.parent
    if isinstance(parent, exp.In):
        return parent.this is not node
    if not isinstance(parent, exp.Predicate) or not isinstance(parent, exp.Binary):
        return False
    other = parent.this if parent.expression is node else parent.expression
    known = isinstance(other, exp.Column) and (
        owner(other, schema) is not None or _meant_column(other, schema) is not None
    )
    return parent.expression is node and known


def _meant_column(node: exp.Expr, schema: Schema) -> str | None:
    """The only column in scope that a name can mean: by its letters and digits, those outside brackets, or its beginning."""
    qualifier = node.table.casefold() if isinstance(node, exp.Column) else ""
    names = list(dict.fromkeys(_names(node, schema, qualifier)))
    is_text = isinstance(node, exp.Literal)
    for key in (_spaced, _letters, _bare_letters):
        wanted = key(node.name)
        fits = [name for name in names if wanted and key(name) == wanted]
        if fits:
            return fits[0] if len(fits) == 1 else None
    wanted = _letters(node.name)
    fits = [name for name in names if not is_text and len(wanted) >= _SHORTEST and _letters(name).startswith(wanted)]
    return fits[0] if len(fits) == 1 else None


def _names(node: exp.Expr, schema: Schema, qualifier: str) -> Iterator[str]:
    for select in enclosing(node):
        for source in sources(select, schema):
            if not qualifier or source.alias.casefold() == qualifier:
                yield from (
                    origin.name if isinstance(origin, Column) else name for name, origin in source.columns.items()
                )


def _spaced(name: str) -> str:
    """A name in one line."""
    return " ".join(name.casefold().split())


@lru_cache(maxsize=8192)
def _letters(name: str) -> str:
    """The letters and digits of a name, without accents and in small letters.

    >>> _letters("Net amount\\\\n(€)"), _letters("Größe [%]")
    ('netamounteur', 'grossepercent')
    """
    spelt = "".join(_SIGNS.get(sign, sign) for sign in name.casefold().replace("\\n", " "))
    plain = unicodedata.normalize("NFKD", spelt)
    return "".join(sign for sign in plain if sign.isalnum())


@lru_cache(maxsize=8192)
def _bare_letters(name: str) -> str:
    return (
        _letters(_IN_BRACKETS.sub(" ", name))
        if len(_letters(_IN_BRACKETS.sub(" ", name))) >= _SHORTEST
        else _letters(name)
    )


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
