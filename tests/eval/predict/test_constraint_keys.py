"""Keys of constraints, by which replies are told apart: equal where the grammars allow the same."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import pytest

from agent.grammar.constraint import plan_constraint, sql_constraint
from agent.grammar.scope.said import Said
from agent.prompts.profiles.profile import Form
from decoding.tokenizer.tokenizer import Tokenizer
from tests.agent.grammar.heroes import SCHEMA
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.schema import Schema

STOP = frozenset({2})
SAID = Said("Show the publisher id of heroes over 190")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", seed=5, vocab=1000))


def _sql(tokenizer: Tokenizer, said: Said | None, schema: Schema = SCHEMA, **more: Any) -> Hashable:
    return sql_constraint.__wrapped__(schema, more.pop("dialect", "sqlite"), tokenizer, STOP, said=said, **more).key


def _plan(tokenizer: Tokenizer, said: Said | None, schema: Schema = SCHEMA, **more: Any) -> Hashable:
    return plan_constraint.__wrapped__(schema, tokenizer, STOP, said=said, **more).key


def test_constraints_made_of_the_same_have_the_same_key(tokenizer: Tokenizer) -> None:
    copied = Schema(tuple(replace(table) for table in SCHEMA.tables), "sqlite")
    for key in (_sql, _plan):
        assert key(tokenizer, SAID) == key(tokenizer, replace(SAID), copied)
        assert hash(key(tokenizer, SAID)) == hash(key(tokenizer, replace(SAID), copied))


@pytest.mark.parametrize("make", [_sql, _plan])
def test_another_schema_form_or_bound_is_another_key(make: Any, tokenizer: Tokenizer) -> None:
    fewer = Schema(SCHEMA.tables[:2], "sqlite")
    keys = [make(tokenizer, SAID), make(tokenizer, None), make(tokenizer, SAID, fewer)]
    keys += [make(tokenizer, SAID, form=Form("line")), make(tokenizer, SAID, size=2048)]
    keys += [_sql(tokenizer, SAID, dialect="duckdb")]
    assert len(set(keys)) == len(keys)


FLAGS = {
    "like_columns": (True, False),
    "no_amounts": (True, False),
    "dated": (True, False),
    "ordered": (True, False),
    "gaps": (False, True),
    "negated": (False, True),  # the question leaves no room for NOT
    "absent": (False, False),  # nothing is said to be missing
}


@pytest.mark.parametrize(("flag", "sql", "plan"), [(name, *both) for name, both in FLAGS.items()])
def test_a_rule_changes_the_key_of_the_grammar_that_it_changes(
    flag: str, sql: bool, plan: bool, tokenizer: Tokenizer
) -> None:
    """Guards reuse: a rule that demands nothing of this question leaves its grammar, and so the model's reply, the same."""
    changed = replace(SAID, **{flag: True})
    assert (_sql(tokenizer, SAID) != _sql(tokenizer, changed)) is sql
    assert (_plan(tokenizer, SAID) != _plan(tokenizer, changed)) is plan


@pytest.mark.parametrize("change", [{"question": "Which heroes?"}, {"plan": "hero | SELECT _"}, {"around": ("5",)}])
def test_what_was_said_belongs_to_the_key_of_sql(change: dict[str, Any], tokenizer: Tokenizer) -> None:
    assert _sql(tokenizer, SAID) != _sql(tokenizer, replace(SAID, **change))
