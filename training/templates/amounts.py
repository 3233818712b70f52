"""Templates for amounts, their comparisons, and empty columns.

Templates that compare amounts: with the average, with bounds, with each other and with the whole (shares); what is sold
out, and what occurs more than once.

Templates for amounts: revenue, totals and averages, of all rows and of each group.

Templates for columns that are empty or filled: artists without a website, customers whose city is not known.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isclose

from tools.linking.word_forms import word_set
from tools.schema import Column, Table
from training.templates.conditions import path
from training.templates.labels import (
    PRICE,
    QUANTITY,
    STOCK,
    Asked,
    Author,
    Key,
    counted,
    is_added,
    is_said,
    literal,
    participle,
    q,
)
from training.variants.mistakes import plural, with_article

_COMPARED: Sequence[tuple[frozenset[str], str, str]] = (
    (word_set("price cost fee"), "more expensive", "cheaper"),
    (word_set("age"), "older", "younger"),
    (word_set("height"), "taller", "shorter"),
    (word_set("weight"), "heavier", "lighter"),
    (word_set("length duration distance"), "longer", "shorter"),
    (word_set("capacity area size population"), "larger", "smaller"),
)
_THAN_AVERAGE = (
    "Which {many} are {word} than average? Show their {name}.",
    "{names} of the {many} that are {word} than the average",
    "List the {names} of all {many} that are {word} than the average {one}.",
)
_COUNT_AVERAGE = (
    "How many {many} have {a_label} {side} the average?",
    "Count the {many} with {side}-average {label}.",
    "How many {many} are {side} average in {label}?",
    "Number of {many} whose {label} is {side} average",
)
_SHARE = (
    "What percentage of the {many} have the {label} {value}?",
    "What share of {many} has {value} as {label}, in percent?",
    "What percent of all {many} have {label} {value}?",
    "In percent, how many of the {many} have the {label} {value}?",
    "Percentage of {many} whose {label} is {value}?",
)
_SHARE_STATE = (
    "What percentage of the {many} are {value}?",
    "What share of the {many} is {value}, in percent?",
    "What percent of all {many} are {value}?",
    "Percentage of {value} {many}?",
)
_SHARE_OF = (
    "What percentage of all {many} belong to the {parent} {value}?",
    "What share of the {many} belongs to the {parent} {value}, in percent?",
    "Percentage of {many} that belong to the {parent} called {value}",
)
_NONE_LEFT = {
    "=": (
        "Which {many} are out of stock? Show their {name}.",
        "Which {many} are sold out? List the {names}.",
        "{names} of the {many} that we have none left of",
        "Of which {many} are there none left? Show their {name}.",
    ),
    ">": (
        "Which {many} are in stock? Show their {name}.",
        "{names} of the {many} that are still in stock",
        "List the {names} of {many} that we still have in stock.",
    ),
}
_COUNT_LEFT = {
    "=": ("How many {many} are out of stock?", "How many {many} are sold out?", "Number of {many} with none left"),
    ">": ("How many {many} are in stock?", "How many {many} do we still have in stock?"),
}
_ZERO = ("How many {many} have {a_label} of zero?", "Count the {many} whose {label} is 0.")
_ZERO_COUNTED = ("How many {many} have zero {counted}?", "Count the {many} with 0 {counted}.")
_TWICE = (
    "Which {labels} occur more than once among the {many}?",
    "Are there duplicate {labels} among the {many}? Which ones?",
    "Which {labels} do several {many} share?",
    "{labels} that more than one {one} has",
    "Find the {labels} that appear more than once in the {many}.",
)
_DIFFERENT = (
    "How many different {labels} do the {many} have?",
    "How many distinct {labels} are there among the {many}?",
    "Count the different {labels} of the {many}.",
    "Number of distinct {labels} of {many}",
)
_BOUNDS: Mapping[str, Sequence[str]] = {
    ">=": ("at least {n}", "{n} or more", "not less than {n}"),
    "<=": ("at most {n}", "{n} or less", "no more than {n}"),
    ">": ("over {n}", "more than {n}", "above {n}"),
    "<": ("under {n}", "less than {n}", "below {n}"),
    "BETWEEN": ("between {n} and {m}",),
}
_BOUNDED = (
    "Which {many} have {a_label} of {bound}? Show their {name}.",
    "{names} of {many} with {a_label} of {bound}",
    "What are the {names} of the {many} whose {label} is {bound}?",
)
_BOUNDED_COUNTED = (
    "Which {many} have {bound} {counted}? Show their {name}.",
    "{names} of {many} with {bound} {counted}",
    "What are the {names} of the {many} that have {bound} {counted}?",
)
_COUNT_BOUNDED_COUNTED = ("How many {many} have {bound} {counted}?", "Number of {many} with {bound} {counted}")
_COUNT_BOUNDED = (
    "How many {many} have {a_label} of {bound}?",
    "Number of {many} with {a_label} of {bound}",
    "Count the {many} whose {label} is {bound}.",
)
_BOUND_WORDINGS = {False: (_COUNT_BOUNDED, _BOUNDED), True: (_COUNT_BOUNDED_COUNTED, _BOUNDED_COUNTED)}
_SPREAD = (
    "What is the difference between the highest and the lowest {label} of the {many}?",
    "By how much do the highest and the lowest {label} of the {many} differ?",
    "How far apart are the lowest and the highest {label} of {many}?",
    "Range of the {label} of {many}, highest minus lowest",
)


def measured(author: Author) -> Iterator[tuple[Table, Column, dict[str, str]]]:
    """Each measure with its words. `label` of what is counted is "number of goals", `counted` "goals"."""
    for table in author.tables:
        for column in author.labels.amounts(table):
            said = author.labels.column(table, column.name)
            label = f"number of {said}" if counted(said) else said
            words = {"label": label, "a_label": with_article(label), "counted": said if counted(said) else ""}
            yield table, column, {**author.words(table), **words}


def _averages(author: Author) -> Iterator[Asked]:
    for table, column, words in measured(author):
        sign, side = author.rng.choice(((">", "above"), ("<", "below")))
        where = (
            f"FROM {q(table.name)} WHERE {q(column.name)} {sign} (SELECT AVG({q(column.name)}) FROM {q(table.name)})"
        )
        yield Asked(author.worded(_COUNT_AVERAGE, **words, side=side), f"SELECT COUNT(*) {where}")
        for meant, more, less in _COMPARED if words["name"] else ():
            if words["label"].split()[-1] in meant:
                word = more if sign == ">" else less
                yield Asked(author.worded(_THAN_AVERAGE, **words, word=word), f"SELECT {author.shown(table)} {where}")


def _shares(author: Author) -> Iterator[Asked]:
    """In percent: of the rows with a value, and of those that belong to one parent."""
    for table in author.tables:
        for column in author.labels.texts(table):
            values, label = author.classes(table, column.name, 8), author.labels.column(table, column.name)
            if all(len(value) <= 3 for value in values) or (table.row_count or 0) <= len(values):
                continue
            value = author.rng.choice(values)
            state = label.split()[-1] in ("status", "state", "gender", "sex") and value.isalpha() and len(value) > 2
            said = {**author.words(table), "label": label, "value": value.lower() if state else value}
            yield _share(author.worded(_SHARE_STATE if state else _SHARE, **said), q(column.name), value, q(table.name))
    for key in author.labels.references():
        name = author.labels.name(key.parent) if author.labels.other_side(key) is None else None
        for own in author.values(key.parent, name.name, 3) if name else ():
            said = {**author.words(key.child), "parent": author.labels.one(key.parent), "value": str(own)}
            shown = f"{q(key.parent.name)}.{q(name.name if name else '')}"
            yield _share(author.worded(_SHARE_OF, **said), shown, own, path([key]))


def _share(text: str, column: str, value: object, source: str) -> Asked:
    counted = f"SUM(CASE WHEN {column} = {literal(value)} THEN 1 ELSE 0 END)"
    return Asked(text, f"SELECT 100.0 * {counted} / COUNT(*) FROM {source}")


def _left(author: Author) -> Iterator[Asked]:
    """What is in stock and what is not, and zeros of other things that are counted."""
    for table, column, words in measured(author):
        said = set(words["label"].split())
        stock = bool(said & STOCK) and bool(said & (QUANTITY | {"stock", "inventory"}))
        for sign in ("=", ">") if stock else ():
            where = f"FROM {q(table.name)} WHERE {q(column.name)} {sign} 0"
            yield Asked(author.worded(_COUNT_LEFT[sign], **words), f"SELECT COUNT(*) {where}", may_be_empty=True)
            if words["name"]:
                text = author.worded(_NONE_LEFT[sign], **words)
                yield Asked(text, f"SELECT {author.shown(table)} {where}", may_be_empty=True)
        if not stock and is_added(words["label"]):
            zero = f"SELECT COUNT(*) FROM {q(table.name)} WHERE {q(column.name)} = 0"
            yield Asked(author.worded(_ZERO_COUNTED if words["counted"] else _ZERO, **words), zero)


def _repeated(author: Author) -> Iterator[Asked]:
    """What occurs more than once, where most values do not, and how many different values there are."""
    for table in author.tables:
        numbers, name = author.labels.amounts(table), author.labels.name(table)
        for column in [*([name] if name else []), *author.labels.texts(table)]:
            label = author.labels.column(table, column.name)
            if column in numbers or "id" in label.split() or not is_said(label):
                continue
            words = {**author.words(table), "label": label, "labels": plural(label)}
            place = f"FROM {q(table.name)}"
            if column == name or not author.classes(table, column.name, 12):
                twice = f"SELECT {q(column.name)} {place} GROUP BY {q(column.name)} HAVING COUNT(*) > 1"
                yield Asked(author.worded(_TWICE, **words), twice)
            yield Asked(author.worded(_DIFFERENT, **words), f"SELECT COUNT(DISTINCT {q(column.name)}) {place}")


def _ranges(author: Author) -> Iterator[Asked]:
    """At least, at most, under, over and between, with numbers from the column."""
    for table, column, words in measured(author):
        numbers = sorted(value for value in author.values(table, column.name) if isinstance(value, int | float))
        if len(numbers) < 3:
            continue
        low, high = sorted(author.rng.sample(numbers, 2))
        sign = author.rng.choice(tuple(_BOUNDS))
        bound = author.rng.choice(_BOUNDS[sign]).format(n=_figure(low), m=_figure(high))
        test = f"{sign} {_figure(low)}" + (f" AND {_figure(high)}" if sign == "BETWEEN" else "")
        where = f"FROM {q(table.name)} WHERE {q(column.name)} {test}"
        counts, lists = _BOUND_WORDINGS[bool(words["counted"])]
        yield Asked(author.worded(counts, **words, bound=bound), f"SELECT COUNT(*) {where}")
        if words["name"]:
            named = f"SELECT {author.shown(table)} {where}"
            yield Asked(author.worded(lists, **words, bound=bound), named, table.name)


def _figure(number: float) -> str:
    return literal(int(number) if float(number).is_integer() else number)


def _spreads(author: Author) -> Iterator[Asked]:
    for table, column, words in measured(author):
        spread = f"SELECT MAX({q(column.name)}) - MIN({q(column.name)}) FROM {q(table.name)}"
        yield Asked(author.worded(_SPREAD, **words), spread)


COMPARISONS = (_averages, _shares, _left, _repeated, _ranges, _spreads)


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


_COUNTED = {
    "NULL": (
        "How many {many} have no {label}?",
        "How many {many} are there without {a_label}?",
        "Count the {many} whose {label} is not known.",
        "For how many {many} is the {label} missing?",
        "What is the number of {many} with no {label}?",
    ),
    "NOT NULL": (
        "How many {many} have {a_label}?",
        "Count the {many} with {a_label}.",
        "For how many {many} is the {label} known?",
        "How many {many} are there whose {label} is given?",
    ),
}
_LISTED = {
    "NULL": (
        "What are the {names} of the {many} without {a_label}?",
        "List the {names} of all {many} that have no {label}.",
        "Which {many} have no {label}? Show their {name}.",
        "Show the {name} of each {one} whose {label} is unknown.",
        "{many} with a missing {label}: {names} please",
    ),
    "NOT NULL": (
        "What are the {names} of the {many} that have {a_label}?",
        "List the {names} of {many} whose {label} is known.",
        "Which {many} have {a_label}? Show their {name}.",
    ),
}
_HAPPENED = {  # for columns such as returned_on
    "NULL": (
        "How many {many} have not been {done} yet?",
        "Count the {many} that were never {done}.",
        "How many {many} were not {done}?",
    ),
    "NOT NULL": ("How many {many} have been {done}?", "Count the {many} that were {done}."),
}
_VALUES = ("Which {labels} are there?", "What are the different {labels} of the {many}?", "List all {labels} we have.")
MOST_BLANKS = 4  # columns of a table
SHORTEST = 3  # letters of a label that people would say


def blanks(author: Author) -> Iterator[Asked]:
    """Questions on columns that need not be filled. Their results may be empty: the cells of test data often are."""
    for table in author.tables:
        columns = _fillable(author, table)
        for column in author.rng.sample(columns, min(MOST_BLANKS, len(columns))):
            yield from _blank(author, table, column)


def _fillable(author: Author, table: Table) -> list[Column]:
    labels, name = author.labels, author.labels.name(table)
    columns = [*labels.texts(table), *labels.measures(table), *labels.dates(table)]
    free = [column for column in columns if column.nullable and column != name and not column.primary_key]
    return [column for column in free if len(labels.column(table, column.name)) >= SHORTEST]


def _blank(author: Author, table: Table, column: Column) -> Iterator[Asked]:
    labels, name = author.labels, author.labels.name(table)
    label = labels.column(table, column.name)
    named = labels.column(table, name.name) if name else ""
    parts = {"one": labels.one(table), "many": labels.many(table), "name": named, "names": plural(named)}
    parts |= {"label": label, "a_label": with_article(label), "labels": plural(label)}
    done = participle(label)
    for state in ("NULL", "NOT NULL"):
        where = f"FROM {q(table.name)} WHERE {q(column.name)} IS {state}"
        wordings = _HAPPENED[state] if done else _COUNTED[state]
        yield Asked(author.worded(wordings, **parts, done=done), f"SELECT COUNT(*) {where}", may_be_empty=True)
        if name is not None and not done:
            text = author.worded(_LISTED[state], **parts)
            yield Asked(text, f"SELECT {q(name.name)} {where}", may_be_empty=True)
    if column in labels.texts(table):
        distinct = f"SELECT DISTINCT {q(column.name)} FROM {q(table.name)}"
        yield Asked(author.worded(_VALUES, **parts), distinct, may_be_empty=True)
