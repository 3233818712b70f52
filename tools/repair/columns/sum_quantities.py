"""Adds up quantities where the question asks how many were sold: a line of an order holds several copies."""

import re

from sqlglot import exp

from tools.linking.word_forms import keys, name_stems, name_words, stem
from tools.schema import Column, Schema, Table
from tools.sql.only_column import only_column
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import is_number, sources, type_kind

_SOLD = re.compile(r"\bhow many (?P<what>(?:\w+ ){0,5}?\w+) (?:were|was|have|has|had|did|do|does|are)\b.*", re.I)
_TRADE = re.compile(r"\b(?:sold|sell|bought|buy|purchased?|ordered)\b", re.I)
_AMOUNTS = frozenset({"quantity", "qty"})


def sum_quantities(sql: str, schema: Schema, question: str) -> str | None:
    """The statement with SUM of the only quantity in FROM in place of its only COUNT, which is all that it shows; None unless
    the question asks how many of something were sold or bought, and not how many rows there are.

    >>> from tools.schema import Column, Table
    >>> line = Table("order_lines", (Column("format", "TEXT"), Column("quantity", "INTEGER")))
    >>> sql = "SELECT COUNT(*) FROM order_lines WHERE format = 'vinyl'"
    >>> sum_quantities(sql, Schema((line,), "sqlite"), "How many vinyl records were sold?")
    "SELECT SUM(quantity) FROM order_lines WHERE format = 'vinyl'"
    """
    said = _SOLD.search(question)
    trees = parse_or_nothing(sql, schema.dialect) if said and _TRADE.search(said.group()) else []
    select = trees[0] if len(trees) == 1 else None
    if said is None or not isinstance(select, exp.Select) or len(select.selects) != 1 or select.args.get("group"):
        return None
    count, found = select.selects[0].unalias(), only_column(sources(select, schema), _is_quantity)
    if not isinstance(count, exp.Count) or isinstance(count.this, exp.Distinct) or found is None:
        return None
    owner, quantity = found
    if name_stems(owner.name) & {stem(word) for word in keys(said["what"])}:
        return None
    counted = count.this
    if isinstance(counted, exp.Column) and not (counted.name.lower() == quantity.name.lower() or counted.is_star):
        return None
    count.replace(exp.Sum(this=quantity))
    return select.sql(schema.dialect)


def _is_quantity(table: Table, column: Column) -> bool:
    return is_number(type_kind(column.type)) and not _AMOUNTS.isdisjoint(name_words(column.name))
