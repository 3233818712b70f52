"""A second opinion on SQL with the question that it should answer: what the question names and the SQL does not, and whether
our own readings of the question give the same rows. `tools.review` says what needs no question.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from sqlglot import exp

from agent.candidates import same_rows
from agent.conversation import Answer
from tools.databases.database import Database
from tools.linking.match_values import ValueMatch, match_values, relation
from tools.linking.mentions import QuestionContext
from tools.linking.word_forms import keys, name_stems, stem
from tools.repair.rules import applied, rules_of
from tools.result import Result
from tools.review import Finding, Review, Run, gravest_first, repeated_by_joins
from tools.sql.scope import parse_or_nothing, type_kind

MEANT = 0.9
"""The least score of a value that the question surely names."""
SURE = 0.9
"""The least confidence of a reading whose rows are held against the SQL."""
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_DIGITS = re.compile(r"\d+")
_MINUTES = re.compile(r"(?<=\d):\d\d\b")
_PM = re.compile(r"\b(1[0-2]|[1-9]) ?(?:pm\b|p\.m\.)", re.IGNORECASE)
_EXPLAINED = re.compile(r"\b\d+ (?:is|means|meaning|stands for|=) |\(\d+ ?(?:to|-|–) ?\d+\)")
_CLAUSES = re.compile(r"[,;:()]|[.?!] | - | – ")
_INCLUDED = re.compile(r"\bincluded|\bincluding|\b(?:also|too|as well|counts?)[.?! ]*$", re.IGNORECASE)
_ENDINGS = ("ation", "ance", "ing", "ion", "ed", "er", "e")
_UNITS = (1, 0.01, 60, 100, 1000)
"""What a number may be multiplied by where a column is kept in another unit: per cent, minutes, cents, grams."""


def with_question(
    found: Review, database: Database, run: Run, question: str, evidence: str, answer: Answer | None
) -> Review:
    """The review, and what the question and our `answer` to it, if there is one, say of the SQL."""
    tree = parse_or_nothing(found.sql, database.dialect)[0]
    more = [*_unused(tree, database, run, question, evidence)]
    more += repeated_by_joins(found.sql, database, run, question)
    more += _readings(found, tree, database, run, answer) if answer else ()
    return replace(found, findings=gravest_first([*found.findings, *more]))


def _unused(tree: exp.Expr, database: Database, run: Run, question: str, evidence: str) -> Iterator[Finding]:
    """Values and numbers that the question names and the SQL does not, neither in another form nor by a code."""
    context = QuestionContext(question, match_values(database, question))
    values = applied(rules_of("values", context), context.values, database.schema(), context)
    literals = {literal.name.casefold() for literal in tree.find_all(exp.Literal)}
    said = {_root(word) for literal in literals for word in keys(literal)}
    said |= {_root(each) for node in tree.find_all(exp.Identifier) for each in name_stems(node.name)}
    compared = {each.name.casefold() for each in tree.find_all(exp.Literal) if isinstance(each.parent, exp.Predicate)}
    used = {match.phrase for match in values if match.value.casefold() in literals}
    for match in {match.phrase: match for match in values if match.score >= MEANT}.values():
        is_said = match.phrase in used or not said.isdisjoint(map(_root, keys(match.phrase)))
        if is_said or _is_included(match.phrase, question) or _is_coded(match, compared, database, run):
            continue
        told = f"The question names {match.phrase} ({match.table}.{match.column} has it), which the SQL doesn't."
        yield Finding("unused_value", "warning", told)
    matched = " ".join(match.phrase for match in values)
    written = _numbers(tree.sql(database.dialect)) | {part for each in literals for part in _date_parts(each)}
    for number in sorted(_asked_numbers(question) - _numbers(matched) - _numbers(evidence)):
        if written.isdisjoint(number * unit for unit in _UNITS):
            yield Finding("unused_value", "warning", f"The question says {number:g}, which the SQL doesn't.")


def _root(word: str) -> str:
    """The word without the endings of its verb and its nouns: booked and booking, offer and offered become equal."""
    short = stem(word)
    return next(
        (short.removesuffix(each) for each in _ENDINGS if short.endswith(each) and len(short) > len(each) + 3), short
    )


def _is_included(phrase: str, question: str) -> bool:
    """Whether the question says of a value that it makes no difference: "cancelled ones included"."""
    return any(phrase in part and _INCLUDED.search(part) for part in _CLAUSES.split(question))


def _is_coded(match: ValueMatch, compared: Collection[str], database: Database, run: Run) -> bool:
    """Whether the SQL has the value's code: the row of the one has the other in another column, and no other row has."""
    table, place = database.schema().table(match.table), exp.column(match.column, quoted=True)
    codes = [
        exp.column(each.name, quoted=True)
        for each in (table.columns if table else ())
        if each.name != match.column and type_kind(each.type) in ("text", "integer", None)
    ]
    if table is None or not codes:
        return False
    source = relation(match.table)
    ends = [end(this=code.copy()) for code in codes for end in (exp.Min, exp.Max)]
    of_value = run(exp.select(*ends).from_(source).where(place.eq(match.value)).sql(database.dialect))
    if not isinstance(of_value, Result):
        return False
    row = of_value.rows[0]
    for code, least, most in zip(codes, row[::2], row[1::2], strict=True):
        if least is None or least != most or str(least).casefold() not in compared:
            continue
        others = run(
            exp.select("1").from_(source).where(code.eq(least), place.neq(match.value)).limit(1).sql(database.dialect)
        )
        if isinstance(others, Result) and not others.rows:
            return True
    return False


def _asked_numbers(question: str) -> set[float]:
    """The numbers of a question, without those that explain a code ("0 is Sunday") and without minutes; 5 pm is 17."""
    text = _PM.sub(lambda found: str(int(found[1]) % 12 + 12), _MINUTES.sub("", question))
    return _numbers(_EXPLAINED.sub("", text))


def _numbers(text: str) -> set[float]:
    found = (each.replace(",", "") for each in _NUMBER.findall(text))
    return {float(each) for each in found if each.count(".") < 2}


def _date_parts(literal: str) -> Iterator[float]:
    """The numbers of a date, a month or a time: 2023, 9 and 1 of 20230901 and of 01.09.2023; also 2025 of /25."""
    for digits in _DIGITS.findall(literal):
        yield float(digits)
        if len(digits) in (6, 8):
            yield from map(float, (digits[:4], digits[4:6], digits[6:] or digits[:4]))
        elif len(digits) == 2:
            yield 2000.0 + float(digits)


def _readings(found: Review, tree: exp.Expr, database: Database, run: Run, answer: Answer) -> Iterator[Finding]:
    """Whether our readings of the question give the rows of the SQL."""
    if answer.error or not answer.sql:
        yield Finding("other_reading", "note", f"We have no reading of the question to compare: {answer.answer}")
        return
    own, theirs = run(answer.sql), run(found.sql)
    if not isinstance(own, Result) or not isinstance(theirs, Result):
        return
    sure = f" ({answer.confidence:.0%} sure)" if answer.confidence is not None else ""
    if same_rows(own, theirs):
        yield Finding("same_reading", "note", f"Our reading of the question{sure} gives the same rows.", answer.sql)
        return
    others = [(each["sql"], run(each["sql"])) for each in answer.alternatives]
    if like := next(
        (sql for sql, outcome in others if isinstance(outcome, Result) and same_rows(outcome, theirs)), None
    ):
        told = f"Our reading of the question{sure} gives other rows; another of our readings gives the same."
        yield Finding("same_reading", "note", f"{told}", like)
    more = _conditions(parse_or_nothing(answer.sql, database.dialect)[0]) - _conditions(tree)
    told = f"Our reading of the question{sure} gives {_size(own)}, this SQL {_size(theirs)}"
    lacks = f"; the SQL doesn't say {' and '.join(sorted(more))}" if more else ""
    surely = not like and (answer.confidence or 0.0) >= SURE
    yield Finding("other_reading", "warning" if surely else "note", f"{told}{lacks}.", answer.sql)


def _size(result: Result) -> str:
    if len(result.rows) == 1 == len(result.columns):
        return str(result.rows[0][0])
    return f"{len(result.rows):,}{'+' if result.truncated else ''} other rows"


def _conditions(tree: exp.Expr) -> set[str]:
    """What columns are compared with, without the names of tables."""
    compared = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Like, exp.ILike, exp.In, exp.Between, exp.Is)
    found = set()
    for node in tree.find_all(*compared):
        if not node.find(exp.Query) and not isinstance(node.expression, exp.Column):
            bare = node.copy()
            for column in bare.find_all(exp.Column):
                column.replace(exp.column(column.name.lower()))
            found.add(bare.sql())
    return found
