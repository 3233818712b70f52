"""Templates that compare amounts: with the average, with bounds, with each other and with the whole (shares); what is sold
out, and what occurs more than once."""

from collections.abc import Iterator, Mapping, Sequence

from eval.datasets.templates.asked import Asked, Author, literal, q
from eval.datasets.templates.labels import QUANTITY, STOCK, counted, is_added, is_said
from eval.datasets.templates.tables import path
from eval.datasets.variants.wording import plural, with_article
from tools.linking.word_forms import word_set
from tools.schema import Column, Table

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
