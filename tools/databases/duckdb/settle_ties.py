"""Makes the order of rows total, so that the same query gives the same rows in the same order every time.

DuckDB leaves open how equal rows are sorted and which of them a LIMIT keeps, and threads may change it from run to run. What
is added stands behind the query's own keys: the keys of GROUP BY, sorted in the direction of its first one, as SQLite does, so
that both engines answer alike; else the places of the rows in their tables; else, where rows have none (views, sub-queries,
DISTINCT, set operations), the columns of the result. So only rows that were equal change places, and only in the statement
that the engine gets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokenizer_core import Token, TokenType

from tools.guard.guard import Judged
from tools.schema import Schema
from tools.sql.scope import FromItem, sources

_LIMITS = (TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH)
_MANY_GROUPINGS = (exp.Cube, exp.GroupingSets, exp.Rollup)


@dataclass(frozen=True, slots=True)
class Settled:
    """A statement that sorts no rows as equal, and the keys that it has for that."""

    text: str
    keys: tuple[str, ...]


def settle_ties(statement: Judged, schema: Schema) -> Settled | None:
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


def _additions(statement: Judged, schema: Schema) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Where a key list ends in the text, and what is to stand there."""
    root = statement.tree
    ordered = [node for node in root.find_all(exp.Select, exp.SetOperation) if _is_open(node, node is root)]
    tokens = Dialect.get_or_raise("duckdb").tokenize(statement.text) if ordered else []
    for query in ordered:
        own = {_text(key.this).casefold() for key in query.args["order"].expressions}
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
        return tuple(key + direction for key in (map(_text, group.expressions) if are_plain else _output(query)))
    entries = sources(query, schema)
    return tuple(map(_row, entries)) if entries and all(map(_is_stored, entries)) else _output(query)


def _is_stored(entry: FromItem) -> bool:
    """Whether its rows have places: those of a table do, those of a view, whose rows are not counted, do not."""
    return entry.table is not None and entry.table.row_count is not None


def _row(entry: FromItem) -> str:
    return exp.column("rowid", exp.to_identifier(entry.alias, quoted=True)).sql("duckdb")


def _output(query: exp.Expr) -> tuple[str, ...]:
    """The places of the columns of the result, unless a star hides how many there are."""
    items = query.selects if isinstance(query, exp.Query) else []
    return () if any(item.is_star for item in items) else tuple(str(place + 1) for place in range(len(items)))


def _text(node: exp.Expr) -> str:
    return node.sql("duckdb")
