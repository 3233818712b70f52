"""Makes a follow-up question: its SQL is the first question's with one change, its words come from templates.

The first query must be one SELECT without set operations, so that the meaning of the change is certain. Callers must still
run the result.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from sqlglot import exp

from eval.datasets.gold_sql import identifier, relations
from tools.linking.word_forms import name_words
from tools.schema import Column, Schema, Table
from tools.sql.scope import is_number, type_kind

Change = Callable[[exp.Select, Schema, Random], str | None]
"""Changes the query in place and returns the question; None if the change does not apply."""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The second question, its query in the style, and the kind of change that it asks for."""

    text: str
    tree: exp.Query
    kind: str


def follow_up(
    tree: exp.Query, schema: Schema, rng: Random, changes: Mapping[str, Change] | None = None
) -> FollowUp | None:
    """A follow-up of a query in the style, by one of the `changes` (default: CHANGES); None if none applies."""
    changes = CHANGES if changes is None else changes
    if not isinstance(tree, exp.Select) or tree.args.get("with_"):
        return None
    for kind in rng.sample(list(changes), len(changes)):
        copy = tree.copy()
        assert isinstance(copy, exp.Select)
        text = changes[kind](copy, schema, rng)
        if text is not None and copy != tree:
            return FollowUp(text, copy, kind)
    return None


def add_filter(select: exp.Select, schema: Schema, rng: Random) -> str | None:
    """Add a condition on a column with few values."""
    if _has(select, "limit", "having"):
        return None
    asked = {column.name for where in select.find_all(exp.Where) for column in where.find_all(exp.Column)}
    every = [(table, column) for table, column in _columns(select, schema) if column.name not in asked]
    choices = [
        (table, column) for table, column in every if column.samples and not is_key(column) and _is_short(column)
    ]
    if not choices:
        return None
    table, column = rng.choice(choices)
    value = rng.choice(column.samples)
    number = is_number(type_kind(column.type))
    literal = exp.Literal.number(value) if number and _is_numeric(value) else exp.Literal.string(value)
    condition = exp.EQ(this=_reference(select, table, column), expression=literal)
    select.where(condition, copy=False)
    words = {"column": spoken(column.name), "value": value}
    return rng.choice(FILTER).format(**words)


def _is_numeric(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdigit()


def change_aggregate(select: exp.Select, schema: Schema, rng: Random) -> str | None:
    """Replace an aggregate by another, such as the mean by the maximum."""
    if len(select.expressions) != 1 or _has(select, "group", "having"):
        return None
    node = select.expressions[0].unalias()
    if not isinstance(node, exp.Sum | exp.Avg | exp.Max | exp.Min) or not isinstance(node.this, exp.Column):
        return None
    kind, word = rng.choice([pair for pair in AGGREGATES if not isinstance(node, pair[0])])
    select.set("expressions", [kind(this=node.this.copy())])
    return rng.choice(AGGREGATE).format(aggregate=word)


def count_rows(select: exp.Select, schema: Schema, rng: Random) -> str | None:
    """Count the rows of the list."""
    if _has(select, "group", "having", "limit", "distinct") or any(select.find_all(exp.AggFunc)):
        return None
    select.set("expressions", [exp.Count(this=exp.Star())])
    select.set("order", None)
    return rng.choice(COUNT)


def sort(select: exp.Select, schema: Schema, rng: Random) -> str | None:
    """Sort the rows by a column."""
    if _has(select, "order", "limit", "group", "having", "distinct") or any(select.find_all(exp.AggFunc)):
        return None
    choices = _columns(select, schema)
    if not choices:
        return None
    table, column = rng.choice(choices)
    descending = rng.random() < 0.5
    select.order_by(_key(_reference(select, table, column), descending), copy=False)
    words = {"column": spoken(column.name), "direction": rng.choice(DESCENDING if descending else ASCENDING)}
    return rng.choice(SORT).format(**words)


def _key(column: exp.Column, descending: bool) -> exp.Ordered:
    """A sort key with SQLite's order of NULLs, so that the SQL needs no NULLS clause."""
    return exp.Ordered(this=column, desc=descending, nulls_first=not descending)


def limit(select: exp.Select, schema: Schema, rng: Random) -> str | None:
    """Keep the first few rows of a sorted list, or one more row than was asked for."""
    if not _has(select, "order"):
        return None
    number, texts = rng.randint(2, 5), TOP if _has(select, "limit") else FIRST
    select.limit(number, copy=False)
    return rng.choice(texts).format(number=rng.choice((str(number), NUMBERS[number])))


def group(select: exp.Select, schema: Schema, rng: Random) -> str | None:
    """Compute an aggregate for each value of a column."""
    if _has(select, "group", "having", "limit", "order") or len(select.expressions) != 1:
        return None
    choices = [(table, column) for table, column in _columns(select, schema) if not is_key(column)]
    if not isinstance(select.expressions[0].unalias(), exp.AggFunc) or not choices:
        return None
    table, column = rng.choice(choices)
    select.set("expressions", [_reference(select, table, column), *select.expressions])
    select.group_by(_reference(select, table, column), copy=False)
    return rng.choice(GROUP).format(column=spoken(column.name))


CHANGES: Mapping[str, Change] = {
    "filter": add_filter,
    "aggregate": change_aggregate,
    "count": count_rows,
    "sort": sort,
    "limit": limit,
    "group": group,
}
AGGREGATES: tuple[tuple[type[exp.AggFunc], str], ...] = (
    (exp.Sum, "total"),
    (exp.Avg, "average"),
    (exp.Max, "maximum"),
    (exp.Min, "minimum"),
)
FILTER = (
    "Only those whose {column} is {value}.",
    "Just the ones with {column} {value}",
    "And where the {column} is {value}?",
    "What about those with {value} as {column}?",
    "Keep only {column} {value}.",
    "now the same, but only for {column} {value}",
)
AGGREGATE = ("And the {aggregate}?", "What is the {aggregate} instead?", "Now the {aggregate}.", "show the {aggregate}")
COUNT = ("How many are there?", "How many is that?", "Count them.", "just give me the number of them", "And how many?")
SORT = (
    "Sort them by {column} in {direction} order.",
    "Order that by {column}, {direction}.",
    "the same sorted by {column} {direction}",
    "Can you list them by {column} in {direction} order?",
)
ASCENDING, DESCENDING = ("ascending",), ("descending",)
FIRST = (
    "Only the first {number}.",
    "Show just the first {number}.",
    "What are the top {number}?",
    "the first {number} please",
)
TOP = ("And the top {number}?", "Show the first {number} instead.", "What are the first {number}?")
GROUP = (
    "Break that down by {column}.",
    "And for each {column}?",
    "Show it per {column}.",
    "What is it for each {column}?",
    "split by {column}",
)
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}


def _has(select: exp.Select, *parts: str) -> bool:
    return any(select.args.get(part) for part in parts)


def _columns(select: exp.Select, schema: Schema) -> list[tuple[exp.Expr, Column]]:
    """Every column of the query's own tables; none if one of its sources is a subquery."""
    return list(_owned(relations(select), schema))


def _owned(entries: list[exp.Expr], schema: Schema) -> Iterator[tuple[exp.Expr, Column]]:
    tables = [(entry, schema.table(entry.name)) for entry in entries if isinstance(entry, exp.Table)]
    for entry, table in tables if len(tables) == len(entries) else ():
        for column in table.columns if isinstance(table, Table) else ():
            yield entry, column


def _reference(select: exp.Select, entry: exp.Expr, column: Column) -> exp.Column:
    """The column as the style writes it."""
    qualifier = identifier(entry.alias_or_name) if len(relations(select)) > 1 else None
    return exp.Column(this=identifier(column.name), table=qualifier)


def is_key(column: Column) -> bool:
    """Whether the column only identifies the row."""
    return column.primary_key or (name_words(column.name) or ["id"])[-1] in ("id", "code", "number", "key")


def _is_short(column: Column) -> bool:
    return all(len(sample) <= 30 for sample in column.samples)


def spoken(name: str) -> str:
    """A table's or column's name as a person says it."""
    return " ".join(word for word in name_words(name) if word) or name
