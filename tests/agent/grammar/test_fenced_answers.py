"""Answers of chat models: SQL in several lines before a closing fence, and texts that come to an end before their limit."""

import random

import numpy as np
import pytest

from agent.grammar.constraint import plan_constraint, sql_constraint
from agent.grammar.facts import facts_of
from agent.grammar.machine import LexState, Position, beginning, feed
from agent.grammar.rules import plan_catalog
from agent.grammar.scope import catalog_of
from agent.grammar.words import lowered
from agent.prompts.slots import Form, parse_plan
from decoding.tokenizer import Tokenizer
from tests.agent.grammar.random_statements import offers
from tests.agent.grammar.test_grammar import SCHEMA, STOP, reference
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.linking.match_values import ValueMatch
from tools.linking.mentions import QuestionContext

FENCE = Form("fence", 30)
LINES = "SELECT Name,\n       Age\nFROM singer\nWHERE Age > 30\n  AND Country = 'x'\nORDER BY Age DESC;\n"
VALUE = ValueMatch("concert", "Title", "Home Is", "Home Is", 1.0)
TOLD = facts_of(SCHEMA, QuestionContext("Who sang at 'Home Is'?", (VALUE,)))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", seed=5, vocab=1000))


def accepted(text: str, lines: bool = True) -> bool:
    reading: LexState | None = LexState(beginning(catalog_of(SCHEMA, "sqlite"), lines))
    for character in text.lower():
        reading = feed(reading, character) if reading else None
    end = reading.settled() if reading else None
    return end is not None and end.complete


def test_lines_end_between_words_and_nowhere_else() -> None:
    assert accepted(LINES) and not accepted(LINES, lines=False)
    assert accepted("\nselect name\nfrom singer")
    for text in (
        "select name\n\nfrom singer",
        "sel\nect name from singer",
        "select name from singer where name = 'a\nb'",
    ):
        assert not accepted(text), text
    assert accepted(f"select name\n{' ' * 12}from singer") and not accepted(f"select name\n{' ' * 13}from singer")


def test_a_fence_ends_a_statement_and_nothing_follows_it(tokenizer: Tokenizer) -> None:
    """A statement in one line is ended by a fence too, but not by the end of its line."""
    constraint = sql_constraint(SCHEMA, "sqlite", _Fencing(tokenizer), STOP, form=FENCE)  # type: ignore[arg-type]
    state = constraint.start()
    for token in tokenizer.encode("SELECT Name FROM"):
        state = constraint.step(state, token)
    assert not constraint.allowed(state)[[2, _Fencing.fence]].any()
    for token in tokenizer.encode(" singer"):
        state = constraint.step(state, token)
    newline = tokenizer.encode("\n")[0]
    assert constraint.allowed(state)[[2, _Fencing.fence, newline]].all()
    after_line = constraint.step(state, newline)
    assert constraint.allowed(after_line)[[2, _Fencing.fence]].all() and constraint.allowed(after_line).sum() > 2
    ended = constraint.step(after_line, _Fencing.fence)
    assert constraint.allowed(ended).nonzero()[0].tolist() == sorted([2, _Fencing.fence])


class _Fencing:
    """The tiny tokenizer, with a token that spells the end of a block."""

    fence = 300

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def token(self, number: int) -> str:
        return "Ċ```" if number == self.fence else self._tokenizer.token(number)


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
def test_masks_equal_the_reference(dialect: str, tokenizer: Tokenizer) -> None:
    constraint, dice = sql_constraint(SCHEMA, dialect, tokenizer, STOP, form=Form("fence", 8)), random.Random(4)
    broken = 0
    for _ in range(8):
        state = constraint.start()
        for _ in range(30):
            mask = constraint.allowed(state)
            assert np.array_equal(mask, reference(constraint, state, tokenizer)), state.reading
            tokens = [token for token in mask.nonzero()[0].tolist() if token not in STOP]
            if not tokens:
                break
            state = constraint.step(state, dice.choice(tokens))
            broken += state.reading.kind == "gap" and "\n" in state.reading.text
    assert broken, "some line ended"


def wander(position: Position, seed: int, most: int, without: str = ";") -> list[str]:
    """Lexemes at random: until the text may end once it is longer than `FENCE.long`, and `most` at most."""
    words, dice = list[str](), random.Random(seed)
    while len(words) < most and not (position.complete and len(words) >= (FENCE.long or 0)):
        offered = offers(position, dice, without)
        if not offered:  # aliases may be used up where they are owed; such a dead end is no end
            return words if position.complete else [*words, *[""] * most]
        kind, text = dice.choice(offered)
        after = position.after(kind, lowered(text))
        if after is not None:  # otherwise a new name that is taken
            position = after
            words.append(text)
    return words


def test_an_alias_that_is_taken_leads_nowhere(tokenizer: Tokenizer) -> None:
    """`T1` cannot grow, so once it is written a refused one would be a dead end."""
    constraint = sql_constraint(SCHEMA, "sqlite", tokenizer, STOP, form=FENCE, context=QuestionContext("Who?"))
    one, two = (tokenizer.encode(digit)[0] for digit in "12")
    state = constraint.start()
    for token in tokenizer.encode("SELECT T1.Title FROM singer AS T"):
        state = constraint.step(state, token)
    assert constraint.allowed(state)[[one, two]].tolist() == [False, True] and not constraint.admits(state, one)


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
def test_statements_of_a_lost_model_end(dialect: str) -> None:
    """Guards against SQL that is cut: a model that opens one sub-query after the other writes up to its limit."""
    ended = {}
    for long in (None, FENCE.long):
        starts = [beginning(catalog_of(SCHEMA, dialect, facts), long=long) for facts in (None, TOLD)]
        ended[long] = sum(len(wander(start, seed, 200)) < 200 for start in starts for seed in range(25))
    assert ended[FENCE.long] >= 44 and ended[None] < 10, ended


def test_plans_of_a_lost_model_end() -> None:
    """A value that the plan must name may still be named after the limit."""
    for seed in range(60):
        for facts in (None, TOLD):
            words = wander(beginning(plan_catalog(SCHEMA, facts), long=FENCE.long), seed, 60, without="")
            assert len(words) < 60 and parse_plan(" ".join(words)).tables


def test_plans_end_in_tokens_too(tokenizer: Tokenizer) -> None:
    constraint, dice = plan_constraint(SCHEMA, tokenizer, STOP, form=Form("line", 10)), random.Random(2)
    newline = tokenizer.encode("\n")[0]
    for _ in range(5):
        state = constraint.start()
        for _ in range(400):
            tokens = constraint.allowed(state).nonzero()[0].tolist()
            if newline in tokens:
                break
            state = constraint.step(state, dice.choice(tokens))
        assert newline in tokens
