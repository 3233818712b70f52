"""Templates for years, months and days, and for superlatives over numbers and dates.

Templates for superlatives over numbers and dates; which end a word means depends on what the column measures.

Templates for years, months and days: within, before and since, counts and totals per year and month, first and last.

Each meaning has one form: `strftime('%Y', d) = '2019'` for a year of dates, `'%Y-%m'` for one month, `'%m'` for a month of
any year, and the number itself where the column holds years. Days are compared as text.
"""

from calendar import month_name
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tools.linking.word_forms import word_set
from tools.schema import Column, Table
from training.templates.labels import Asked, Author, counted, is_added, is_label, literal, participle, q, said_when
from training.variants.mistakes import plural

Ends = Mapping[str, Sequence[str]]  # words by the direction in which they sort first

# By the last words of a label that fit, the first entry wins.
_MEANINGS: Sequence[tuple[frozenset[str], Ends]] = (
    (word_set("height elevation"), {"DESC": ("tallest", "highest"), "ASC": ("shortest", "lowest")}),
    (word_set("age"), {"DESC": ("oldest",), "ASC": ("youngest",)}),
    (word_set("weight"), {"DESC": ("heaviest",), "ASC": ("lightest",)}),
    (
        word_set("price cost costs fee fees"),
        {"DESC": ("most expensive", "priciest"), "ASC": ("cheapest", "least expensive")},
    ),
    (word_set("salary wage income"), {"DESC": ("best-paid", "highest-paid"), "ASC": ("worst-paid", "lowest-paid")}),
    (word_set("length"), {"DESC": ("longest",), "ASC": ("shortest",)}),
    (word_set("duration runtime"), {"DESC": ("longest",), "ASC": ("shortest",)}),
    (word_set("area size capacity population acreage"), {"DESC": ("largest", "biggest"), "ASC": ("smallest",)}),
    (word_set("speed horsepower"), {"DESC": ("fastest",), "ASC": ("slowest",)}),
    (word_set("rating stars"), {"DESC": ("best-rated", "highest-rated"), "ASC": ("worst-rated", "lowest-rated")}),
    (word_set("depth"), {"DESC": ("deepest",), "ASC": ("shallowest",)}),
    (word_set("distance"), {"DESC": ("longest", "farthest"), "ASC": ("shortest", "nearest")}),
)
_BORN: Ends = {"DESC": ("youngest",), "ASC": ("oldest",)}
_FOUNDED: Ends = {"DESC": ("newest",), "ASC": ("oldest",)}
_DATED: Ends = {"DESC": ("most recent", "latest"), "ASC": ("earliest",)}
_BIRTH = word_set("birth born birthday dob birthdate")
_BEGUN = word_set("founded opened built opening founding established construction built")
_OF_SEVERAL = word_set("start end from to begin begins ends expiry expiration")

_OF_ITSELF = frozenset(
    (
        "date",
        "year",
        "release date",
        "release year",
        "publication date",
        "year of publication",
        "order date",
        "invoice date",
    )
)

_ONE = (
    "What is the {name} of the {word} {one}?",
    "Which {one} is the {word}? Show the {name}.",
    "Find the {name} of the {word} {one}.",
    "Give me the {word} {one}'s {name}.",
    "Show the {name} of the {one} that is the {word}.",
)
_SEVERAL = (
    "What are the {names} of the {n} {word} {many}?",
    "List the {names} of the {n} {word} {many}.",
    "Show the {n} {word} {many} by {name}.",
)
_ONE_PLAIN = (
    "Which {one} has the {word} {label}? Show the {name}.",
    "What is the {name} of the {one} with the {word} {label}?",
    "Find the {name} of the {one} that has the {word} {label}.",
    "Show the {name} of the {one} whose {label} is the {word}.",
)
_SEVERAL_PLAIN = (
    "What are the {names} of the {n} {many} with the {word} {label}?",
    "List the {names} of the {n} {many} that have the {word} {label}.",
)
_VALUE = {
    "DESC": ("What is the {highest} {label} of any {one}?", "What is the maximum {label} among the {many}?"),
    "ASC": ("What is the {lowest} {label} of any {one}?", "What is the minimum {label} among the {many}?"),
}
_ORDERED = (
    "List the {names} of all {many}, {first} first.",
    "Show the {names} of the {many}, the {first} first.",
    "What are the {names} of all {many}, sorted with the {first} first?",
)
_HAPPENED = {
    "ASC": ("Which {one} was {done} first? Show the {name}.", "What is the {name} of the {one} that was {done} first?"),
    "DESC": (
        "Which {one} was {done} last? Just the {name}.",
        "What is the {name} of the most recently {done} {one}?",
        "Show the {name} of the {one} that was {done} last.",
    ),
}
_NUMBERS = {2: "two", 3: "three", 5: "five"}
_HIGH: Ends = {"DESC": ("highest", "greatest", "largest"), "ASC": ("lowest", "smallest")}
_MANY: Ends = {"DESC": ("most",), "ASC": ("fewest",)}
_FIGURED = word_set("class status address series less plus hours")


def superlatives(author: Author) -> Iterator[Asked]:
    """Questions on each measure and date of each table whose rows have names."""
    for table in author.tables:
        name = author.labels.name(table)
        if name is not None:
            for column in author.labels.measures(table):
                yield from _measured(author, table, name, column)
            for column in author.labels.dates(table)[:2]:
                yield from _dated(author, table, name, column)


def meaning(label: str) -> Ends | None:
    """The words for the two ends of a measure; None if only `highest` and `lowest` fit."""
    last = label.split()[-1:]
    return next((ends for words, ends in _MEANINGS if words & set(last)), None)


def _measured(author: Author, table: Table, name: Column, column: Column) -> Iterator[Asked]:
    label = author.labels.column(table, column.name)
    ends = meaning(label)
    plain = ends is None or author.rng.random() < 0.35
    counted = label.endswith("s") and not _FIGURED & set(label.split()) and meaning(label) is None
    for direction, words in (_plain(counted) if plain else ends or {}).items():
        yield from _ordered(author, table, name, column, direction, author.rng.choice(tuple(words)), plain)
    direction = author.rng.choice(("DESC", "ASC"))
    text = author.worded(
        _VALUE[direction], **_words(author, table, name), label=label, highest="highest", lowest="lowest"
    )
    yield Asked(text, f"SELECT {'MAX' if direction == 'DESC' else 'MIN'}({q(column.name)}) FROM {q(table.name)}")


def _plain(counted: bool) -> Ends:
    return _MANY if counted else _HIGH


def _dated(author: Author, table: Table, name: Column, column: Column) -> Iterator[Asked]:
    label = author.labels.column(table, column.name)
    said = set(label.split())
    if said & _OF_SEVERAL or not _sorts_by_time(author, table, column):
        return
    ends = _BORN if said & _BIRTH else _FOUNDED if said & _BEGUN else _DATED
    plain = ends is _DATED and label not in _OF_ITSELF
    for direction, words in ends.items():
        yield from _ordered(author, table, name, column, direction, author.rng.choice(tuple(words)), plain)
        done = participle(label)
        if done and author.distinct_top(table, column.name, direction):
            text = author.worded(_HAPPENED[direction], **_words(author, table, name), done=done)
            ordered = f"SELECT {q(name.name)} FROM {q(table.name)} ORDER BY {q(column.name)} {direction}"
            yield Asked(text, f"{ordered} LIMIT 1", table.name)


def _sorts_by_time(author: Author, table: Table, column: Column) -> bool:
    """Whether sorting the cells sorts by time: years, or dates that begin with the year."""
    values = [str(value) for value in author.values(table, column.name)]
    return len(values) > 2 and all(value[:4].isdigit() and (len(value) == 4 or value[4:5] == "-") for value in values)


def _words(author: Author, table: Table, name: Column) -> dict[str, str]:
    label = author.labels.column(table, name.name)
    return {"one": author.labels.one(table), "many": author.labels.many(table), "name": label, "names": plural(label)}


def _ordered(
    author: Author, table: Table, name: Column, column: Column, direction: str, word: str, plain: bool
) -> Iterator[Asked]:
    """The first, the first few, and for a word of its own all in that order. `plain`: the word needs the column's label."""
    parts = {**_words(author, table, name), "word": word, "label": author.labels.column(table, column.name)}
    ordered = f"SELECT {q(name.name)} FROM {q(table.name)} ORDER BY {q(column.name)} {direction}"
    if author.distinct_top(table, column.name, direction):
        wordings: Sequence[str] = (
            _ONE_PLAIN[:3] if plain and word in ("most", "fewest") else _ONE_PLAIN if plain else _ONE
        )
        yield Asked(author.worded(wordings, **parts), f"{ordered} LIMIT 1", table.name)
    count = author.rng.choice(tuple(_NUMBERS))
    if author.distinct_top(table, column.name, direction, count):
        number = author.rng.choice((str(count), _NUMBERS[count]))
        wordings = _SEVERAL_PLAIN if plain else _SEVERAL
        yield Asked(author.worded(wordings, **parts, n=number), f"{ordered} LIMIT {count}", table.name)
    if not plain and author.rng.random() < 0.5:
        yield Asked(author.worded(_ORDERED, **parts, first=word), ordered)


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
    for meaning in (_counted, _listed, _per, _ordered_times, _busiest, _ends, _total_when, _total_per):
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


def _ordered_times(author: Author, moment: _Moment) -> Iterator[Asked]:
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
