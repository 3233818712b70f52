"""Keys of constraints, by which replies are told apart: equal where the grammars allow the same."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import pytest

from agent.grammar.constraint import plan_constraint, sql_constraint
from agent.prompts.profile import Form
from decoding.tokenizer import Tokenizer
from tests.agent.grammar.heroes import SCHEMA
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.linking.question_context import QuestionContext
from tools.schema import Schema

STOP = frozenset({2})
CONTEXT = QuestionContext("How many heroes of most height are over 190?")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", seed=5, vocab=1000))


def _sql(tokenizer: Tokenizer, context: QuestionContext | None, schema: Schema = SCHEMA, **more: Any) -> Hashable:
    return sql_constraint.__wrapped__(
        schema, more.pop("dialect", "sqlite"), tokenizer, STOP, context=context, **more
    ).key


def _plan(tokenizer: Tokenizer, context: QuestionContext | None, schema: Schema = SCHEMA, **more: Any) -> Hashable:
    return plan_constraint.__wrapped__(schema, tokenizer, STOP, context=context, **more).key


def test_constraints_made_of_the_same_have_the_same_key(tokenizer: Tokenizer) -> None:
    copied = Schema(tuple(replace(table) for table in SCHEMA.tables), "sqlite")
    for key in (_sql, _plan):
        assert key(tokenizer, CONTEXT) == key(tokenizer, replace(CONTEXT), copied)
        assert hash(key(tokenizer, CONTEXT)) == hash(key(tokenizer, replace(CONTEXT), copied))


@pytest.mark.parametrize("make", [_sql, _plan])
def test_another_schema_form_or_bound_is_another_key(make: Any, tokenizer: Tokenizer) -> None:
    fewer = Schema(SCHEMA.tables[:2], "sqlite")
    keys = [make(tokenizer, CONTEXT), make(tokenizer, None), make(tokenizer, CONTEXT, fewer)]
    keys += [make(tokenizer, CONTEXT, form=Form("line")), make(tokenizer, CONTEXT, size=2048)]
    keys += [_sql(tokenizer, CONTEXT, dialect="duckdb")]
    assert len(set(keys)) == len(keys)


CHANGES = {  # of the grammars of SQL and of plans
    "counted": (False, True),
    "keys": (True, False),
    "dates": (True, False),
    "roles": (False, False),  # no role is said
    "wildcards": (False, False),  # it acts on SQL that is written
}


@pytest.mark.parametrize(("rule", "sql", "plan"), [(name, *both) for name, both in CHANGES.items()])
def test_a_rule_changes_the_key_of_the_grammar_that_it_changes(
    rule: str, sql: bool, plan: bool, tokenizer: Tokenizer
) -> None:
    """Guards reuse: a rule that demands nothing of this question leaves its grammar, and so the model's reply, the same."""
    changed = replace(CONTEXT, without=(rule,))
    assert (_sql(tokenizer, CONTEXT) != _sql(tokenizer, changed)) is sql
    assert (_plan(tokenizer, CONTEXT) != _plan(tokenizer, changed)) is plan


@pytest.mark.parametrize("change", [{"question": "Which heroes?"}, {"plan": "hero | SELECT _"}, {"around": ("5",)}])
def test_what_was_said_belongs_to_the_key_of_sql(change: dict[str, Any], tokenizer: Tokenizer) -> None:
    assert _sql(tokenizer, CONTEXT) != _sql(tokenizer, replace(CONTEXT, **change))
