"""Templates for amounts: revenue, totals and averages, of all rows and of each group."""

from collections.abc import Iterator, Mapping, Sequence
from math import isclose

from eval.datasets.templates.asked import Asked, Author, q
from eval.datasets.templates.comparisons import COMPARISONS, measured
from eval.datasets.templates.labels import PRICE, QUANTITY, Key, is_added
from eval.datasets.templates.tables import path
from eval.datasets.variants.wording import plural
from tools.linking.word_forms import word_set
from tools.schema import Column, Table

MOST = 4  # questions of each meaning on a database
_NO_FACTOR = word_set("range total max min stock discount retail amount per rate inventory received rejected")
_NOT_SOLD = word_set("purchase inventory stock supply supplier vendor")
_NO_GROUP = word_set("first last middle email address phone zip postal url description details comments")
_BUYER = word_set("customer client member guest buyer user company")

_REVENUE = (
    "What is our total revenue?",
    "How much revenue did all {many} bring in together?",
    "How much money did we make with all {many}?",
    "What are the total sales over all {many}, in money?",
    "Total revenue from all {many}",
)
_REVENUE_EACH = (
    "What is the revenue of each {parent}? Show its {name}.",
    "How much revenue did we make with each {parent}?",
    "How much money did each {parent} bring in?",
    "Total sales by {parent}",
    "Revenue per {parent}",
    "Show the {names} of the {parents} with the revenue of each.",
)
_REVENUE_TOP = (
    "Which {parent} has the highest revenue?",
    "Which {parent} brought in the most money?",
    "What is the {name} of the {parent} with the highest total sales?",
    "{name} of the {parent} that we earned the most with",
)
_SPENT_EACH = (
    "How much did each {parent} spend in total?",
    "What is the total spending of each {parent}?",
    "Revenue by {parent}",
    "Show the {name} and the total spending of each {parent}.",
)
_SPENT_TOP = (
    "Which {parent} spent the most?",
    "Which {parent} spent the most money in total?",
    "Our biggest {parent} by revenue?",
)
_TOTAL = (
    "What is the total {label} of all {many}?",
    "Add up the {label} of all {many}.",
    "Total {label} over all {many}?",
    "What does the {label} of all {many} add up to?",
)
_PER: Mapping[str, Sequence[str]] = {
    "SUM": (
        "What is the total {label} of the {many} of each {group}?",
        "Total {label} of {many} by {group}",
        "For each {group}, add up the {label} of its {many}.",
        "Show every {group} and the total {label} of its {many}.",
        "{label} of {many} per {group}, summed up",
    ),
    "AVG": (
        "What is the average {label} of the {many} of each {group}?",
        "Average {label} of {many} by {group}",
        "For each {group}, what is the mean {label} of its {many}?",
        "Show every {group} and the average {label} of its {many}.",
    ),
}
_RANKED = (
    "{total} {label} of {many} by {group}, highest first",
    "Rank the {groups} by the {total} {label} of their {many}, highest first. Show the {total}, too.",
)
_TOP = (
    "Which {group} has the highest {total} {label} of {many}?",
    "For which {group} is the {total} {label} of its {many} the highest?",
    "{group} with the highest {total} {label} of {many}?",
)


def amounts(author: Author) -> Iterator[Asked]:
    """Questions of each meaning on all tables that it fits, a few of each."""
    yield from author.some([_revenue], 2 * MOST)  # few databases have prices and quantities
    yield from author.some((_totals, _per, *COMPARISONS), MOST)


def _revenue(author: Author) -> Iterator[Asked]:
    """Price times quantity: of all lines, and for each row of a table that the lines lead to."""
    for line in author.tables:
        found = _factors(author, line)
        if found is None:
            continue
        value, priced = found
        chains = _chains(author, line)
        source = path(priced) if priced else q(line.name)
        yield Asked(author.worded(_REVENUE, **author.words(line)), f"SELECT SUM({value}) FROM {source}")
        for chain in chains:
            joined = chain if not priced or priced[0] in chain else [*priced, *chain]
            if len({each.parent.name for each in joined}) < len(joined):
                continue
            yield from _revenue_each(author, f"SUM({value})", chain[-1].parent, chain[-1].id, path(joined))


def _factors(author: Author, line: Table) -> tuple[str, list[Key]] | None:
    """The product of a line's two columns, or of its own and of the table that its key leads to, and that key."""
    sold = not _NOT_SOLD & set(author.labels.one(line).split())
    count = _factor(author, line, QUANTITY) if sold else None
    keys = [key for key in author.labels.references() if key.child.name == line.name]
    priced = [(line, list[Key]()), *((key.parent, [key]) for key in keys)]
    for table, chain in priced if count else ():
        price = _factor(author, table, PRICE)
        if price and count:
            return f"{q(table.name)}.{q(price.name)} * {q(line.name)}.{q(count.name)}", chain
    return None


def _factor(author: Author, table: Table, words: frozenset[str]) -> Column | None:
    labels = (
        (column, set(author.labels.column(table, column.name).split())) for column in author.labels.amounts(table)
    )
    fitting = (column for column, said in labels if said & words and not said & _NO_FACTOR)
    return next(fitting, None)


def _chains(author: Author, line: Table) -> list[list[Key]]:
    """One key or two, from the lines to a table whose rows have names."""
    keys = author.labels.references()
    one = [[key] for key in keys if key.child.name == line.name]
    two = [[*a, b] for a in one for b in keys if a[0].parent.name == b.child.name and b.parent.name != line.name]
    return [chain for chain in [*one, *two] if author.labels.shown(chain[-1].parent)]


def _revenue_each(author: Author, total: str, parent: Table, key: str, source: str) -> Iterator[Asked]:
    words = author.words(parent)
    said = {**words, "parent": words["one"], "parents": words["many"]}
    buyer = bool(_BUYER & set(words["one"].split()))
    shown = author.shown(parent, of_several=True)
    grouped = f"FROM {source} GROUP BY {q(parent.name)}.{q(key)}"
    each, top = (_SPENT_EACH, _SPENT_TOP) if buyer else (_REVENUE_EACH, _REVENUE_TOP)
    yield Asked(author.worded(each, **said), f"SELECT {shown}, {total} {grouped}")
    if not _tied(author, f"SELECT {total} {grouped} ORDER BY {total} DESC LIMIT 2"):
        yield Asked(author.worded(top, **said), f"SELECT {shown} {grouped} ORDER BY {total} DESC LIMIT 1")


def _tied(author: Author, first_two: str) -> bool:
    """Whether the first of two rows is not well defined. Without rows nothing is tied."""
    rows = author.rows(first_two)
    numbers = [row[0] for row in rows if isinstance(row[0], int | float)]
    return author.labels.database.has_rows and (len(numbers) < 2 or isclose(numbers[0], numbers[1]))


def _totals(author: Author) -> Iterator[Asked]:
    for table, column, words in measured(author):
        if is_added(words["label"]):
            yield Asked(author.worded(_TOTAL, **words), f"SELECT SUM({q(column.name)}) FROM {q(table.name)}")


def _groups(author: Author, table: Table) -> Iterator[tuple[str, str, str, str]]:
    """What a table's rows are grouped by: what it is called, the column to show, the key, and FROM."""
    for column in author.labels.texts(table):
        label = author.labels.column(table, column.name)
        if not _NO_GROUP & set(label.split()) and author.classes(table, column.name, 20) and (table.row_count or 0) > 3:
            yield label, q(column.name), q(column.name), q(table.name)
    for key in author.labels.references():
        shown = author.shown(key.parent, of_several=True)
        if key.child.name == table.name and shown:
            yield author.labels.one(key.parent), shown, f"{q(key.parent.name)}.{q(key.id)}", path([key])


def _per(author: Author) -> Iterator[Asked]:
    """A total or an average for each group, in any order, ranked, and the group at the top."""
    for table, column, words in measured(author):
        for group, shown, by, source in _groups(author, table):
            function = author.rng.choice(("SUM", "AVG")) if is_added(words["label"]) else "AVG"
            total = f"{function}({q(table.name)}.{q(column.name)})"
            names = {"group": group, "groups": plural(group), "total": {"SUM": "total", "AVG": "average"}[function]}
            grouped = f"FROM {source} GROUP BY {by}"
            ranked = f"{grouped} ORDER BY {total} DESC"
            yield Asked(author.worded(_PER[function], **words, **names), f"SELECT {shown}, {total} {grouped}")
            yield Asked(author.worded(_RANKED, **words, **names), f"SELECT {shown}, {total} {ranked}")
            if not _tied(author, f"SELECT {total} {ranked} LIMIT 2"):
                yield Asked(author.worded(_TOP, **words, **names), f"SELECT {shown} {ranked} LIMIT 1")
