"""Says in one line what a query did, for who reads no SQL: what was counted, in which rows, and what of it is shown; and asks
which of several queries is meant, by the part of that line that tells them apart best."""

from collections.abc import Iterator, Sequence
from math import log2
from typing import TypedDict

from sqlglot import exp

from agent.presentation.headings import heading, sort_key
from agent.presentation.sentence import counted, plural, words
from tools.schema import Schema
from tools.sql.scope import one_value, parse_or_nothing, sources
from tools.sql.spelling import in_words

_VERBS: dict[type[exp.Expr], str] = {
    exp.Count: "counted",
    exp.Sum: "added up",
    exp.Avg: "averaged",
    exp.Min: "looked up",
    exp.Max: "looked up",
}
_COMPARED: dict[type[exp.Expr], str] = {
    exp.EQ: "is",
    exp.NEQ: "is not",
    exp.GT: "is more than",
    exp.GTE: "is at least",
    exp.LT: "is less than",
    exp.LTE: "is at most",
}
_FEW = 3
"""Columns that are named one by one."""


def what_was_done(sql: str, schema: Schema) -> str:
    """The line; a description by the query's own words where it is no plain SELECT, and nothing where it cannot be read."""
    select = _tree(sql, schema)
    if not isinstance(select, exp.Select):
        return in_words(sql, schema.dialect) if select is not None else ""
    what, groups, conditions, shown, _ = _aspects(select, schema)
    told = "; ".join(filter(None, (f"{what} {groups}".rstrip(), conditions, shown)))
    return f"{told[:1].upper()}{told[1:]}."


def _tree(sql: str, schema: Schema) -> exp.Expr | None:
    trees = parse_or_nothing(sql, schema.dialect)
    return trees[0] if len(trees) == 1 else None


def difference(sql: str, other: str, schema: Schema) -> str:
    """What a query does that another does not, in words; all that it does where no part differs."""
    own, others = what_was_done(sql, schema), what_was_done(other, schema).rstrip(".").casefold().split("; ")
    parts = [part for part in own.rstrip(".").split("; ") if part.casefold() not in others]
    told = "; ".join(parts) or own.rstrip(".")
    return f"{told[:1].lower()}{told[1:]}"


class Option(TypedDict):
    """Readings of a question that say the same at the place that is asked about, by the best of them. votes: of them all."""

    label: str
    result: str
    sql: str
    votes: int


class WhichReading(TypedDict):
    """What a person is asked where readings of a question give other rows; the first option is the answer's own."""

    message: str
    options: list[Option]


MOST_OPTIONS = 3


def which_reading(readings: Sequence[tuple[str, str, int]], schema: Schema) -> WhichReading | None:
    """The question that tells readings apart best: it names the difference that divides their votes most evenly (by its
    entropy). None where no difference can be put into words.

    readings: SQL, result in short, and votes of each; the answer's own first, then the better ones before the others.
    """
    trees = [_tree(sql, schema) for sql, _, _ in readings]
    selects = [tree for tree in trees if isinstance(tree, exp.Select)]
    told = [_aspects(select, schema) for select in selects]
    if len(told) < len(readings):
        told = [(what_was_done(sql, schema),) for sql, _, _ in readings]
    votes = [max(1, each) for _, _, each in readings]
    divided = [_divided(phrases, votes) for phrases in zip(*told, strict=True)]
    place = max(range(len(divided)), key=lambda place: _evenness(divided[place], votes), default=0)
    if not divided or len(divided[place]) < 2:
        return None
    options = []
    for block in divided[place]:
        sql, result, _ = readings[block[0]]
        label = told[block[0]][place] or _UNSAID[place]
        options.append(Option(label=label, result=result, sql=sql, votes=sum(votes[each] for each in block)))
    return WhichReading(
        message=f"Which do you mean: {', or '.join(each['label'] for each in options)}?", options=options
    )


def _divided(phrases: Sequence[str], votes: Sequence[int]) -> list[list[int]]:
    """The places of readings with the same phrase together: the first one's, then those with the most votes."""
    blocks: dict[str, list[int]] = {}
    for place, phrase in enumerate(phrases):
        blocks.setdefault(phrase.casefold(), []).append(place)
    own, *others = blocks.values()
    others.sort(key=lambda block: -sum(votes[each] for each in block))
    return [own, *others[: MOST_OPTIONS - 1]]


def _evenness(blocks: Sequence[Sequence[int]], votes: Sequence[int]) -> float:
    """The entropy in bits of which block is meant, if a vote is a chance; what no block has counts as one more."""
    counts = [sum(votes[each] for each in block) for block in blocks]
    shares = [count / sum(votes) for count in (*counts, sum(votes) - sum(counts)) if count]
    return -sum(share * log2(share) for share in shares)


_UNSAID = ("", "in all", "all rows", "all of them", "")


def _aspects(select: exp.Select, schema: Schema) -> tuple[str, ...]:
    """What is computed or listed, for which groups, in which rows, which of them are shown, and the tables that are read;
    empty where the query does not say it, for which there is `_UNSAID`."""
    measured = _measured(select, schema)
    tables = [plural(words(source.table.name)) for source in sources(select, schema) if source.table]
    return (
        measured or _listed(select, schema),
        _groups(select, schema) if measured else "",
        _conditions(select, schema),
        _most(select, schema),
        f"from {_and(sorted(tables))}" if tables else "",
    )


def _measured(select: exp.Select, schema: Schema) -> str:
    """What was computed; empty if nothing was."""
    key = sort_key(select)
    items = [*select.expressions, *([key] if key is not None else [])]
    return _and(list(dict.fromkeys(part for item in items for part in _parts(item, schema))))


def _groups(select: exp.Select, schema: Schema) -> str:
    group = select.args.get("group")
    by = [heading(select.expressions[int(each.name) - 1] if _is_place(each, select) else each, schema)
          for each in (group.expressions if group else ())]  # fmt: skip
    return f"for each {_and(by)}" if by else ""


def _is_place(node: exp.Expr, select: exp.Select) -> bool:
    return isinstance(node, exp.Literal) and node.name.isdigit() and 0 < int(node.name) <= len(select.expressions)


def _parts(item: exp.Expr, schema: Schema) -> Iterator[str]:
    """The computations of one column: "counted reviews", "averaged list price"."""
    for each in item.find_all(*_VERBS):
        verb, what = _VERBS[type(each)], heading(each, schema)
        if each.find_ancestor(exp.Subquery) is None:
            yield f"{verb} {what.removeprefix('number of ').removeprefix('total ').removeprefix('average ')}"


def _listed(select: exp.Select, schema: Schema) -> str:
    tables = [plural(words(source.table.name)) for source in sources(select, schema) if source.table]
    of = f" of {_and(tables)}" if tables else ""
    if any(each.is_star for each in select.expressions):
        return f"listed all columns{of}"
    columns = [heading(one_value(each) if not each.alias else each, schema) for each in select.expressions]
    named = _and(columns) if len(columns) <= _FEW else counted(len(columns), "columns")
    return f"listed {'the different ' if select.args.get('distinct') else ''}{named}{of}"


def _conditions(select: exp.Select, schema: Schema) -> str:
    found = [each.this for each in (select.args.get("where"), select.args.get("having")) if each is not None]
    return f"only where {' and '.join(_condition(each, schema) for each in found)}" if found else ""


def _condition(node: exp.Expr, schema: Schema) -> str:
    if isinstance(node, exp.And | exp.Or):
        word = "and" if isinstance(node, exp.And) else "or"
        return f"{_condition(node.left, schema)} {word} {_condition(node.right, schema)}"
    if isinstance(node, exp.Paren):
        return f"({_condition(node.this, schema)})"
    if compared := _COMPARED.get(type(node)):
        assert isinstance(node, exp.Binary)
        if not node.find(exp.Select):
            return f"{heading(node.left, schema)} {compared} {_value(node.right, schema)}"
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
        return f"{heading(node.this, schema)} is empty"
    if isinstance(node, exp.Not) and isinstance(node.this, exp.Is):
        return f"{heading(node.this.this, schema)} is not empty"
    if isinstance(node, exp.Between):
        low, high = (_value(node.args[part], schema) for part in ("low", "high"))
        return f"{heading(node.this, schema)} is from {low} to {high}"
    return node.sql(schema.dialect)


def _value(node: exp.Expr, schema: Schema) -> str:
    if isinstance(node, exp.Literal):
        return f"“{node.name}”" if node.is_string else node.name
    return heading(node, schema)


def _most(select: exp.Select, schema: Schema) -> str:
    """Which rows of all are shown, and in which order."""
    order, limit = select.args.get("order"), select.args.get("limit")
    number = limit.expression.name if limit is not None and limit.expression is not None else ""
    key = order.expressions[0] if order else None
    if key is None:
        return f"{number} of them" if number.isdigit() else ""
    by = key.this
    by = heading(select.expressions[int(by.name) - 1] if _is_place(by, select) else by, schema)
    descending = bool(key.args.get("desc"))
    if number == "1":
        return f"the one with the {'highest' if descending else 'lowest'} {by}"
    if number.isdigit():
        return f"the {number} with the {'highest' if descending else 'lowest'} {by}"
    return f"sorted by {by}, {'highest' if descending else 'lowest'} first"


def _and(parts: list[str]) -> str:
    return "".join(parts) if len(parts) < 2 else f"{', '.join(parts[:-1])} and {parts[-1]}"
