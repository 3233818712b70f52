"""One order for rows that a statement sorts as equal, whatever the engine's threads and plans do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokenizer_core import Token, TokenType

from tools.guard.guard import ApprovedQuery
from tools.schema import Schema
from tools.sql.scope import FromItem, sources
from tools.sql.spelling import identifier

SETTLED = ("duckdb", "postgres", "mysql")
"""Dialects whose engines leave the order of equal rows open; SQLite's is that of its rows."""
_LIMITS = (TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH)
_MANY_GROUPINGS = (exp.Cube, exp.GroupingSets, exp.Rollup)


@dataclass(frozen=True, slots=True)
class Settled:
    """A statement that sorts no rows as equal, and the keys that it has for that."""

    text: str
    keys: tuple[str, ...]


def settle_ties(statement: ApprovedQuery, schema: Schema) -> Settled | None:
    """The statement with keys added to its own ORDER BY, and to each one that a LIMIT, OFFSET or FETCH follows; None if there
    is none to add to.

    >>> from tools.guard.guard import judged
    >>> from tools.schema import Column, Table
    >>> album = Table("album", (Column("title", "VARCHAR"), Column("price", "DOUBLE")), row_count=9)
    >>> statement = judged("SELECT title FROM album ORDER BY price LIMIT 1", "duckdb")
    >>> settle_ties(statement, Schema((album,), "duckdb")).text
    'SELECT title FROM album ORDER BY price, "album".rowid LIMIT 1'
    """
    text, added = statement.text, list[str]()
    for place, keys in sorted(_additions(statement, schema), reverse=True):
        text = f"{text[:place].rstrip()}, {', '.join(keys)} {text[place:]}".rstrip()
        added[:0] = keys
    return Settled(text, tuple(added)) if added else None


def _additions(statement: ApprovedQuery, schema: Schema) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Where a key list ends in the text, and what is to stand there."""
    root = statement.tree
    ordered = [node for node in root.find_all(exp.Select, exp.SetOperation) if _is_open(node, node is root)]
    tokens = Dialect.get_or_raise(schema.dialect).tokenize(statement.text) if ordered else []
    for query in ordered:
        own = {_text(key.this, schema).casefold() for key in query.args["order"].expressions}
        keys = tuple(key for key in _keys(query, schema) if key.removesuffix(" DESC").casefold() not in own)
        place = _end_of_order(query, tokens) if _is_cut(query) else len(statement.text)
        if keys and place is not None:
            yield place, keys


def _is_open(query: exp.Expr, is_root: bool) -> bool:
    """Whether the order of equal rows can be seen, and keys can be added. A Var is the ALL of ORDER BY ALL."""
    order = query.args.get("order")
    return order is not None and (is_root or _is_cut(query)) and order.find(exp.Query, exp.Var) is None


def _is_cut(query: exp.Expr) -> bool:
    return bool(query.args.get("limit") or query.args.get("offset"))


def _end_of_order(query: exp.Expr, tokens: Sequence[Token]) -> int | None:
    """Where LIMIT, OFFSET or FETCH begins behind the query's keys; None if the keys cannot be found in the text."""
    starts = [node.meta["start"] for node in query.args["order"].walk() if "start" in node.meta]
    depth = 0
    for token in tokens:
        if not starts or token.start < max(starts):
            continue
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if token.token_type in _LIMITS and depth <= 0:
            return token.start
    return None


def _keys(query: exp.Expr, schema: Schema) -> tuple[str, ...]:
    """What tells equal rows apart, as SQL; nothing where that is not known."""
    if not isinstance(query, exp.Select):
        return _output(query)
    distinct, group = query.args.get("distinct"), query.args.get("group")
    if distinct is not None:
        return () if distinct.args.get("on") else _output(query)
    if group is not None:
        are_plain = not group.args.get("all") and group.find(*_MANY_GROUPINGS) is None
        direction = " DESC" if query.args["order"].expressions[0].args.get("desc") else ""
        texts = [_text(key, schema) for key in group.expressions] if are_plain else _output(query)
        return tuple(key + direction for key in texts)
    entries = sources(query, schema)
    rows = [_row(entry, schema) for entry in entries]
    return tuple(key for keys in rows for key in keys) if rows and all(rows) else _output(query)


def _row(entry: FromItem, schema: Schema) -> tuple[str, ...]:
    """What tells the rows of an entry apart: in DuckDB their places, which those of a table have, and those of a view, whose
    rows are not counted, do not; elsewhere the primary key."""
    if entry.table is None:
        return ()
    if schema.dialect == "duckdb":
        names = ["rowid"] if entry.table.row_count is not None else []
        return tuple(exp.column(name, exp.to_identifier(entry.alias, quoted=True)).sql("duckdb") for name in names)
    keys = [column.name for column in entry.table.columns if column.primary_key]
    return tuple(f"{identifier(entry.alias, schema.dialect)}.{identifier(key, schema.dialect)}" for key in keys)


def _output(query: exp.Expr) -> tuple[str, ...]:
    """The places of the columns of the result, unless a star hides how many there are."""
    items = query.selects if isinstance(query, exp.Query) else []
    return () if any(item.is_star for item in items) else tuple(str(place + 1) for place in range(len(items)))


def _text(node: exp.Expr, schema: Schema) -> str:
    return node.sql(schema.dialect)
