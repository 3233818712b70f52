"""A second opinion on SQL with the question that it should answer: what the question names and the SQL does not, and whether
our own readings of the question give the same rows. `tools.review` says what needs no question.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from sqlglot import exp

from agent.candidates import same_rows
from agent.conversation import Answer
from tools.databases.database import Database
from tools.linking.match_values import match_values
from tools.linking.mentions import QuestionContext
from tools.linking.word_forms import keys, name_stems, stem
from tools.repair.rules import applied, rules_of
from tools.result import Result
from tools.review import Finding, Review, Run, gravest_first
from tools.sql.scope import parse_or_nothing

MEANT = 0.9
"""The least score of a value that the question surely names."""
SURE = 0.9
"""The least confidence of a reading whose rows are held against the SQL."""
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def with_question(found: Review, database: Database, run: Run, question: str, evidence: str, answer: Answer) -> Review:
    """The review, and what the question and our `answer` to it say of the SQL."""
    tree = parse_or_nothing(found.sql, database.dialect)[0]
    more = [*_unused(tree, database, question, evidence), *_readings(found, tree, database, run, answer)]
    return replace(found, findings=gravest_first([*found.findings, *more]))


def _unused(tree: exp.Expr, database: Database, question: str, evidence: str) -> Iterator[Finding]:
    """Values and numbers that the question names and the SQL does not."""
    context = QuestionContext(question, match_values(database, question))
    values = applied(rules_of("values", context), context.values, database.schema(), context)
    literals = [literal.name.casefold() for literal in tree.find_all(exp.Literal)]
    said = {stem(word) for literal in literals for word in keys(literal)}
    said |= {each for node in tree.find_all(exp.Identifier) for each in name_stems(node.name)}
    used = {match.phrase for match in values if match.value.casefold() in literals}
    for match in {match.phrase: match for match in values if match.score >= MEANT}.values():
        if match.phrase not in used and not {stem(word) for word in keys(match.phrase)} & said:
            told = f"The question names {match.phrase} ({match.table}.{match.column} has it), which the SQL doesn't."
            yield Finding("unused_value", "warning", told)
    matched = " ".join(match.phrase for match in values)
    written = _numbers(tree.sql(database.dialect))
    for number in sorted(_numbers(question) - _numbers(matched) - _numbers(evidence)):
        if number not in written and number / 100 not in written:
            yield Finding("unused_value", "warning", f"The question says {number:g}, which the SQL doesn't.")


def _numbers(text: str) -> set[float]:
    found = (each.replace(",", "") for each in _NUMBER.findall(text))
    return {float(each) for each in found if each.count(".") < 2}


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
