"""Signs that compare the query with the question. Each function gives what goes into the sign's sentence."""

from collections.abc import Iterator

from sqlglot import exp

from tools.linking.link_schema import mentions
from tools.linking.word_forms import keys, name_stems, stem
from tools.repair.doubt.evidence import Evidence
from tools.sql.scope import full_name

_SHORTEST_WORD = 3  # letters: shorter literals are codes, which stand for words
_EVERYDAY = ("0", "1")


def unsaid_literal(evidence: Evidence) -> Iterator[str]:
    """A literal that is neither in the question nor a value found in it nor a code, and no word of which is said."""
    found = {value.value.casefold() for value in evidence.values}
    for _, literal in evidence.literals():
        text = literal.name.strip("%_ ")
        words = {stem(word) for word in keys(text)}
        code = len(text) < _SHORTEST_WORD if literal.is_string else text in _EVERYDAY
        said = text.casefold() in found or text.casefold() in evidence.question.casefold()
        if words and not code and not said and not words & evidence.stems and not _part_of_number(text, evidence):
            yield f"'{literal.name}'" if literal.is_string else literal.name


def _part_of_number(text: str, evidence: Evidence) -> bool:
    """Whether digits are those of a number in the question: 1,000 is 1000, and 5.50 is 5.5."""
    digits = evidence.question.replace(",", "")
    return text.rstrip("0").rstrip(".") in digits if text.replace(".", "").isdigit() else False


def column_without_evidence(evidence: Evidence) -> Iterator[str]:
    """A column, other than a key, that no link of the question leads to, and that is not compared with a literal: people say
    "in 1958" and mean a year.
    """
    linked = {(link.table.lower(), link.column.lower()) for link in evidence.links if link.column}
    known = linked | evidence.keys | {evidence.place(column) for column, _ in evidence.literals()}
    for column, place in evidence.columns() if linked else ():
        if place not in known and column.find_ancestor(exp.Join) is None:
            yield f"{place[0]}.{column.name}"


def named_table_unused(evidence: Evidence) -> Iterator[str]:
    """A table whose name the question says, though no name of the query has its words."""
    named = mentions(evidence.schema, _outside_values(evidence)).tables
    tables = {full_name(table) for table in evidence.tree.find_all(exp.Table)}
    names = tables | {column.name for column in evidence.tree.find_all(exp.Column)}
    used = frozenset[str]().union(*map(name_stems, names))
    for table in named:
        if table.casefold() not in {name.casefold() for name in tables} and not name_stems(table) <= used:
            yield table


def _outside_values(evidence: Evidence) -> str:
    """The question without the phrases that are values: a club's name may have the word student."""
    question = evidence.question
    for value in evidence.values:
        question = question.replace(value.phrase, " ")
    return question
