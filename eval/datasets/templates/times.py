"""Templates for years, months and days: within, before and since, counts and totals per year and month, first and last.

Each meaning has one form: `strftime('%Y', d) = '2019'` for a year of dates, `'%Y-%m'` for one month, `'%m'` for a month of
any year, and the number itself where the column holds years. Days are compared as text.
"""

from calendar import month_name
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from eval.datasets.templates.asked import Asked, Author, literal, q
from eval.datasets.templates.labels import counted, is_added, is_label, said_when
from tools.schema import Column, Table

MOST = 4  # questions of each meaning on a database
_DAYS = ("{d} {month} {y}", "{month} {d}, {y}", "{iso}")

_COUNTED = (
    "How many {many} {verb} {when}?",
    "Count the {many} {post} {when}.",
    "What is the number of {many} {post} {when}?",
    "Number of {many} {post} {when}",
    "{many} {post} {when}: how many?",
)
_LISTED = (
    "Which {many} {verb} {when}? Show their {name}.",
    "List the {names} of the {many} {post} {when}.",
    "{names} of all {many} {post} {when}",
    "Show me the {name} of every {one} {post} {when}.",
)
_PER = (
    "How many {many} {verb} per {unit}?",
    "How many {many} {verb} each {unit}?",
    "Number of {many} {post} per {unit}",
    "For each {unit}, how many {many} {verb}?",
)
_PER_LABEL = (
    "How many {many} are there for each {unit} of the {label}?",
    "Count the {many} by the {unit} of their {label}.",
    "Number of {many} per {unit} of {label}",
)
_PER_YEARS = (
    "How many {many} are there for each {label}?",
    "Number of {many} by {label}",
    "Count the {many} per {label}.",
)
_EARLIEST_FIRST = (", earliest first", ", in order of time", ", sorted from the earliest to the latest")
_BUSIEST = ("Which {unit} had the most {many} {post}?", "{unit} with the highest number of {many} {post}")
_BUSIEST_DONE = ("In which {unit} {was} the most {many} {done}?", "{unit} with the most {many} {done}")
_BUSIEST_LABEL = (
    "Which {unit} of the {label} is the most frequent among the {many}?",
    "In which {unit} is the {label} of the most {many}?",
)
_ENDS: Mapping[str, Sequence[str]] = {
    "MIN": (
        "What is the earliest {label} of the {many}?",
        "Earliest {label} among the {many}?",
        "What is the first {label} of any {one}?",
    ),
    "MAX": (
        "What is the latest {label} of the {many}?",
        "Most recent {label} among the {many}?",
        "What is the last {label} of any {one}?",
    ),
}
_ENDS_DONE: Mapping[str, Sequence[str]] = {
    "MIN": (
        "When was the first {one} {done}?",
        "When was the earliest {one} {done}?",
        "Date of the first {one} {done}",
    ),
    "MAX": (
        "When was the last {one} {done}?",
        "When was the most recent {one} {done}?",
        "Date of the latest {one} {done}",
    ),
}
_TOTAL_WHEN = (
    "What is the {total} {measure} of the {many} {post} {when}?",
    "{total} {measure} of {many} {post} {when}",
    "What was the {total} {measure} over all {many} {post} {when}?",
)
_TOTAL_PER = (
    "What is the {total} {measure} of the {many} {post} each {unit}?",
    "{total} {measure} of {many} {post} per {unit}",
)


@dataclass(frozen=True, slots=True)
class _Moment:
    """A column that says when. `values`: some of its cells, sorted; `years`: they are years; `timed`: days with a time;
    `filled`: no cell is empty."""

    table: Table
    column: Column
    words: Mapping[str, str]
    values: Sequence[str | int | float]
    years: bool
    timed: bool
    filled: bool

    def part(self, form: str) -> str:
        """Its year (`%Y`), year and month, or month as SQL writes it."""
        return self._name if self.years else f"strftime({literal(form)}, {self._name})"

    @property
    def _name(self) -> str:
        return q(self.column.name)

    def tested(self, operator: str, form: str, *values: str) -> str:
        """A condition on a part of it, or on the day if no form is given."""
        left = self.part(form) if form else self._name
        right = (value if self.years and not isinstance(self.values[0], str) else literal(value) for value in values)
        return f"{left} {operator} {' AND '.join(right)}"

    def drawn(self, author: Author, count: int, size: int) -> list[str]:
        """Different years, months or days of its cells in order: as many of their first letters."""
        found = sorted({str(value)[:size] for value in self.values})
        return sorted(author.rng.sample(found, count)) if len(found) >= count else []


def times(author: Author) -> Iterator[Asked]:
    """Questions of each meaning on all columns that say when, a few of each."""
    moments = [
        moment for table in author.tables for column in table.columns for moment in _moment(author, table, column)
    ]
    for meaning in (_counted, _listed, _per, _ordered, _busiest, _ends, _total_when, _total_per):
        found = [asked for moment in moments for asked in meaning(author, moment)]
        yield from author.rng.sample(found, min(MOST, len(found)))


def _moment(author: Author, table: Table, column: Column) -> Iterator[_Moment]:
    """The column, if it holds years or dates that begin with the year, and its label can be said."""
    said = (
        said_when(author.labels.column(table, column.name), author.labels.one(table))
        if author.labels.is_date(table, column)
        else None
    )
    values = author.values(table, column.name)
    years = all(_is_year(value) for value in values)
    if said is None or len(values) < 3 or not (years or _all_dates(author, table, column)):
        return
    filled = not author.rows(f"SELECT 1 FROM {q(table.name)} WHERE {q(column.name)} IS NULL LIMIT 1")
    words = {**author.words(table), **said}
    yield _Moment(table, column, words, values, years, any(len(str(value)) > 10 for value in values), filled)


def _is_year(value: object) -> bool:
    digits = str(value).removesuffix(".0")
    return digits.isdigit() and 1000 <= int(digits) <= 2100


def _all_dates(author: Author, table: Table, column: Column) -> bool:
    digits = "[0-9]" * 2
    name, form = q(column.name), f"{digits}{digits}-{digits}-{digits}*"
    return not author.rows(f"SELECT 1 FROM {q(table.name)} WHERE NOT {name} GLOB '{form}' LIMIT 1")


def _text(author: Author, wordings: Sequence[str], moment: _Moment, **more: str) -> str:
    """A wording without the gaps that empty words leave."""
    text = " ".join(author.worded(wordings, **moment.words, **more).split())
    return text.replace(" ?", "?").replace(" .", ".").replace(" ,", ",")


def _whens(author: Author, moment: _Moment) -> Iterator[tuple[str, str]]:
    """What people say for a time, and its condition: around a year, a month, a day, and in a month of any year."""
    yield from _around(author, moment, moment.drawn(author, 2, 4), "%Y")
    if not moment.years:
        yield from _around(author, moment, moment.drawn(author, 2, 7), "%Y-%m")
        for value in moment.drawn(author, 1, 7):
            yield f"in {month_name[int(value[5:7])]} of any year", moment.tested("=", "%m", value[5:7])
            yield f"in {month_name[int(value[5:7])]}", moment.tested("=", "%m", value[5:7])
        yield from _days(author, moment)


def _around(author: Author, moment: _Moment, both: Sequence[str], form: str) -> Iterator[tuple[str, str]]:
    if not both:
        return
    low, high = (each if len(each) == 4 else f"{month_name[int(each[5:7])]} {each[:4]}" for each in both)
    yield f"in {low}", moment.tested("=", form, both[0])
    yield f"in {high}", moment.tested("=", form, both[1])
    yield f"before {high}", moment.tested("<", form, both[1])
    yield f"after {low}", moment.tested(">", form, both[0])
    yield f"since {low}", moment.tested(">=", form, both[0])
    yield author.rng.choice((f"in {low} or later", f"from {low} on")), moment.tested(">=", form, both[0])
    yield author.rng.choice((f"in {high} or earlier", f"up to the end of {high}")), moment.tested("<=", form, both[1])
    between = author.rng.choice((f"between {low} and {high}", f"from {low} to {high}"))
    yield between, moment.tested("BETWEEN", form, *both)


def _days(author: Author, moment: _Moment) -> Iterator[tuple[str, str]]:
    """With a time of day, only what a comparison of texts decides rightly."""
    days = moment.drawn(author, 2, 10)
    if not days:
        return
    low, high = (_day(author, each) for each in days)
    yield f"before {high}", moment.tested("<", "", days[1])
    yield f"since {low}", moment.tested(">=", "", days[0])
    if not moment.timed:
        yield f"on {low}", moment.tested("=", "", days[0])
        yield f"after {low}", moment.tested(">", "", days[0])
        yield f"until {high}", moment.tested("<=", "", days[1])
        yield f"between {low} and {high}", moment.tested("BETWEEN", "", *days)


def _day(author: Author, iso: str) -> str:
    return author.rng.choice(_DAYS).format(d=int(iso[8:]), month=month_name[int(iso[5:7])], y=iso[:4], iso=iso)


def _some_whens(author: Author, moment: _Moment, count: int) -> list[tuple[str, str]]:
    found = list(_whens(author, moment))
    return author.rng.sample(found, min(count, len(found)))


def _counted(author: Author, moment: _Moment) -> Iterator[Asked]:
    for when, test in _some_whens(author, moment, MOST):
        sql = f"SELECT COUNT(*) FROM {q(moment.table.name)} WHERE {test}"
        yield Asked(_text(author, _COUNTED, moment, when=when), sql)


def _listed(author: Author, moment: _Moment) -> Iterator[Asked]:
    shown = author.shown(moment.table)
    for when, test in _some_whens(author, moment, MOST) if shown else ():
        sql = f"SELECT {shown} FROM {q(moment.table.name)} WHERE {test}"
        yield Asked(_text(author, _LISTED, moment, when=when), sql, moment.table.name)


def _units(moment: _Moment) -> dict[str, str]:
    """Years and months to group by, where each row has one."""
    if not moment.filled:
        return {}
    born = moment.words["done"] == "born"
    return (
        {"year": moment.part("%Y")}
        if moment.years or born
        else {"year": moment.part("%Y"), "month": moment.part("%Y-%m")}
    )


def _per(author: Author, moment: _Moment) -> Iterator[Asked]:
    plain = moment.words["kind"] != "label"
    wordings = _PER if plain else _PER_YEARS if moment.years else _PER_LABEL
    for unit, part in _units(moment).items():
        sql = f"SELECT {part}, COUNT(*) FROM {q(moment.table.name)} GROUP BY {part}"
        yield Asked(_text(author, wordings, moment, unit=unit), sql)


def _ordered(author: Author, moment: _Moment) -> Iterator[Asked]:
    for asked in _per(author, moment):
        part = asked.sql.split(" GROUP BY ")[1]
        mark = asked.text[-1] if asked.text[-1] in ".?" else ""
        text = asked.text.rstrip(".?") + author.rng.choice(_EARLIEST_FIRST) + mark
        yield Asked(text, f"{asked.sql} ORDER BY {part}")


def _busiest(author: Author, moment: _Moment) -> Iterator[Asked]:
    wordings = {"label": _BUSIEST_LABEL, "active": _BUSIEST, "done": _BUSIEST_DONE}[moment.words["kind"]]
    for unit, part in _units(moment).items():
        grouped = f"FROM {q(moment.table.name)} GROUP BY {part} ORDER BY COUNT(*) DESC"
        first = author.rows(f"SELECT COUNT(*) {grouped} LIMIT 2")
        if len(first) == 2 and first[0] != first[1]:
            yield Asked(_text(author, wordings, moment, unit=unit), f"SELECT {part} {grouped} LIMIT 1")


def _ends(author: Author, moment: _Moment) -> Iterator[Asked]:
    done = moment.words["kind"] == "done" and moment.words["done"] != "born" and not moment.years
    for function, wordings in (_ENDS_DONE if done else _ENDS if is_label(moment.words["label"]) else {}).items():
        sql = f"SELECT {function}({q(moment.column.name)}) FROM {q(moment.table.name)}"
        yield Asked(_text(author, wordings, moment), sql)


def _totals(author: Author, moment: _Moment) -> Iterator[tuple[str, dict[str, str]]]:
    """Totals, where the measure can be added up, and averages."""
    for measure in author.labels.measures(moment.table) if moment.words["done"] != "born" else ():
        label = author.labels.column(moment.table, measure.name)
        function, total = ("SUM", "total") if is_added(label) else ("AVG", "average")
        yield (
            f"{function}({q(measure.name)})",
            {"total": total, "measure": f"number of {label}" if counted(label) else label},
        )


def _total_when(author: Author, moment: _Moment) -> Iterator[Asked]:
    for sql, words in _totals(author, moment):
        for when, test in _some_whens(author, moment, 2):
            text = _text(author, _TOTAL_WHEN, moment, **words, when=when)
            yield Asked(text, f"SELECT {sql} FROM {q(moment.table.name)} WHERE {test}")


def _total_per(author: Author, moment: _Moment) -> Iterator[Asked]:
    for sql, words in _totals(author, moment) if moment.words["kind"] != "label" else ():
        for unit, part in _units(moment).items():
            text = _text(author, _TOTAL_PER, moment, **words, unit=unit)
            yield Asked(text, f"SELECT {part}, {sql} FROM {q(moment.table.name)} GROUP BY {part}")
