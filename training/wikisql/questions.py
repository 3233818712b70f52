"""Reads WikiSQL's training file: one nameless table a line, with its columns and its questions.

Cleans WikiSQL's questions: keeps those whose SQL a careful writer would have written, and writes it as in Spider.

WikiSQL's annotators were shown SQL first, so that `SUM(year)` is the SQL of "In what year was the game?" and COUNT and SUM
that of "the total number of". An aggregate that no word asks for is dropped from the SQL; a question whose words ask for
another aggregate than its SQL is left out.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval.datasets.official import DatasetError


@dataclass(frozen=True, slots=True)
class WikiColumn:
    """A column: its header in lower case, whether it holds numbers, and the values that questions mention."""

    name: str
    numeric: bool
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WikiQuestion:
    """A question: `aggregate` (COUNT, SUM, AVG, MIN, MAX or "") of `select` where all (column, operator, value) hold."""

    text: str
    select: str
    aggregate: str
    conditions: tuple[tuple[str, str, str], ...]

    @property
    def columns(self) -> frozenset[str]:
        return frozenset((self.select, *(column for column, _, _ in self.conditions)))


@dataclass(frozen=True, slots=True)
class WikiTable:
    """A table without a name; `id` is WikiSQL's."""

    id: str
    columns: tuple[WikiColumn, ...]
    questions: tuple[WikiQuestion, ...]

    def column(self, name: str) -> WikiColumn:
        """The column of that header."""
        return next(column for column in self.columns if column.name == name)


def load_wikisql(data: Path) -> list[WikiTable]:
    """The tables of `wikisql/train.jsonl`, in its order; none if the folder is not there. Raises DatasetError."""
    file = data / "wikisql" / "train.jsonl"
    if not file.is_file():
        return []
    try:
        return [_table(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{file} is not WikiSQL with a table on each line ({error!r})") from error


def _table(entry: Mapping[str, Any]) -> WikiTable:
    columns = (WikiColumn(c["name"], c["type"] == "number", tuple(c["values"])) for c in entry["columns"])
    questions = (
        WikiQuestion(
            " ".join(q["question"].split()),
            q["select"],
            q["aggregate"] or "",
            tuple((column, operator, str(value)) for column, operator, value in q["conditions"]),
        )
        for q in entry["questions"]
    )
    return WikiTable(entry["table"], tuple(columns), tuple(questions))


_WORDS: Mapping[str, re.Pattern[str]] = {
    "COUNT": re.compile(r"\bhow many\b|\bnumber of\b|\bcount\b|\bhow often\b", re.I),
    "SUM": re.compile(r"\btotal\b|\bsum\b|\bhow much\b|\bcombined\b|\baltogether\b", re.I),
    "AVG": re.compile(r"\baverage\b|\bmean\b", re.I),
    "MAX": re.compile(
        r"\b(high|larg|great|bigg|lat|long|old|tall|most|maxim|new|top|upper|strong|fast|best|heav|wid|deep)\w*\b|\blast\b",
        re.I,
    ),
    "MIN": re.compile(
        r"\b(low|small|least|few|earl|short|minim|young|slow|worst|tini|lesser)\w*\b|\bfirst\b|\bleast\b|\boldest\b",
        re.I,
    ),
}
_NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?$")
_DISTINCT = re.compile(r"\b(different|distinct|unique)\b", re.I)
_COMPARISON = re.compile(r"\b\w+ than\b|\bat (least|most)\b", re.I)
_NO_QUESTION = re.compile(r"[?!.]{3,}|\bwhat's listed\b|^name the\W*$", re.I)
SHORTEST = 4  # words of a question


def number_of(value: str) -> str | None:
    """The value as a literal of SQL, `52,000` as 52000; None if it is no number."""
    return value.replace(",", "") if _NUMBER.match(value) else None


def cleaned(table: WikiTable) -> WikiTable:
    """The table with the questions that are kept, and with text columns that hold numbers made numeric."""
    columns = tuple(replace(c, numeric=True) if _holds_numbers(c, table) else c for c in table.columns)
    table = replace(table, columns=columns)
    kept = (canonical(question, table) for question in table.questions)
    return replace(table, questions=tuple(question for question in kept if question is not None))


def _holds_numbers(column: WikiColumn, table: WikiTable) -> bool:
    """Whether questions compute with a text column, all of whose known values are numbers."""
    computed = any(q.select == column.name and q.aggregate in ("MAX", "MIN") for q in table.questions)
    return not column.numeric and computed and all(number_of(value) for value in column.values)


def canonical(question: WikiQuestion, table: WikiTable) -> WikiQuestion | None:
    """The question with the SQL that its words ask for; None if they do not fit, or if a value is not in its words."""
    own = frozenset(column.name for column in table.columns)
    if not question.columns <= own or len(question.text.split()) < SHORTEST or _NO_QUESTION.search(question.text):
        return None
    if not all(_fits(condition, question, table) for condition in question.conditions):
        return None
    if not question.conditions and not question.aggregate:
        return None
    aggregate = _aggregate(question, table)
    if aggregate is None:
        return None
    repeated = question.select in {column for column, op, _ in question.conditions if op == "="}
    if repeated and aggregate != "COUNT":
        return None  # it asks for what it says
    return replace(question, aggregate=aggregate)


def _fits(condition: tuple[str, str, str], question: WikiQuestion, table: WikiTable) -> bool:
    """Whether the value has its column's type and stands in the question."""
    column, operator, value = condition
    numeric = table.column(column).numeric
    if operator != "=" and not numeric:
        return False
    return (not numeric or number_of(value) is not None) and spoken(value, question.text) is not None


def spoken(value: str, text: str) -> str | None:
    """The value as the question writes it, in its upper and lower case; None if it does not stand there by itself."""
    found = re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text, re.I)
    if found is None and number_of(value):
        found = re.search(rf"(?<![\w.,]){re.escape(value.replace(',', ''))}(?![\w])", text)
    return found.group() if found else None


def _aggregate(question: WikiQuestion, table: WikiTable) -> str | None:
    """The aggregate that the words ask for; None if SQL and words contradict each other."""
    text = _without_values(question)
    said = {name for name, words in _WORDS.items() if words.search(text)}
    return _RULES[question.aggregate](question, table, said)


def _without_values(question: WikiQuestion) -> str:
    text = _COMPARISON.sub(" ", question.text)
    for _, _, value in question.conditions:
        text = re.sub(re.escape(value), " ", text, flags=re.I)
    for name in question.columns:
        text = re.sub(rf"\b{re.escape(name)}\b", " ", text, flags=re.I) if _aggregating(name) else text
    return text


def _aggregating(name: str) -> bool:
    return any(words.search(name) for words in _WORDS.values())


def _plain(question: WikiQuestion, table: WikiTable, said: set[str]) -> str | None:
    numeric = table.column(question.select).numeric
    return "" if not said - {"MAX", "MIN"} or (numeric and said <= {"COUNT"}) else None


def _count(question: WikiQuestion, table: WikiTable, said: set[str]) -> str | None:
    """A number column is rarely what is counted: "how many deaths" wants the deaths, not the rows."""
    del said
    asks = re.search(r"\bhow many\b|\bnumber of\b|\bhow often\b|\bcount\b", question.text, re.I)
    if not asks:
        return None
    return None if table.column(question.select).numeric and "times" not in question.text else "COUNT"


def _sum(question: WikiQuestion, table: WikiTable, said: set[str]) -> str | None:
    if not table.column(question.select).numeric:
        return None
    if "SUM" not in said:
        return _cell(question, said)
    return None if re.search(r"\b(total )?number of\b", question.text, re.I) else "SUM"


def _cell(question: WikiQuestion, said: set[str]) -> str | None:
    """No aggregate, where no word asks for one: "how many byes" wants the number in that column."""
    return "" if question.conditions and said <= {"COUNT"} else None


def _average(question: WikiQuestion, table: WikiTable, said: set[str]) -> str | None:
    if not table.column(question.select).numeric:
        return None
    return "AVG" if "AVG" in said else _cell(question, said)


def _extreme(name: str) -> Callable[[WikiQuestion, WikiTable, set[str]], str | None]:
    def extreme(question: WikiQuestion, table: WikiTable, said: set[str]) -> str | None:
        if not table.column(question.select).numeric:
            return None
        return name if name in said else _cell(question, said)

    return extreme


_RULES: Mapping[str, Callable[[WikiQuestion, WikiTable, set[str]], str | None]] = {
    "": _plain,
    "COUNT": _count,
    "SUM": _sum,
    "AVG": _average,
    "MAX": _extreme("MAX"),
    "MIN": _extreme("MIN"),
}


def counts_distinct(question: WikiQuestion) -> bool:
    """Whether different values are counted, not rows."""
    return question.aggregate == "COUNT" and _DISTINCT.search(question.text) is not None
