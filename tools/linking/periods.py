"""Periods that a question names, "last month", "between 2025-01-01 and 2025-12-31", "after March 1, 2024", as conditions.

Each becomes a name that the model sees as a column of the table with the date (`tools.linking.taught`); what runs compares the
date with the first and the last day, which the answer tells.

>>> [found.said() for found in periods("Visits in the last 7 days?", date(2026, 11, 29))]
['last 7 days: from 2026-11-23 to 2026-11-29']
>>> [found.said() for found in periods("Who joined after March 1, 2024, and before 3 May 2024?", date(2026, 11, 29))]
['after March 1, 2024: from 2024-03-02', 'before 3 May 2024: until 2024-05-02']
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import count

from sqlglot import exp

from tools.linking.link_schema import Link
from tools.linking.taught import Definition
from tools.linking.word_forms import NUMBER_WORDS, name_words
from tools.schema import Column, ColumnRef, Schema, derived
from tools.sql.scope import type_kind

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    r"nov(?:ember)?|dec(?:ember)?)"
)
_DAY = (
    r"\d{4}-\d\d?-\d\d?|\d{4}/\d\d?/\d\d?|\d\d?\.\d\d?\.\d{4}|\d\d?/\d\d?/\d{4}|"
    rf"{_MONTH}\.? \d\d?(?:st|nd|rd|th)?,? \d{{4}}|\d\d?(?:st|nd|rd|th)?(?: of)? {_MONTH}\.?,? \d{{4}}|{_MONTH}\.?,? \d{{4}}"
)
_SIGN = "on or after|on or before|not before|since|starting|after|before|until|through|on|in|during"
_UNIT = r"(?P<unit>day|week|month|quarter|year)"
_NUMBER = rf"(?P<number>\d+|{'|'.join(NUMBER_WORDS[1:])})"
_PHRASES = tuple(
    re.compile(rf"\b(?:{phrase})(?!\w)", re.IGNORECASE)
    for phrase in (
        rf"between (?P<first>{_DAY}) and (?P<last>{_DAY})",
        rf"from (?P<first>{_DAY}) (?:to|until|till|through|up to) (?P<last>{_DAY})",
        rf"(?P<sign>{_SIGN}) (?P<first>{_DAY})",
        rf"(?:last|past|previous) {_NUMBER} {_UNIT}s?",
        rf"(?P<which>this|current|last|previous|past|next) {_UNIT}",
        rf"{_NUMBER} {_UNIT}s? ago",
        rf"{_UNIT} to date",
        r"(?P<short>ytd|mtd)",
        r"(?P<near>today|yesterday|tomorrow)",
    )
)
_MONTHS_OF = {"month": 1, "quarter": 3, "year": 12}
_ISO = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:.*)?")
_YEAR = re.compile(r"(?:19|20)\d\d")


@dataclass(frozen=True, slots=True)
class Period:
    """From `first` to `last`, both included; None: without an end on that side."""

    phrase: str
    first: date | None
    last: date | None

    def said(self) -> str:
        """The period in words."""
        return f"{self.phrase}: {self.days()}"

    def days(self) -> str:
        """Its days, in words."""
        if self.first == self.last:
            return f"on {self.first}"
        first = f"from {self.first}" if self.first else ""
        last = f"{'to' if self.first else 'until'} {self.last}" if self.last else ""
        return " ".join(filter(None, (first, last)))


def periods(question: str, today: date) -> list[Period]:
    """The periods that a question names, in its order; of those that overlap the longest."""
    found: dict[int, tuple[int, Period]] = {}
    taken: set[int] = set()
    for pattern in _PHRASES:
        for match in pattern.finditer(question):
            days = _days(
                {name: text.lower() for name, text in match.groupdict().items() if text}, match[0].lower(), today
            )
            if days and taken.isdisjoint(range(*match.span())):
                taken.update(range(*match.span()))
                found[match.start()] = (match.end(), Period(match[0], *days))
    return [period for _, (_, period) in sorted(found.items())]


Days = tuple[date | None, date | None]


def _days(said: dict[str, str], phrase: str, today: date) -> Days | None:
    try:
        return _explicit(said) if "first" in said else _relative(said, phrase, today)
    except (ValueError, OverflowError):  # no such day
        return None


def _explicit(said: dict[str, str]) -> Days | None:
    first, sign = _read(said["first"]), said.get("sign")
    last = _read(said["last"]) if "last" in said else first
    if first is None or last is None:
        return None
    if sign in ("on or after", "not before", "since", "starting"):
        return first[0], None
    if sign == "after":
        return first[1] + timedelta(1), None
    if sign == "before":
        return None, first[0] - timedelta(1)
    if sign in ("until", "through", "on or before"):
        return None, first[1]
    return min(first[0], last[0]), max(first[1], last[1])


def _read(text: str) -> tuple[date, date] | None:
    """The first and the last day of a date, or of a month."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    named = re.search(_MONTH, text)
    if named:
        month, year = _MONTHS.index(named[0][:3]) + 1, numbers[-1]
        if len(numbers) == 1:
            return date(year, month, 1), _after_months(date(year, month, 1), 1) - timedelta(1)
        day = date(year, month, numbers[0])
    elif len(re.match(r"\d+", text)[0]) == 4:  # type: ignore[index]
        day = date(*numbers)
    else:
        one, other, year = numbers
        if "/" in text and one <= 12 and other <= 12 and one != other:
            return None  # day or month first: nobody can tell
        day = date(year, other, one) if other <= 12 else date(year, one, other)
    return day, day


def _relative(said: dict[str, str], phrase: str, today: date) -> Days | None:
    unit, which = said.get("unit", ""), said.get("which", "")
    if near := said.get("near"):
        day = today + timedelta({"today": 0, "yesterday": -1, "tomorrow": 1}[near])
        return day, day
    if short := said.get("short"):
        return _begin("year" if short == "ytd" else "month", today), today
    if phrase.endswith("to date"):
        return _begin(unit, today), today
    if which:
        step = {"this": 0, "current": 0, "next": 1}.get(which, -1)
        first = _moved(_begin(unit, today), step, unit)
        return first, _moved(first, 1, unit) - timedelta(1)
    text = said["number"]
    number = int(text) if text.isdigit() else NUMBER_WORDS.index(text)
    before = _moved(today, -number, unit)
    return (before, before) if phrase.endswith("ago") else (before + timedelta(1), today)


def _begin(unit: str, day: date) -> date:
    if unit == "day":
        return day
    if unit == "week":
        return day - timedelta(day.weekday())
    months = _MONTHS_OF[unit]
    return date(day.year, (day.month - 1) // months * months + 1, 1)


def _moved(day: date, steps: int, unit: str) -> date:
    if unit in _MONTHS_OF:
        return _after_months(day, steps * _MONTHS_OF[unit])
    return day + timedelta(steps * (7 if unit == "week" else 1))


def _after_months(day: date, months: int) -> date:
    """The same day so many months later, or the last one of that month."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    following = date(year + month // 11, (month + 1) % 12 + 1, 1)
    return min(date(year, month + 1, 1) + timedelta(day.day - 1), following - timedelta(1))


def period_definitions(schema: Schema, question: str, links: Sequence[Link], today: date) -> Iterator[Definition]:
    """The question's periods as conditions on the likeliest column of dates, or of years for whole years."""
    for number, period in zip(count(1), periods(question, today), strict=False):
        place, years = _likeliest(_dates(schema), links), False
        if place is None and _whole_years(period):
            place, years = _likeliest(_years(schema), links), True
        if place is None:
            return
        column = "period" if number == 1 else f"period_{number}"
        yield Definition(
            period.phrase,
            f"{place[1]} {period.days()}",
            place[0],
            column,
            "condition",
            _condition(place, period, years),
            certain=True,
        )


def _whole_years(period: Period) -> bool:
    first, last = period.first, period.last
    return (first is None or (first.month, first.day) == (1, 1)) and (
        last is None or (last.month, last.day) == (12, 31)
    )


def _condition(place: ColumnRef, period: Period, years: bool) -> exp.Expr:
    column = exp.column(exp.to_identifier(place[1], quoted=True), table=exp.to_identifier(place[0], quoted=True))
    parts: list[exp.Expr] = []
    for day, end, kind in ((period.first, 0, exp.GTE), (period.last, 1, exp.LT)):
        if day:
            after = day + timedelta(end)  # a moment of the last day is in the period
            bound = exp.Literal.number(after.year) if years else exp.Literal.string(after.isoformat())
            parts.append(kind(this=column.copy(), expression=bound))
    return exp.and_(*parts)


def _likeliest(places: Sequence[ColumnRef], links: Sequence[Link]) -> ColumnRef | None:
    """The column that the question is most about, together with its table; the first of equals."""
    scores = {(link.table, link.column): link.score for link in links}
    return max(
        places,
        key=lambda place: scores.get((place[0], None), 0.0) + scores.get((place[0], place[1]), 0.0),
        default=None,
    )


@derived
def _dates(schema: Schema) -> list[ColumnRef]:
    """Columns of dates, or of texts that compare as dates do; not those of when somebody was born."""
    return _columns(
        schema, lambda column: _is_date(column) and not {"birth", "born", "dob"} & {*name_words(column.name)}
    )


@derived
def _years(schema: Schema) -> list[ColumnRef]:
    return _columns(schema, lambda column: bool(column.samples) and all(map(_YEAR.fullmatch, column.samples)))


def _columns(schema: Schema, wanted: Callable[[Column], bool]) -> list[ColumnRef]:
    return [(table.name, column.name) for table in schema.tables for column in table.columns if wanted(column)]


def _is_date(column: Column) -> bool:
    kind = type_kind(column.type)
    if kind == "time" and "DATE" not in column.type.upper() and "STAMP" not in column.type.upper():
        return False  # a time of day
    iso = all(map(_ISO.fullmatch, column.samples))
    return iso if column.samples else kind == "time"
