"""Rewrites a follow-up as a self-contained question, if a rule is sure of what its words refer to.

Examples: "How many albums does that artist have?" after an answer that names one artist, and "and stores?" after "How
many artists are there?". The model is trained on complete questions, and the values of a complete question can be looked
up. The field calls this contextual query rewriting (Elgohary et al., "Can You Unpack That?", 2019).
"""

import re

from sqlglot import exp

from agent.follow_ups.follow_up import content_words
from agent.state import Turn
from tools.linking.link_schema import Mentions
from tools.linking.word_forms import name_stems, name_words, split, stem, word_set
from tools.sql.parse_quietly import parse_or_nothing

_LABELS = word_set("name title label")
_PEOPLE = word_set("person one man woman guy place thing")
_LEAD = re.compile(r"[\s.…]*(?:(?:and|but|so|now|then|also|ok|okay|what about|how about)\b[\s,]*)+", re.IGNORECASE)
_POINTING = re.compile(
    r"\b(?:that|this) (?P<noun>\w+)(?P<of>['’]s)?|\b(?P<possessive>his|her|its|their)\b(?= \w)"
    r"|\b(?P<pronoun>it|he|she|him|they|them)\b"
    r"|(?<!\bis )(?<!\bare )(?<!\bwas )(?<!\bwere )\b(?P<place>there)\b(?=[?.!]|\s*$)",
    re.IGNORECASE,
)
_OF_THE_RESULT = re.compile(  # "make it the top five": the list of the former answer, not the thing that it names
    r"\W*(?:(?:please|now|and|then|ok|can you|could you)\W+)*"
    r"(?:make|keep|sort|order|rank|group|split|break|limit|restrict|narrow|reverse|repeat)\s+(?:it|them)\b",
    re.IGNORECASE,
)
_PREPOSITION = re.compile(r"\b(?:from|in|at|to)\s*$", re.IGNORECASE)


def resolve(question: str, turn: Turn, named: Mentions, former: Mentions, dialect: str) -> str | None:
    """The complete question that is meant; None if no rule is sure. `named`, `former`: what the two questions name.

    First the former answer named Ada, then the former question is asked about songs:

    >>> turn = Turn(question="How many singers are from Spain?", sql="SELECT COUNT(*) FROM singer", entity="Ada")
    >>> singer = Mentions(("singer",), (), frozenset(["singer", "song"]), frozenset(["age"]))
    >>> resolve("How old is that singer?", turn, singer, singer, "sqlite")
    'How old is Ada?'
    >>> song = Mentions(("song",), (), singer.table_words, singer.column_words)
    >>> resolve("And songs?", turn, song, singer, "sqlite")
    'How many songs are from Spain?'
    """
    return _with_entity(question, turn, named, dialect) or _with_subject(question, turn["question"], named, former)


def _with_entity(question: str, turn: Turn, named: Mentions, dialect: str) -> str | None:
    """The question with a reference replaced by the one thing that the former answer names or its SQL asks about."""
    found = next((each for each in _POINTING.finditer(question) if _points(each, named)), None)
    if found is None or _OF_THE_RESULT.match(question):
        return None
    plural = found[0].lower() in ("they", "them", "their")
    entity = turn.get("entity") or (None if plural else _asked_about(turn["sql"], dialect))
    if entity is None:
        return None
    before, after = question[: found.start()], question[found.end() :]
    possessive = "'s" if found["possessive"] or found["of"] else ""
    preposition = "in " if found["place"] and not _PREPOSITION.search(before) else ""
    return f"{before}{preposition}{entity}{possessive}{after}"


def _points(found: re.Match[str], named: Mentions) -> bool:
    """Whether "that" is followed by a noun, not by a clause."""
    noun = found["noun"]
    return noun is None or stem(noun.lower()) in named.table_words | named.column_words | _PEOPLE


def _asked_about(sql: str, dialect: str) -> str | None:
    """The only string that the SQL compares a column with, if the column is a name or title."""
    texts = [
        each for tree in parse_or_nothing(sql, dialect) for each in tree.find_all(exp.EQ) if each.expression.is_string
    ]
    if len(texts) != 1 or not _LABELS.intersection(name_words(texts[0].this.name)):
        return None
    return str(texts[0].expression.this)


def _with_subject(question: str, former: str, named: Mentions, formerly: Mentions) -> str | None:
    """The former question with the table that it names replaced by the one that this question consists of."""
    led = _LEAD.match(question)
    core = question[led.end() :].strip(" ?.!") if led else ""
    words = content_words(core)
    new = [name for name in named.tables if words <= name_stems(name)]
    known = {word for name in formerly.tables for word in name_stems(name)}
    old = [word for word in split(former) if stem(word.key) in known]
    if not words or len(new) != 1 or len({word.key for word in old}) != 1:
        return None
    return f"{former[: old[0].start]}{core}{former[old[0].end :]}"
