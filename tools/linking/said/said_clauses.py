"""Says which words of SQL a question surely needs, and which it surely does not: the counting of groups, and negations."""

import re
from dataclasses import dataclass

from tools.linking.said.said_columns import keys_of
from tools.linking.word_forms import NUMBER_WORDS, name_stems, name_words, split, stem, word_set
from tools.schema import Schema
from tools.sql.scope import is_number, type_kind

NEGATIONS = frozenset({"not", "except", "<>", "!="})
_PERHAPS = re.compile(
    r"\b(?:no|not|without|never|none|neither|nor|cannot|but|except|excluding|excludes?|outside|besides|apart|rather|instead"
    r"|others?|another|else|rest|remaining|differ|differs|different|free|lacks?|missing|null|empty|avoid|available|only|all"
    r"|always|any|every|able|yet|still|friends?|co\w*|un\w+|non\w*|(?:is|are|was|were|do|does|did|has|have|had)n\w*)\b"
    r"|n['’]t\b",
    re.I,
)  # words with which gold queries may negate without being asked to in so many words
_NUMBERS = "|".join(NUMBER_WORDS[2:13])
_COUNTED = re.compile(
    rf"\b(?:(?:more than|over) one|(?:more than|at least|fewer than|less than|at most|exactly|over) (?:{_NUMBERS}|1?\d|20)) "
    r"(\w+(?: \w+)?)",
    re.I,
)
_OF_ALL = re.compile(r"\bfor (?:all|each|every)\b", re.I)  # "for all directors of more than one movie": the movies
_AMOUNTS = word_set("number num total count amount quantity capacity size")

Words = frozenset[str]


@dataclass(frozen=True, slots=True)
class SaidClauses:
    """`needed`: of each set, SQL has a word or a sign. `unsaid`: what it has nothing of. All in lower case."""

    needed: tuple[Words, ...] = ()
    unsaid: Words = frozenset()


def said_clauses(schema: Schema, question: str, *, negated: bool = True, having: bool = True) -> SaidClauses:
    """What the question says of groups that are counted, if `having`, and that it does not negate, if `negated`.

    >>> from tools.schema import Column, Table
    >>> schema = Schema((Table("airports", (Column("city", "TEXT"),)),), "sqlite")
    >>> said = said_clauses(schema, "Which cities have more than 3 airports?")
    >>> said.needed, sorted(said.unsaid)
    ((frozenset({'count'}),), ['!=', '<>', 'except', 'not'])
    >>> said_clauses(schema, "Which cities have no airports?").unsaid
    frozenset()
    """
    needed = (frozenset({"count"}),) if having and _counts_rows(schema, question) else ()
    return SaidClauses(needed, NEGATIONS if negated and not _PERHAPS.search(question) else frozenset())


def _counts_rows(schema: Schema, question: str) -> bool:
    """Whether a number of rows of a table is asked for: "more than 3 airports", where no column holds that number."""
    if _OF_ALL.search(question):
        return False
    tables = {tuple(map(stem, name_words(table.name))) for table in schema.tables}
    keys = keys_of(schema)
    held = [
        name_stems(column.name)
        for table in schema.tables
        for column in table.columns
        if is_number(type_kind(column.type)) and (table.name.lower(), column.name.lower()) not in keys
    ]
    for found in _COUNTED.finditer(question):
        words = tuple(stem(word.key) for word in split(found[1]))
        thing = next((words[:size] for size in (2, 1) if words[:size] in tables), None)
        if thing and not any(_holds_number(name, frozenset(thing)) for name in held):
            return True
    return False


def _holds_number(name: Words, thing: Words) -> bool:
    """Whether a column of this name holds how many there are of the things."""
    return name == thing or (thing <= name and bool(name & _AMOUNTS))
