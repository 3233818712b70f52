"""What is known beyond names: which columns join, what columns hold, and which values and numbers the asker named.

A small model invents literals; people hardly ever do. Of the text literals with which Spider's gold queries compare a
column, 99 % are a value found in the question or another part of it. A known value is allowed at the wrong column too:
`tools.repair.literals.move_literals` moves it, whereas a model that may not write it there would write another value instead.

A question says "in March 2023" or "before 10 in the morning", and its SQL compares with '2023-03-01', 20230331 or '10:00'. All
days and months of the years that were said, as a column spells them, and the half hours of a day are therefore named, too.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from string import ascii_lowercase, digits

from agent.grammar.words import WordSet, lowered
from tools.linking.mentions import NUMBER, QuestionContext
from tools.linking.word_forms import STOP_WORDS, name_stems, name_words, split, stem
from tools.repair.rules import QuestionConstraints, applied, rules_of, values_required
from tools.schema import Column, ColumnRef, Schema
from tools.sql.join_graph import Joinable, joinable
from tools.sql.scope import is_number, type_kind

_EVERYDAY = frozenset({"0", "1"})  # numbers that a question may imply without naming them
_CODES = (*ascii_lowercase, *digits, "yes", "no", "true", "false", "null")
_PAIRS = tuple(map("".join, product(ascii_lowercase, repeat=2)))  # two-letter codes, such as fl for Florida
_PLAIN = re.compile(r"\d{1,9}(?:\.\d{1,4})?")
_SCALES = (60, 100, 1000, 3600)
_IDENTIFYING = frozenset({"id", "identifier", "identification", "key"})
_NUMBERED = re.compile(r"(\w+) (?:no\.? |number |#)?\d")  # student 1004
_NESTED = re.compile(r"\bIN\b|\(\s*SELECT\b(?! (?:AVG|MAX|MIN|SUM)\b)", re.IGNORECASE)  # no identifier is an average


@dataclass(frozen=True, eq=False)
class Facts:
    """Facts for one question; it caches what each column may be compared with. `columns`: by (table, column) in lower case."""

    joins: Joinable
    columns: Mapping[ColumnRef, Column]
    context: QuestionContext
    constraints: QuestionConstraints = field(default_factory=QuestionConstraints)
    _sets: dict[tuple[str, ColumnRef], WordSet | None] = field(default_factory=dict, repr=False)

    def of_plans(self) -> "Facts":
        """What the grammar of plans reads of them."""
        return replace(self, context=QuestionContext(""), constraints=self.constraints.of_plans(), _sets={})

    def of_sql(self) -> "Facts":
        """What the grammar of SQL reads of them."""
        context = replace(self.context, without=())  # they have made the constraints
        return replace(self, context=context, constraints=self.constraints.of_sql(), _sets={})

    def pairs(self, one: str, other: str) -> frozenset[tuple[str, str]]:
        """The (column of one, column of other) that may be equated: those of keys whose roles were said, if there are any."""
        every = self.joins.between(one, other)
        roles = self.constraints.roles
        return frozenset(pair for pair in every if not roles.isdisjoint(zip((one, other), pair, strict=True))) or every

    def may_sum(self, place: ColumnRef) -> bool:
        """Whether adding up this column makes sense, which it does not for words, dates and identifiers."""
        column = self.columns[place]
        amount = _holds(column) != "words" and type_kind(column.type) != "time"
        return amount and place not in self.constraints.identifiers

    def moment(self, place: ColumnRef) -> str:
        """How this column holds dates, see `dates.spelling`; empty if it holds none."""
        column = self.columns[place]
        known = place not in self.constraints.identifiers
        return spelling(column.samples, type_kind(column.type) == "time") if known else ""

    def may_date(self, place: ColumnRef) -> bool:
        """Whether a function of dates may take this column."""
        return place in self.dated

    @cached_property
    def dated(self) -> frozenset[ColumnRef]:
        """The columns that hold dates in any spelling."""
        return frozenset(place for place in self.columns if self.moment(place))

    @cached_property
    def readable(self) -> bool:
        """Whether functions of dates can read some column as it is."""
        return any(self.moment(place) != "other" for place in self.dated)

    @cached_property
    def instants(self) -> WordSet:
        """What stands for a date of its own: now, and the days of the years that were said."""
        days = (day for day in moments_like(("2000-01-01",), self._said_numbers) if len(day) == len("2000-01-01"))
        return literal_set(frozenset(map(_quote, {"now", *days})))

    @cached_property
    def shifts(self) -> WordSet:
        """What moves a date: to a beginning, or by a number of days, months or years that was said, or by one."""
        numbers = {number for number in self._said_numbers if number.isdigit() and len(number) < 4} | {"1"}
        moved = {f"{sign}{n} {unit}" for sign in "+-" for n in numbers for unit in ("days", "months", "years", "day")}
        return literal_set(
            frozenset(map(_quote, {"start of day", "start of month", "start of year", "localtime", *moved}))
        )

    def written(self, form: str) -> WordSet | None:
        """The texts, quotes included, that a part of a date in this form may be compared with; None for any."""
        texts = written_as(form, self._said_numbers)
        return literal_set(frozenset(map(_quote, texts))) if texts else None

    def may_measure(self, place: ColumnRef | None) -> bool:
        """Whether `<` and BETWEEN make sense for this column: identifiers mean nothing but the rows that they name, and words
        without digits are no amounts."""
        column = self.columns.get(place) if place else None
        return place not in self._silent_identifiers and not (
            column and _holds(column) == "words" and not _digits(column)
        )

    def may_test(self, place: ColumnRef) -> bool:
        """Whether a condition may begin with this column, which may be an identifier where it is held equal to other ones."""
        return place not in self._silent_identifiers or _NESTED.search(self.context.plan) is not None

    @cached_property
    def _silent_identifiers(self) -> frozenset[ColumnRef]:
        """The identifiers that the question does not name, as "id", by their own words, or as "store 1"."""
        question = self.context.question
        stems = frozenset(stem(word.key) for word in split(question))
        if stems & _IDENTIFYING:
            return frozenset()
        numbered = frozenset(stem(found.lower()) for found in _NUMBERED.findall(question))
        return frozenset(
            (table, column)
            for table, column in self.constraints.identifiers
            if not (name_stems(column) - name_stems(table)) & stems
            and not (name_stems(table) | name_stems(column)) & numbered
        )

    def strings(self, place: ColumnRef) -> WordSet | None:
        """The text literals, quotes included, that this column may be compared with; None for any."""
        return self._remembered(place, self._strings)

    def patterns(self, place: ColumnRef) -> WordSet | None:
        """The patterns, quotes included, that this column may be matched with by LIKE; None for any."""
        return self._remembered(place, self._patterns)

    def numbers(self, place: ColumnRef) -> WordSet | None:
        """The number literals that this column may be compared with; None for any."""
        return self._remembered(place, self._numbers)

    def _remembered(self, place: ColumnRef, make: Callable[[ColumnRef], frozenset[str] | None]) -> WordSet | None:
        key = (make.__name__, place)
        if key not in self._sets:
            made = make(place)
            self._sets[key] = None if made is None else literal_set(made)
        return self._sets[key]

    def _strings(self, place: ColumnRef) -> frozenset[str] | None:
        column, holds = self.columns[place], _holds(self.columns[place])
        if holds == "anything":
            undated = self.constraints.dated and type_kind(column.type) == "time" and not self._said_numbers
            return frozenset(map(_quote, self._found)) if undated else None
        moments = moments_like(column.samples, self._said_numbers)
        if holds != "words":
            return frozenset(map(_quote, {*self._found, *self._said_numbers, *moments})) or (
                frozenset() if self.constraints.dated else None
            )
        codes = _PAIRS if all(len(sample) == 2 for sample in column.samples) else _CODES
        return frozenset(map(_quote, {*column.samples, *self._found, *self._plausible, *moments, *codes, "", "N/A"}))

    def _patterns(self, place: ColumnRef) -> frozenset[str] | None:
        column = self.columns[place]
        if _holds(column) == "anything" or any(letter.isdigit() for sample in column.samples for letter in sample):
            return None
        texts = {*column.samples, *self._found, *self.context.phrases(), *_CODES}
        return frozenset(
            _quote(before + text + after) for text in texts for before in ("", "%", "% ") for after in ("", "%", " %")
        )

    def _numbers(self, place: ColumnRef) -> frozenset[str] | None:
        column, holds = self.columns[place], _holds(self.columns[place])
        if holds == "words":
            return frozenset()
        if not self._said_numbers - _EVERYDAY or holds == "anything":
            return None
        return self._said_numbers | self._in_other_units | _EVERYDAY | moments_like(column.samples, self._said_numbers)

    @cached_property
    def _said_numbers(self) -> frozenset[str]:
        return self.context.numbers()

    @cached_property
    def _in_other_units(self) -> frozenset[str]:
        """Numbers that were said in hours, kilometres, euros or per cent, in minutes, metres, cents and as fractions."""
        said = [Decimal(number) for number in self._said_numbers if _PLAIN.fullmatch(number)]
        return frozenset(f"{number * scale:f}" for number in said for scale in _SCALES) | frozenset(
            f"{number / 100:f}" for number in said
        )

    @cached_property
    def _found(self) -> frozenset[str]:
        """Values of any column. `tools.repair.literals.move_literals` can move them, whereas nothing could recover them if the
        model had to write something else.
        """
        return frozenset(match.value for match in self.context.values)

    @cached_property
    def _plausible(self) -> frozenset[str]:
        """Phrases, of the unmarked ones those that have a word of their own and, if they have several, none of a table's."""
        names = _schema_words(frozenset(name for place in self.columns for name in place))
        tables = _schema_words(frozenset(table for table, _ in self.columns))
        return frozenset(
            phrase
            for phrase in self.context.phrases()
            if self.context.marked(phrase) or not _is_everyday(phrase, names, tables)
        )


def _is_everyday(phrase: str, names: frozenset[str], tables: frozenset[str]) -> bool:
    words = split(phrase)
    about_rows = len(words) > 1 and any(stem(word.key) in tables for word in words)
    return about_rows or all(word.key in STOP_WORDS or stem(word.key) in names for word in words)


@lru_cache(maxsize=16)
def _schema_words(names: frozenset[str]) -> frozenset[str]:
    return frozenset(stem(word) for name in names for word in name_words(name))


def facts_of(schema: Schema, context: QuestionContext) -> Facts:
    """The facts that follow from a schema and from what was asked."""
    columns = {(table.name.lower(), column.name.lower()): column for table in schema.tables for column in table.columns}
    rules = rules_of("constraints", context)
    constraints = applied(rules, values_required(schema, context), schema, context)
    return Facts(_joinable(schema), columns, context, constraints)


_joinable = lru_cache(maxsize=16)(joinable)


@lru_cache(maxsize=4096)
def literal_set(texts: frozenset[str]) -> WordSet:
    """Literals as words, in lower case like everything that the lexer compares."""
    return WordSet({lowered(text): (text, text) for text in texts})


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _digits(column: Column) -> bool:
    return any(any(letter.isdigit() for letter in sample) for sample in column.samples)


def _holds(column: Column) -> str:
    """One of "numbers", "words", "digits" (text that looks like numbers) and "anything" (type and samples do not tell)."""
    kind = type_kind(column.type)
    numeric = [NUMBER.fullmatch(sample.strip().lstrip("-")) is not None for sample in column.samples]
    if is_number(kind):
        return "numbers" if all(numeric) else "anything"
    if kind not in ("text", None) or not column.samples:
        return "anything"
    return "digits" if all(numeric) else "words"


_MONTHS, _DAYS = range(1, 13), range(1, 32)
_ISO = "{year}-{month:02}-{day:02}"
_DAY = ("{year}-{month:02}", "{year}")  # the beginnings of a day, with which texts are compared, too
_FORMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\d{4}-\d\d-\d\d", (_ISO, *_DAY)),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d", (_ISO, _ISO + " 00:00", _ISO + " 23:59", *_DAY)),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d.*", (_ISO, _ISO + " 00:00:00", _ISO + " 23:59:59", *_DAY)),
    (r"\d{4}/\d\d/\d\d", ("{year}/{month:02}/{day:02}",)),
    (r"\d{4}\.\d\d\.\d\d", ("{year}.{month:02}.{day:02}",)),
    (r"\d\d?\.\d\d?\.\d{4}", ("{day:02}.{month:02}.{year}",)),
    (r"\d\d?/\d\d?/\d{4}", ("{month:02}/{day:02}/{year}", "{day:02}/{month:02}/{year}")),
    (r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])", ("{year}{month:02}{day:02}",)),
    (r"(?:19|20)\d\d(?:0[1-9]|1[0-2])", ("{year}{month:02}",)),
    (r"\d{4}-\d\d", ("{year}-{month:02}", "{year}")),
)
_READ = re.compile(
    r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?|\d\d:\d\d(?::\d\d(?:\.\d+)?)?"
)  # what SQLite's functions of dates understand
_SINCE = range(200_000_000, 3_000_000_000)  # seconds since 1970 from 1976 to 2065
_YEAR = re.compile(r"(?:19|20)\d\d")
_CLOCK = re.compile(r"\d\d:\d\d(?P<seconds>:\d\d)?")


def moments_like(samples: Sequence[str], said: frozenset[str]) -> frozenset[str]:
    """Literals in the form of the samples that lie in a year that was said, or begin the year after it; half hours for times of
    the day. Empty where the samples have no such form. `said`: the numbers of the question.

    >>> days = moments_like(("2021-05-06", "2021-05-07"), frozenset({"2023", "7"}))
    >>> "2023-03-31" in days, "2024-01-01" in days, "2021-05-06" in days
    (True, True, False)
    >>> "20231201" in moments_like(("20240131",), frozenset({"2023"})), "07:30" in moments_like(("09:15",), frozenset())
    (True, True)
    """
    if not samples:
        return frozenset()
    clock = _CLOCK.fullmatch(samples[0])
    if clock is not None and all(map(_CLOCK.fullmatch, samples)):
        return _half_hours(bool(clock["seconds"]))
    years = frozenset(number for number in said if _YEAR.fullmatch(number))
    for form, spellings in _FORMS if years else ():
        if all(re.fullmatch(form, sample) for sample in samples):
            return frozenset(text for year in years for text in _in_year(int(year), spellings))
    return frozenset()


def spelling(samples: Sequence[str], declared: bool) -> str:
    """How a column with these samples holds dates: as "text" that SQLite reads, as "seconds" or "milliseconds" since 1970,
    or in an "other" spelling; empty if it holds none. declared: its type says that it holds some.

    >>> [spelling([sample], False) for sample in ("2021-05-06 10:00", "1620295200", "06.05.2021", "2021", "Ada")]
    ['text', 'seconds', 'other', '', '']
    """
    if not samples:
        return "text" if declared else ""
    if all(map(_READ.fullmatch, samples)):
        return "text"
    whole = [int(sample) for sample in samples if sample.isascii() and sample.isdigit()]
    if len(whole) == len(samples):
        if all(number in _SINCE for number in whole):
            return "seconds"
        if all(number // 1000 in _SINCE for number in whole):
            return "milliseconds"
    if any(all(re.fullmatch(form, sample) for sample in samples) for form, _ in _FORMS):
        return "other"
    return "text" if declared else ""


_PARTS = {
    "%y": tuple(f"{year}" for year in range(1900, 2100)),
    "%m": tuple(f"{part:02}" for part in range(60)),  # months or minutes
    "%d": tuple(f"{day:02}" for day in _DAYS),
    "%h": tuple(f"{hour:02}" for hour in range(24)),
    "%w": (*map(str, range(7)), *(f"{week:02}" for week in range(54))),  # days of a week or weeks of a year
    "%j": tuple(f"{day:03}" for day in range(1, 367)),
}
_MANY = 5000


@lru_cache(maxsize=256)
def written_as(form: str, said: frozenset[str]) -> frozenset[str]:
    """The texts that STRFTIME writes in this form, which is in lower case; of whole days only those of the years that were said
    and of the following ones. Empty where there are too many.

    >>> months = written_as("%y-%m", frozenset())
    >>> "2024-03" in months, "2024" in months, "2024-13" in months
    (True, False, False)
    >>> len(written_as("%y-%m-%d", frozenset({"2024"}))), len(written_as("%y-%m-%d", frozenset()))
    (744, 0)
    """
    parts = [_PARTS.get(part, (part,) if "%" not in part else ()) for part in re.split(r"(%\w)", form) if part]
    if "%m" in form and not form.startswith("%h") and form != "%m":
        parts[parts.index(_PARTS["%m"])] = tuple(f"{month:02}" for month in _MONTHS)
    years = {int(number) for number in said if _YEAR.fullmatch(number)}
    if form.startswith("%y") and prod(map(len, parts)) > _MANY:
        parts[0] = tuple(str(year) for year in sorted({*years, *(year + 1 for year in years)}))
    return frozenset(map("".join, product(*parts))) if prod(map(len, parts)) <= _MANY else frozenset()


@lru_cache(maxsize=2)
def _half_hours(with_seconds: bool) -> frozenset[str]:
    end = ":00" if with_seconds else ""
    return frozenset(f"{hour:02}:{minute:02}{end}" for hour, minute in product(range(24), (0, 30)))


@lru_cache(maxsize=64)
def _in_year(year: int, spellings: tuple[str, ...]) -> frozenset[str]:
    days = [*product((year,), _MONTHS, _DAYS), (year + 1, 1, 1)]
    return frozenset(form.format(year=of, month=month, day=day) for form in spellings for of, month, day in days)
