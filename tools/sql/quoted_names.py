"""Names in quotes as people have them in files, and as a model spells them: one name, whatever stands between its words.

A heading such as `Net amount (€)` is written as "Net amount", "net amount (EUR)" or 'Net amount (€)' as well. SQLite takes what
names nothing for a text, and sums it to 0; here it becomes the column that is meant, if exactly one can be. A text that is
summed, grouped by or shown alone is never meant; one that is compared with a column is.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from sqlglot import exp

from tools.schema import Column, Schema
from tools.sql.scope import enclosing, owner, projections, sources

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
        if is_lost and (found := _meant(column, schema)) is not None:
            column.replace(exp.column(found, column.table or None, quoted=True))
    for text in list(tree.find_all(exp.Literal)):
        if text.is_string and _needs_column(text) and (found := _meant(text, schema)) is not None:
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
    known = isinstance(other, exp.Column) and (owner(other, schema) is not None or _meant(other, schema) is not None)
    return parent.expression is node and known


def _meant(node: exp.Expr, schema: Schema) -> str | None:
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
