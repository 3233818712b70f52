"""Parses statements, and finds in a schema what the columns of a query belong to and hold.

It reads trees and never changes them. Parsing suppresses sqlglot's log lines: here an unsupported statement is a valid result,
not a warning on stderr.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token

from tools.schema import Column, ColumnRef, Schema, Table

_OURS = ("tools.", "agent.", "ui.", "eval.")


class _SilentForUs(logging.Filter):
    """Drops the records of calls that come from here, whether they parse or write SQL; other users of sqlglot keep theirs."""

    def filter(self, record: logging.LogRecord) -> bool:
        frame = sys._getframe(1)
        while frame.f_back is not None:
            frame = frame.f_back
            if str(frame.f_globals.get("__name__")).startswith(_OURS):
                return False
        return True


logging.getLogger("sqlglot").addFilter(_SilentForUs())


def parse_quietly(sql: str, dialect: str, tokens: list[Token] | None = None) -> list[exp.Expr]:
    """The statements of `sql`, without the empty ones that stray semicolons leave. Raises SqlglotError.

    `tokens`: those of `sql`, where they are known.
    """
    try:
        reader = Dialect.get_or_raise(dialect)
        parsed = reader.parser().parse(reader.tokenize(sql) if tokens is None else tokens, sql)
    except (SqlglotError, RecursionError):
        raise
    except (
        Exception
    ) as error:  # whatever a parser of this size may raise: sqlglot 30 has an assertion at `SELECT 1 |> UNION`
        raise SqlglotError("the parser gave up") from error
    return [statement for statement in parsed if statement is not None and not isinstance(statement, exp.Semicolon)]


def parse_or_nothing(sql: str, dialect: str) -> list[exp.Expr]:
    """The statements of `sql`; none if it cannot be parsed."""
    try:
        return parse_quietly(sql, dialect)
    except (SqlglotError, RecursionError):
        return []


Kind = Literal["integer", "real", "text", "time", "boolean", "other"]

_KIND_WORDS: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("other", ("INTERVAL", "[", "STRUCT", "MAP", "LIST", "JSON", "POINT", "BLOB", "BINARY")),
    ("text", ("CHAR", "TEXT", "CLOB", "STRING", "ENUM", "UUID")),
    ("time", ("DATE", "TIME")),
    ("boolean", ("BOOL",)),
    ("integer", ("INT",)),
    ("real", ("REAL", "FLOA", "DOUB", "DEC", "NUM")),
)

_MAIN = ("main", "public", "dbo")

# What a name in scope refers to: a column of a table, or the expression of a sub-query that defines it.
Origin = Column | exp.Expr


@dataclass(frozen=True, slots=True)
class FromItem:
    """One entry of a FROM clause; `columns` has folded names. `known` is False if some of its columns are not known:
    for a table that the schema lacks, a table function, or a star over either."""

    alias: str
    table: Table | None
    columns: dict[str, Origin]
    known: bool = True


@lru_cache(maxsize=4096)
def type_kind(type_name: str) -> Kind | None:
    """The kind of values that a column of this type holds; None if the name does not say it."""
    upper = type_name.upper()
    return next((kind for kind, words in _KIND_WORDS if any(word in upper for word in words)), None)


def is_number(kind: Kind | None) -> bool:
    """Whether values of this kind are numbers."""
    return kind in ("integer", "real")


def sources(select: exp.Select, schema: Schema) -> list[FromItem]:
    """The FROM and JOIN entries of this query alone, in order."""
    from_ = select.args.get("from_")
    relations = [from_.this] if from_ else []
    relations += [join.this for join in select.args.get("joins") or []]
    return [_source(relation, schema) for relation in relations]


def _source(relation: exp.Expr, schema: Schema) -> FromItem:
    alias = relation.alias_or_name
    query = relation.this if isinstance(relation, exp.Subquery) else None
    cte = common_table(relation) if query is None else None
    if cte is not None:
        query = cte.this
    if query is not None:
        columns = _renamed(cte, projections(query, schema)) if cte else projections(query, schema)
        return FromItem(alias, None, _renamed(relation, columns), _is_known(query, schema))
    table = schema.table(full_name(relation))
    if table is None or not isinstance(relation.this, exp.Identifier):
        return FromItem(alias, None, {}, known=False)
    by_name: dict[str, Origin] = {column.name.casefold(): column for column in table.columns}
    return FromItem(alias, table, _renamed(relation, by_name))


def full_name(relation: exp.Expr) -> str:
    """A table's name as the schema writes it: outside the main schema it includes its schema, `sales.orders`."""
    qualifier = relation.args.get("db")
    return f"{qualifier.name}.{relation.name}" if qualifier and qualifier.name not in _MAIN else relation.name


def table_name(relation: exp.Table, schema: Schema) -> str:
    """The name by which the schema calls this table, bare or not; as it is written for a table that it lacks."""
    table = schema.table(full_name(relation))
    return table.name if table else full_name(relation)


def _is_known(query: exp.Expr, schema: Schema) -> bool:
    first = first_select(query)
    if first is None:
        return False
    return not any(item.is_star for item in first.expressions) or all(s.known for s in sources(first, schema))


def _renamed(named: exp.Expr, columns: dict[str, Origin]) -> dict[str, Origin]:
    """The columns under the names of `AS t(a, b)`, which apply to the first of them."""
    alias = named.args.get("alias")
    new = [identifier.name.casefold() for identifier in alias.columns] if isinstance(alias, exp.TableAlias) else []
    return dict(zip([*new, *list(columns)[len(new) :]], columns.values(), strict=False))


def common_table(relation: exp.Expr) -> exp.CTE | None:
    """The common table expression that this table name refers to. Inside the expression itself the name means something
    else: a real table, or the rows of a recursive query so far."""
    around: list[exp.Expr] = []
    node = relation.parent
    while node is not None:
        around.append(node)
        with_ = node.args.get("with_")
        for cte in with_.expressions if with_ else ():
            is_named = isinstance(cte, exp.CTE) and cte.alias.casefold() == relation.name.casefold()
            if is_named and not any(cte is other for other in around):
                return cast(exp.CTE, cte)
        node = node.parent
    return None


def projections(query: exp.Expr, schema: Schema) -> dict[str, Origin]:
    """Folded output names of a query and where each comes from; a set operation takes its first branch's."""
    first = first_select(query)
    columns: dict[str, Origin] = {}
    for item in first.expressions if first is not None else ():
        if item.is_star and first is not None:
            columns.update(_star(item, first, schema))
        else:
            columns[item.alias_or_name.casefold()] = item
    return columns


def one_value(item: exp.Expr) -> exp.Expr:
    """The item without its alias, and without ANY_VALUE: any of several equal values is that value."""
    inner = item.unalias()
    inner = inner.this if isinstance(inner, exp.IgnoreNulls) else inner  # as DuckDB's own ANY_VALUE does
    return inner.this if isinstance(inner, exp.AnyValue) else inner


def first_select(query: exp.Expr) -> exp.Select | None:
    """The SELECT that names the output of a query: the leftmost branch of set operations and parentheses."""
    while isinstance(query, exp.SetOperation | exp.Subquery | exp.Paren):
        query = query.this
    return query if isinstance(query, exp.Select) else None


def _star(item: exp.Expr, select: exp.Select, schema: Schema) -> dict[str, Origin]:
    wanted = item.args["table"].name.casefold() if isinstance(item, exp.Column) and item.table else None
    columns: dict[str, Origin] = {}
    for source in sources(select, schema):
        if wanted in (None, source.alias.casefold()):
            columns.update(source.columns)
    return columns


def enclosing(node: exp.Expr) -> Iterator[exp.Select]:
    """The SELECTs around a node, innermost first."""
    select = node.parent_select
    while select is not None:
        if isinstance(select, exp.Select):
            yield select
        select = select.parent_select


def owner(column: exp.Column, schema: Schema) -> FromItem | None:
    """The FROM entry that this column comes from: the innermost query that has it wins, as in SQL."""
    qualifier, name = column.table.casefold(), column.name.casefold()
    for select in enclosing(column):
        for source in sources(select, schema):
            if qualifier and source.alias.casefold() == qualifier:
                return source
            if not qualifier and name in source.columns:
                return source
    return None


def column_ref(column: exp.Column, schema: Schema) -> ColumnRef | None:
    """The table and the column of the schema that a name means, as the schema spells them; None if it means something else."""
    source = owner(column, schema)
    origin = source.columns.get(column.name.casefold()) if source else None
    return (source.table.name, origin.name) if source and source.table and isinstance(origin, Column) else None


def kind_of(node: exp.Expr | None, schema: Schema) -> Kind | None:
    """The kind of value that an expression has; None if it is not known."""
    for types, rule in _KINDS:
        if isinstance(node, types):
            return rule(node, schema)
    return None


def _column_kind(node: exp.Expr, schema: Schema) -> Kind | None:
    assert isinstance(node, exp.Column)
    source = owner(node, schema)
    origin = source.columns.get(node.name.casefold()) if source else None
    return type_kind(origin.type) if isinstance(origin, Column) else kind_of(origin, schema)


def _literal_kind(node: exp.Expr, schema: Schema) -> Kind | None:
    if node.is_string:
        return "text"
    return "integer" if node.name.isdigit() else "real"


def _query_kind(node: exp.Expr, schema: Schema) -> Kind | None:
    first = next(iter(projections(node, schema).values()), None)
    return type_kind(first.type) if isinstance(first, Column) else kind_of(first, schema)


def _arithmetic_kind(node: exp.Expr, schema: Schema) -> Kind | None:
    both = (kind_of(node.this, schema), kind_of(node.expression, schema))
    return "integer" if both == ("integer", "integer") else "real"


def _sum_kind(node: exp.Expr, schema: Schema) -> Kind | None:
    return "integer" if kind_of(node.this, schema) == "integer" else "real"


def _inner_kind(node: exp.Expr, schema: Schema) -> Kind | None:
    return kind_of(node.this, schema)


def _case_kind(node: exp.Expr, schema: Schema) -> Kind | None:
    return kind_of(node.args["ifs"][0].args["true"], schema)


def _constant(kind: Kind) -> Callable[[exp.Expr, Schema], Kind | None]:
    return lambda node, schema: kind


_KINDS: tuple[tuple[tuple[type[exp.Expr], ...], Callable[[exp.Expr, Schema], Kind | None]], ...] = (
    ((exp.Column,), _column_kind),
    ((exp.Literal,), _literal_kind),
    ((exp.Subquery, exp.Select, exp.SetOperation), _query_kind),
    ((exp.Cast,), lambda node, schema: type_kind(node.args["to"].sql())),
    ((exp.Count, exp.Length, exp.StrPosition, exp.IntDiv), _constant("integer")),
    ((exp.Sum,), _sum_kind),
    ((exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod), _arithmetic_kind),
    ((exp.Avg, exp.Round), _constant("real")),
    ((exp.Substring, exp.Lower, exp.Upper, exp.Trim, exp.DPipe, exp.Concat, exp.TimeToStr), _constant("text")),
    ((exp.Predicate, exp.Not, exp.Connector, exp.Boolean), _constant("boolean")),
    ((exp.Case,), _case_kind),
    (
        (exp.Paren, exp.Alias, exp.Neg, exp.Abs, exp.Max, exp.Min, exp.AnyValue, exp.ArgMax, exp.ArgMin, exp.Coalesce),
        _inner_kind,
    ),
)
