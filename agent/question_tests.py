"""Questions as tests: what is expected of each answer, read from a file, and whether the answers keep to it."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent.assistant import Assistant
from agent.candidates import fingerprint, is_ordered
from agent.conversation import Answer
from tools.databases.files.file_kinds import as_utf8
from tools.result import OpenError, QueryError, Result


class TestsError(ValueError):
    """A file of questions cannot be used; the message is one line that says what to do."""


class QuestionTest(BaseModel):
    """A question and what is expected: the rows, or those of an SQL statement; that the agent asks back or gives no answer;
    that it is at least so sure. `place`: the line of the file, or the number of the entry where it has no lines."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)

    place: int
    question: str = Field(min_length=1)
    evidence: str = ""
    sql: str = ""
    rows: list[list[Any]] | None = None
    asks_back: bool = False
    declines: bool = False
    at_least: float = Field(0.0, ge=0.0, le=1.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an answer keeps to what is expected; `failures`: in sentences, none if it does."""

    place: int
    question: str
    failures: tuple[str, ...]
    sql: str
    answer: str
    confidence: float | None
    seconds: float


def read_tests(path: Path) -> list[QuestionTest]:
    """The tests of a .csv, .jsonl, .yaml or .yml file. Raises TestsError."""
    found = []
    for place, entry in entries_of(path):
        given = {name: value for name, value in entry.items() if value not in (None, "")}
        try:
            found.append(QuestionTest.model_validate(given | {"place": place}))
        except ValidationError as error:
            first = error.errors()[0]
            raise TestsError(f"{path}, {place}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if not found:
        raise TestsError(f"{path}: there are no questions")
    return found


def entries_of(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The entries of such a file by their places; one of another name is read as CSV. Raises TestsError."""
    try:
        with as_utf8(path) as (readable, _):  # spreadsheets write other encodings
            text = readable.read_text(encoding="utf-8-sig")
        found = list(_READERS.get(path.suffix.casefold(), _in_csv)(text))
    except (OSError, OpenError, ValueError, csv.Error) as error:  # JSON's and Unicode's errors are ValueErrors
        raise TestsError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    if wrong := next((place for place, entry in found if not isinstance(entry, dict)), None):
        raise TestsError(f"{path}, {wrong}: write an object with a question and what is expected")
    return found


def _in_csv(text: str) -> Iterator[tuple[int, Any]]:
    separator = max(",;\t|", key=text.partition("\n")[0].count)
    reader = csv.DictReader(text.splitlines(keepends=True), restkey="further cells", delimiter=separator)
    reader.fieldnames = [name.strip().casefold() for name in reader.fieldnames or ()]
    for row in reader:
        if any(row.values()):
            yield reader.line_num, row | ({"rows": json.loads(row["rows"])} if row.get("rows") else {})


def _in_yaml(text: str) -> Iterator[tuple[int, Any]]:
    import yaml  # type: ignore[import-untyped]

    try:
        found = yaml.safe_load(text) or []
    except yaml.YAMLError as error:
        raise ValueError(error) from error
    if not isinstance(found, list):
        raise ValueError("it must be a list of questions")
    yield from enumerate(found, 1)


def _in_json_lines(text: str) -> Iterator[tuple[int, Any]]:
    yield from ((place, json.loads(line)) for place, line in enumerate(text.splitlines(), 1) if line.strip())


_READERS = {".yaml": _in_yaml, ".yml": _in_yaml, ".json": _in_json_lines, ".jsonl": _in_json_lines}


def run_tests(tests: Sequence[QuestionTest], assistant: Assistant, other: Assistant | None = None) -> Iterator[Verdict]:
    """Ask each question, on `other` as well, where a changed answer is a failure. Raises TestsError for SQL of the file that
    does not run, before anything is asked."""
    expected = [_expected(test, assistant) for test in tests]
    for test, rows in zip(tests, expected, strict=True):
        answer = _answer(test, assistant)
        failures = [*_failures(test, answer, rows)]
        if other is not None:
            failures += _changes(answer, _answer(test, other))
        yield Verdict(
            test.place,
            test.question,
            tuple(failures),
            answer.sql or "",
            answer.answer,
            answer.confidence,
            answer.total_ms / 1e3,
        )


def _expected(test: QuestionTest, assistant: Assistant) -> Result | None:
    if test.rows is not None:
        width = len(test.rows[0]) if test.rows else 0
        return Result(("",) * width, ("",) * width, tuple(map(tuple, test.rows)), False, 0.0)
    outcome = assistant.sql(test.sql) if test.sql else None
    if isinstance(outcome, QueryError):
        raise TestsError(f"{test.place}: its SQL does not run: {outcome.message}")
    return outcome


def _answer(test: QuestionTest, assistant: Assistant) -> Answer:
    talk = assistant.conversation()
    talk.toolbox.options = replace(talk.toolbox.options, clarify=test.asks_back)
    return talk.ask(test.question, test.evidence)


def _failures(test: QuestionTest, answer: Answer, expected: Result | None) -> Iterator[str]:
    kind = answer.error["kind"] if answer.error else ""
    if test.asks_back or test.declines:
        if test.asks_back and kind != "unclear":
            yield f"It should ask back, and says: {answer.answer}"
        if test.declines and kind in ("", "failure", "model", "usage"):
            yield f"It should give no answer, and says: {answer.answer}"
        return
    if kind:
        yield f"It gives no answer: {answer.answer}"
        return
    if test.at_least and (answer.confidence or 0.0) < test.at_least:
        sure = "unknown" if answer.confidence is None else f"{answer.confidence:.0%}"
        yield f"It should be {test.at_least:.0%} sure; its confidence is {sure}."
    if expected is not None and not _same(expected, _result(answer), is_ordered(test.sql, answer.dialect)):
        yield f"Expected {_told(expected)}, found {_told(_result(answer))}."


def _changes(answer: Answer, other: Answer) -> Iterator[str]:
    kinds = [each.error["kind"] if each.error else "" for each in (answer, other)]
    if kinds != ["", ""]:
        if kinds[0] != kinds[1]:
            yield f"The other database changes the answer: {other.answer}"
    elif not _same(_result(answer), _result(other), ordered=False):
        yield f"The other database changes the answer from {_told(_result(answer))} to {_told(_result(other))}."


def _result(answer: Answer) -> Result:
    types = ("",) * len(answer.columns)
    return Result(tuple(answer.columns), types, tuple(map(tuple, answer.rows)), answer.truncated, 0.0)


def _same(one: Result, other: Result, ordered: bool) -> bool:
    return (not one.rows and not other.rows) or fingerprint(one, ordered) == fingerprint(other, ordered)


_TOLD = 3  # rows that a failure shows


def _told(result: Result) -> str:
    first = "; ".join(", ".join(map(str, row)) for row in result.rows[:_TOLD])
    more = len(result.rows) - _TOLD
    return f"{first or 'no rows'}{f' and {more:,} rows more' if more > 0 else ''}"
