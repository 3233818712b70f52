"""The grammar against people's SQL: gold queries pass at every character and every token, in both dialects.

Guards against a mask that forbids what is right. What is rejected is listed with its reason. The whole of Spider:
`GOLD_SAMPLE=1 pytest tests/agent/grammar/test_grammar_gold.py`.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent.grammar.constraint import sql_constraint
from agent.grammar.machine import LexState, Position, beginning, feed
from agent.grammar.scope import catalog_of
from agent.grammar.words import lowered
from decoding.tokenizer import Tokenizer
from tests.agent.spider_gold import FILES, gold
from tests.decoding.models.tiny_models import write_tokenizer
from tools.schema import Schema
from tools.sql.from_sqlite import from_sqlite

REJECTED = json.loads((Path(__file__).parent / "fixtures" / "grammar_rejected.json").read_text())
EVERY = {"spider train": 16, "spider dev": 5, "bird superhero": 1}
STOP = frozenset({2})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 1200)
    return Tokenizer(folder)


def accepted_until(start: Position, sql: str) -> int | None:
    """None where the statement is accepted; else the place of the first character that is not."""
    reading = LexState(start, "gap", " ")
    for place, character in enumerate(lowered(sql)):
        after = feed(reading, character)
        if after is None:
            return place
        reading = after
    end = reading.settled()
    return None if end is not None and end.complete else len(sql)


def sample(name: str) -> list[tuple[Schema, str]]:
    return gold(name)[:: int(os.environ.get("GOLD_SAMPLE", EVERY[name]))]


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
@pytest.mark.parametrize("name", FILES)
def test_gold_is_accepted(name: str, dialect: str) -> None:
    starts: dict[int, Position] = {}
    surprises = []
    for schema, sql in sample(name):
        start = starts.setdefault(id(schema), beginning(catalog_of(schema, dialect)))
        try:
            written = sql if dialect == "sqlite" else from_sqlite(sql, replace(schema, dialect=dialect))
        except ValueError:
            continue  # sqlglot cannot read it
        place = accepted_until(start, written)
        known = any(entry["part"] in " ".join(sql.split()) for entry in REJECTED)
        if place is not None and not known:
            surprises.append(f"{written[:place]} >>> {written[place:]}")
    assert not surprises


@pytest.mark.parametrize("name", FILES)
def test_gold_is_accepted_at_every_token(name: str, tokenizer: Tokenizer) -> None:
    """Each token of the tokenizer's own encoding is in the mask, and what is forced is what follows, but for case."""
    forced_tokens = 0
    for schema, sql in gold(name)[:: len(gold(name)) // 12]:
        if any(entry["part"] in " ".join(sql.split()) for entry in REJECTED):
            continue
        constraint = sql_constraint(schema, "sqlite", tokenizer, STOP)
        state, ids = constraint.start(), tokenizer.encode(" " + sql)
        for place, token in enumerate(ids):
            assert constraint.allowed(state)[token], tokenizer.decode(ids[:place]) + " >>> " + tokenizer.token(token)
            state = constraint.step(state, token)
            forced = constraint.forced(state)
            forced_tokens += len(forced)
            follows = tokenizer.decode(ids[place + 1 :]).lower()
            assert follows.replace(" ", "").startswith(tokenizer.decode(forced).lower().replace(" ", ""))
        assert constraint.allowed(state)[2]
    assert forced_tokens > 100
