"""The signs of a wrong answer, in one table. A new sign is a function and a line of `_SIGNS`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tools.linking.link_schema import Link
from tools.linking.match_values import ValueMatch
from tools.repair.doubt import content_signs, shape_signs
from tools.repair.doubt.evidence import Evidence
from tools.schema import Schema


@dataclass(frozen=True, slots=True)
class Sign:
    """A reason to doubt an answer. `sentence` is for people; `strict` signs are hardly ever seen on right answers."""

    name: str
    sentence: str
    strict: bool


@dataclass(frozen=True, slots=True)
class _Rule:
    """How a sign is found: `find` gives what goes into its sentence at `{}`, once for each time that it is seen."""

    name: str
    strict: bool
    sentence: str
    find: Callable[[Evidence], Iterator[str]]


_SIGNS = (
    _Rule("unjoinable_in", True, "It compares {}, which hold different things.", shape_signs.unjoinable_in),
    _Rule("equal_halves", True, "Both halves of the {} are the same query.", shape_signs.equal_halves),
    _Rule("selected_and_fixed", True, "It shows {}, although every row has the same value there.",
          shape_signs.selected_and_fixed),
    _Rule("join_off_keys", True, "It joins on {}, which no key connects.", shape_signs.join_off_keys),
    _Rule("key_aggregate", False, "It computes {} of a key.", shape_signs.key_aggregate),
    _Rule("text_as_number", False, "It reads the text of {} as a number.", shape_signs.text_as_number),
    _Rule("unsaid_literal", True, "It looks for {}, which the question doesn't say.", content_signs.unsaid_literal),
    _Rule("column_without_evidence", False, "Nothing in the question points to {}.",
          content_signs.column_without_evidence),
    _Rule("named_table_unused", False, "The question names {}, which it doesn't use.",
          content_signs.named_table_unused),
)  # fmt: skip
NAMES = tuple(rule.name for rule in _SIGNS)


def signs_of_doubt(
    tree: exp.Expr, schema: Schema, question: str, values: Sequence[ValueMatch] = (), links: Sequence[Link] = ()
) -> tuple[Sign, ...]:
    """The signs that a query is not what was asked, each once, in the order of `NAMES`. Pure: it runs nothing.

    `tree` is the parsed query, and is not changed; `values` and `links` are what linking found in the question.

    Nobody asks for countries that are numbers of singers:

    >>> from sqlglot import parse_one
    >>> from tools.schema import Column, Table
    >>> singer = Table("singer", (Column("singer_id", "INTEGER", primary_key=True), Column("country", "TEXT")))
    >>> tree = parse_one("SELECT country FROM singer WHERE country IN (SELECT singer_id FROM singer)")
    >>> [(sign.name, sign.sentence) for sign in signs_of_doubt(tree, Schema((singer,), "sqlite"), "Which countries?")]
    [('unjoinable_in', 'It compares country with singer_id, which hold different things.')]
    """
    evidence = Evidence(tree, schema, question, values, links)
    seen = ((rule, next(rule.find(evidence), None)) for rule in _SIGNS)
    return tuple(Sign(rule.name, rule.sentence.format(what), rule.strict) for rule, what in seen if what is not None)
