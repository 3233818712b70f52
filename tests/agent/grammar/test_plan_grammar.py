"""The plan's constraint: what gold queries need may be planned, names that are not there may not, and every text parses."""

import random

import numpy as np
import pytest

from agent.grammar.constraint import plan_constraint
from agent.grammar.machine import LexState, beginning, feed
from agent.grammar.rules import plan_catalog
from agent.prompts.slots import parse_plan
from decoding.tokenizer import Tokenizer
from eval.datasets.gold_sql import GoldError, normalise, plan_answer
from tests.agent.grammar.test_grammar import SCHEMA, STOP
from tests.agent.spider_gold import gold
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.schema import Schema


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", seed=5, vocab=1000))


def accepted(text: str, schema: Schema = SCHEMA) -> bool:
    reading: LexState | None = LexState(beginning(plan_catalog(schema)))
    for character in text.lower():
        reading = feed(reading, character) if reading else None
    end = reading.settled() if reading else None
    return end is not None and end.complete


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("singer: Name, Age; concert: Year | SELECT COUNT(*) FROM _, _ WHERE _ = _", True),
        ('singer; "Order" | SELECT _ FROM _', False),  # `Order` is a plain identifier: the prompt writes it bare
        ('Order: "Full Price" | SELECT MAX(_) FROM _ ORDER BY _ DESC LIMIT _', True),
        ("singer | SELECT COUNT(*) FROM _", True),
        ("singers | SELECT COUNT(*) FROM _", False),
        ("singer: Title | SELECT _ FROM _", False),  # a column of another table
        ("singer: Name, Name | SELECT _ FROM _", False),
        ("singer: Name; singer: Age | SELECT _ FROM _", False),
        ("singer: Name |", False),
        ("singer: Name | _ FROM _", False),
        ("singer: Name | SELECT COUNT(_ FROM _", False),
        ("singer: Name | SELECT Name FROM singer", False),  # names belong before the bar
    ],
)
def test_what_is_a_plan(text: str, good: bool) -> None:
    assert accepted(text) is good


def test_plans_of_gold_queries_may_be_written() -> None:
    """Every tenth of Spider's training queries, every fourth of its dev queries, in SQLite's style."""
    golds = gold("spider train")[::10] + gold("spider dev")[::4]
    refused, asked = [], 0
    for schema, sql in golds:
        try:
            plan = plan_answer(normalise(sql, schema), schema).text()
        except GoldError:
            continue
        asked += 1
        refused += [] if accepted(plan, schema) else [plan]
    assert asked > 500
    assert refused == []


def test_random_plans_parse_and_name_what_is_there(tokenizer: Tokenizer) -> None:
    """Guards against dead ends, too: a comma where no column is left. Of names, the lexer checks ASCII letters only."""
    schema = Schema(SCHEMA.tables[:2], "sqlite")
    constraint, dice = plan_constraint(schema, tokenizer, STOP), random.Random(1)
    columns = {table.name: {column.name.lower() for column in table.columns} for table in schema.tables}
    parsed = 0
    for _ in range(150):
        state, tokens = constraint.start(), list[int]()
        for _ in range(200):
            allowed = constraint.allowed(state).nonzero()[0].tolist()
            assert allowed, tokenizer.decode(tokens)
            token = 2 if 2 in allowed else dice.choice(allowed)
            if token in STOP:
                break
            tokens.append(token)
            state = constraint.step(state, token)
        if token in STOP:
            plan = parse_plan(tokenizer.decode(tokens).lower())
            assert all(set(table.columns) <= columns[table.name] for table in plan.tables), plan
            parsed += 1
    assert parsed > 30


def test_masks_equal_the_reference(tokenizer: Tokenizer) -> None:
    constraint, dice = plan_constraint(SCHEMA, tokenizer, STOP), random.Random(3)
    for _ in range(5):
        state = constraint.start()
        for _ in range(30):
            mask = constraint.allowed(state)
            reference = np.array([constraint.admits(state, token) for token in range(tokenizer.vocab_size)])
            assert np.array_equal(mask, reference), tokenizer.decode(state.recent)
            tokens = [token for token in mask.nonzero()[0].tolist() if token not in STOP]
            if not tokens:
                break
            state = constraint.step(state, dice.choice(tokens))
