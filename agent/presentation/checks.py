"""Finds what speaks against an answer: its result does not have the form that the question asks for, or a number of the
question is compared in another unit. Needs no model.
"""

import re
from collections.abc import Collection, Iterator

from sqlglot import exp

from agent.presentation.shown import Shown
from tools.linking.match_values import in_one_spelling
from tools.linking.mentions import with_plain_numbers
from tools.linking.word_forms import fold, keys, name_stems, name_words, other_words, split, stands_in, stem, word_set
from tools.schema import Schema
from tools.sql.scope import parse_or_nothing

_MOST = re.compile(r"\b(?:most|least|fewest|highest|lowest|largest|smallest|best|worst|top|longest|shortest)\b", re.I)
_SHARE = re.compile(
    r"\b(?:what|which)\s+(?:share|percentage|percent|proportion|fraction)\b|\bshare of\b|\bpercentage of\b", re.I
)
_AVERAGE = re.compile(r"\b(?:average|mean)\s+\w+", re.I)
_EACH = re.compile(r"\b(?:for|by|in|of|per)\s+(?:each|every)\s+(\w+)|\bof\s+every\s+(\w+)", re.I)
_PER = re.compile(r"\bper\s+(?!cent\b|capita\b|hundred\b)(\w+)", re.I)
_FEW = 6
_SHARE_WORDS = {"share", "percentage", "percent", "proportion", "fraction", "ratio", "rate", "pct"}
_AVERAGE_WORDS = {"average", "avg", "mean"}
_MADE_UP = word_set("revenue revenues turnover sales income earnings proceeds takings profit profits margin margins")
"""Amounts that are mostly computed from others, `price * quantity`, where no column is called so."""
_DIFFERENCES = word_set("profit profits margin margins")
_MONEY = word_set("amount amt total paid payment fee")


def result_doubts(question: str, sql: str, shown: Shown, schema: Schema, explained: str = "") -> list[str]:
    """What is doubtful, a sentence each. `explained`: words of the question that were taught, or are values."""
    trees = parse_or_nothing(sql, schema.dialect)
    if len(trees) != 1:
        return []
    unit = _in_another_unit(question, trees[0], schema)
    if not shown.rows:
        return [unit] if unit else []
    found = [
        unit,
        _level(question, shown),
        _repeated(shown),
        _no_share(question, trees[0], shown),
        _one_for_each(question, trees[0], shown),
        _no_such_amount(question, trees[0], shown, schema, explained),
        _unused_name(question, trees[0], schema),
    ]
    return [each for each in found if each]


def _level(question: str, shown: Shown) -> str:
    """Nobody has most where all have the same."""
    if shown.sorting is None or not _MOST.search(question):
        return ""
    place, rows = shown.sorting.place, shown.tied or shown.rows
    if shown.columns[place].kind != "amount" or len(rows) < 3 or len({row[place] for row in rows}) > 1:
        return ""
    return f"All of them have the same {shown.columns[place].heading}: nobody leads."


def _repeated(shown: Shown) -> str:
    """Rows that are called "380 countries" are ten."""
    if len(shown.columns) != 1 or not shown.columns[0].is_label:
        return ""
    different = len({row[0] for row in shown.rows})
    if 2 * different > len(shown.rows):
        return ""
    return f"The same values come again and again: {different:,} different ones in {len(shown.rows):,} rows."


def _no_share(question: str, tree: exp.Expr, shown: Shown) -> str:
    """A count is no share, and a sum no average."""
    names = {word for column in tree.find_all(exp.Column, exp.Alias) for word in name_words(column.alias_or_name)}
    names |= {word for column in shown.columns for word in name_words(column.heading)}
    divides = tree.find(exp.Div, exp.Avg, exp.Median, exp.PercentileCont, exp.Window) is not None
    if divides or not any(column.kind in ("amount", "digits") for column in shown.columns):
        return ""
    if _SHARE.search(question) and not names & _SHARE_WORDS:
        return "The question asks for a share; this is a number of which nothing was divided."
    if _AVERAGE.search(question) and not names & _AVERAGE_WORDS:
        return "The question asks for an average; none was computed."
    return ""


def _one_for_each(question: str, tree: exp.Expr, shown: Shown) -> str:
    """One number for all does not say what each has; "per employee" may mean a ratio or an average."""
    each = _EACH.search(question) or (None if tree.find(exp.Div, exp.Avg) else _PER.search(question))
    if each is None or len(shown.rows) != 1 or len(shown.columns) != 1:
        return ""
    return f"The question asks about each {next(filter(None, each.groups()))}; this is one number for all."


_UNITS = {
    "time": (
        ("milliseconds", "millisecond millis msec msecs ms"),
        ("seconds", "second sec secs s"),
        ("minutes", "minute min mins"),
        ("hours", "hour hr hrs h"),
        ("days", "day"),
        ("weeks", "week"),
        ("months", "month"),
        ("years", "year yrs"),
    ),
    "weight": (
        ("milligrams", "milligram mg"),
        ("grams", "gram gramme grammes g"),
        ("kilograms", "kilogram kilo kilos kg"),
        ("tons", "ton tonne tonnes t"),
        ("pounds", "pound lb lbs"),
        ("ounces", "ounce oz"),
    ),
    "length": (
        ("millimetres", "millimetre millimeter millimeters mm"),
        ("centimetres", "centimetre centimeter centimeters cm"),
        ("metres", "metre meter meters m"),
        ("kilometres", "kilometre kilometer kilometers km"),
        ("miles", "mile"),
        ("feet", "foot ft"),
    ),
    "storage": (
        ("bytes", "byte"),
        ("kilobytes", "kilobyte kb"),
        ("megabytes", "megabyte mb"),
        ("gigabytes", "gigabyte gb"),
    ),
    "volume": (("millilitres", "millilitre milliliter milliliters ml"), ("litres", "litre liter liters l")),
    "money": (("cents", "cent ct"), ("dollars", "dollar usd"), ("euros", "euro eur")),
}
_SAME = ({"dollars", "euros"},)  # whole units of money, of which one is not compared with another here
_UNIT_OF = {
    word: (kind, unit) for kind, units in _UNITS.items() for unit, words in units for word in (unit, *words.split())
}
_CALENDAR = {"second", "minute", "hour", "day", "week", "month", "year"}  # as a column's word: which one, not how many
_WITH_UNIT = re.compile(
    r"(?<![\w.,])(?P<number>\d+(?:,\d{3})*(?:\.\d+)?|(?<=than )an?|(?<=over )an?|(?<=under )an?|(?<=least )an?)"
    rf"(?:[\s-]*(?!s\b)|\s+)(?P<unit>{'|'.join(sorted(_UNIT_OF, key=len, reverse=True))})\b",
    re.IGNORECASE,
)  # "the 90s" are no seconds


def _in_another_unit(question: str, tree: exp.Expr, schema: Schema) -> str:
    """A column of milliseconds is not compared with the 10 of "10 minutes"."""
    for found in _WITH_UNIT.finditer(with_plain_numbers(question)):
        kind, unit = _UNIT_OF[found["unit"].lower()]
        number = 1.0 if found["number"][0].lower() == "a" else float(found["number"].replace(",", ""))
        for column in _compared_with(number, tree):
            held = _unit_held(column, kind, schema)
            if held and held != unit and {held, unit} not in _SAME:
                return f"The question says “{found[0]}”; {column} holds {held}, and is compared with {number:g}."
    return ""


def _compared_with(number: float, tree: exp.Expr) -> Iterator[str]:
    """The columns that are compared with a number as they are, or summed up."""
    for node in tree.find_all(exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between):
        sides = [side for name in ("this", "expression", "low", "high") if (side := node.args.get(name)) is not None]
        if any(isinstance(side, exp.Literal) and not side.is_string and float(side.name) == number for side in sides):
            inner = (side.this if isinstance(side, exp.Sum | exp.Avg | exp.Max | exp.Min) else side for side in sides)
            yield from (side.name for side in inner if isinstance(side, exp.Column))


def _unit_held(column: str, kind: str, schema: Schema) -> str:
    """The one unit that a column's name or else its comment says; empty where there is none, as in "km_per_hour"."""
    named = _units(name_words(column), kind)
    comments = {
        each.comment for table in schema.tables for each in table.columns if each.name.casefold() == column.casefold()
    }
    found = named or {unit for comment in comments for unit in _units(keys(comment), kind)}
    return next(iter(found)) if len(found) == 1 else ""


def _units(words: Collection[str], kind: str) -> set[str]:
    """The units of a kind among words of which a single letter is one at the end alone."""
    if "per" in words or not words:
        return set()
    *before, last = words
    known = {*(word for word in before if len(word) > 1 and word != "min"), last} - _CALENDAR
    return {unit for word in known & _UNIT_OF.keys() for of, unit in (_UNIT_OF[word],) if of == kind}


def _no_such_amount(question: str, tree: exp.Expr, shown: Shown, schema: Schema, explained: str) -> str:
    """Where nothing is called revenue, a total of something else is none; what multiplies columns may be."""
    said = {word.key: word.text for word in split(question) if word.key in _MADE_UP}
    if not said:
        return ""
    texts = [text for table in schema.tables for text in (table.name, table.comment)]
    texts += [text for table in schema.tables for column in table.columns for text in (column.name, column.comment)]
    known = frozenset[str]().union(*map(name_stems, texts))
    used = frozenset[str]().union(*(name_stems(node.name) for node in tree.find_all(exp.Column, exp.Table)))
    totals = [node.this.name for node in tree.find_all(exp.AggFunc) if isinstance(node.this, exp.Column)]
    is_money = any(not _MONEY.isdisjoint(name_words(name)) for name in totals)
    for key, text in said.items():
        meant = any(used.issuperset(phrase) for phrase in other_words([stem(key)], known))
        made = tree.find(exp.Sub) if key in _DIFFERENCES else tree.find(exp.Mul, exp.Sub) or is_money
        if not (stem(key) in known or key in keys(explained) or meant or made):
            return f"“{text}” is no column here; this {_taken(shown)}."
    return ""


def _taken(shown: Shown) -> str:
    """What the answer has for an amount."""
    amounts = [column for column in shown.columns if column.kind == "amount"]
    if shown.sorting and shown.columns[shown.sorting.place] in amounts:
        amounts = [shown.columns[shown.sorting.place]]
    if not amounts:
        return "has no amount at all"
    return f"counts {amounts[-1].counts}" if amounts[-1].counts else f"shows {amounts[-1].heading}"


def _unused_name(question: str, tree: exp.Expr, schema: Schema) -> str:
    """A name in other letters than a question's own means what is called so."""
    names = [each for table in schema.tables for each in (table.name, *(column.name for column in table.columns))]
    said = {name for name in names if not name.isascii() and stands_in(name, question)}
    used = {fold(node.name) for node in tree.find_all(exp.Identifier)}
    whole = sorted(name for name in said if not any(name in other and name != other for other in said))
    unused = [name for name in whole if fold(name) not in used]
    if not unused or any(select.is_star for select in tree.find_all(exp.Select)):
        return ""
    return f"The question names {unused[0]}, which this doesn't use."


def pooled(sql: str, shown: Shown, dialect: str) -> str:
    """That one number is of several values together, which "in Bern and Basel" may mean or not; empty if it is not."""
    trees = parse_or_nothing(sql, dialect)
    select = trees[0] if len(trees) == 1 else None
    one = isinstance(select, exp.Select) and not select.args.get("group") and len(select.expressions) == 1
    if not select or not one or not select.expressions[0].find(exp.AggFunc) or not (where := select.args.get("where")):
        return ""
    either = where.this
    if not isinstance(either, exp.In) or not all(isinstance(each, exp.Literal) for each in either.expressions):
        return ""
    values = list({in_one_spelling(each.name): each.name for each in either.expressions}.values())
    known = 1 < len(values) <= _FEW and len(shown.rows) == 1
    return f"This is of {', '.join(values[:-1])} and {values[-1]} together." if known else ""
