"""The grammar in the agent: what it forbids, and what happens where it comes to a dead end.

How several candidates are run, which results are the same, and which candidate is chosen.
"""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import BaseMessage

import agent.ask_model
from agent.assemble import LoadedModel, ModelChoice, load_model
from agent.candidates import OUT_OF_TIME, Candidate, Outcome, elect, fingerprint, outcomes, same_sql
from agent.context import AgentOptions
from agent.conversation import Conversation
from agent.nodes import assess
from decoding.engine.constraint import Mask
from decoding.serving.text_decoder import ChatModel, Completion
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.databases.database import Database
from tools.result import QueryError, Result


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny", max_position_embeddings=4096)
    return load_model(ModelChoice(str(path), profile="compact", dtype="fp32", temperature=1.0))


def first_sql(loaded: LoadedModel, database: Database, **options: bool) -> tuple[str, str]:
    """The first SQL of an untrained model, and what its step's record says."""
    toolbox = loaded.toolbox(database, AgentOptions(max_attempts=1, **options))  # type: ignore[arg-type]
    answer = Conversation(toolbox).ask("How many singers are there?")
    return answer.attempts[0]["sql"], next(step["detail"] for step in answer.steps if step["name"] == "generate")


def test_an_untrained_model_writes_sql_over_the_schema(loaded: LoadedModel, database: Database) -> None:
    sql, _ = first_sql(loaded, database)
    assert sql.upper().startswith(("SELECT", "WITH"))
    free, _ = first_sql(loaded, database, constrain=False)
    assert not free.upper().startswith(("SELECT", "WITH"))


class DeadEnd:
    """A grammar that allows nothing."""

    def __init__(self, size: int) -> None:
        self._size = size

    def start(self) -> int:
        return 0

    def allowed(self, state: int) -> Mask:
        return np.zeros(self._size, bool)

    def admits(self, state: int, token: int) -> bool:
        return False

    def step(self, state: int, token: int) -> int:
        return 0

    def forced(self, state: int) -> tuple[int, ...]:
        return ()


def test_a_dead_end_of_the_grammar_is_decoded_without_it(
    loaded: LoadedModel, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sql_constraint", "plan_constraint"):
        monkeypatch.setattr(agent.ask_model, name, lambda *args, **kw: DeadEnd(loaded.decoder.target.vocab_size))
    sql, detail = first_sql(loaded, database)
    assert sql == first_sql(loaded, database, constrain=False)[0]
    assert "dead end" in detail


def test_a_dead_end_of_what_is_told_leaves_the_grammar(
    loaded: LoadedModel, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = agent.ask_model.sql_constraint

    def bare_only(*args: Any, context: object, **kw: Any) -> Any:
        return DeadEnd(loaded.decoder.target.vocab_size) if context else real(*args, context=context, **kw)

    monkeypatch.setattr(agent.ask_model, "sql_constraint", bare_only)
    sql, detail = first_sql(loaded, database)
    assert sql.upper().startswith(("SELECT", "WITH")) and "bare grammar" in detail


def plan_steps(loaded: LoadedModel, database: Database, **options: Any) -> tuple[list[str], list[str]]:
    """What the records of the plan's steps say, and the prompts of the last."""
    toolbox = loaded.toolbox(database, AgentOptions(max_attempts=1, **options))
    answer = Conversation(toolbox).ask("How many singers are there?")
    call = toolbox.calls["plan"]
    assert toolbox.local
    prompts = [toolbox.local.prompt(call.messages), *call.options.get("other_prompts", ())]
    return [step["detail"] for step in answer.steps if step["name"] == "plan"], prompts


def test_a_doubtful_plan_is_written_again_behind_other_orders_of_the_schema(
    loaded: LoadedModel, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, prompts = plan_steps(loaded, database)
    assert steps == ["", "averaged over 4 orders of the schema"]
    assert 2 <= len(set(prompts)) == len(prompts) <= 4
    assert len({"".join(sorted(prompt)) for prompt in prompts}) == 1, "they hold the same in another order"
    assert [prompt.index("concert(") < prompt.index("singer(") for prompt in prompts[:2]] == [False, True]
    steps, prompts = plan_steps(loaded, database, orders=1)
    assert (len(steps), len(prompts)) == (1, 1)
    with monkeypatch.context() as patched:
        patched.setattr(assess, "MOST_TABLES", len(database.schema().tables) - 1)
        assert plan_steps(loaded, database)[0] == [""], "a large schema"
    monkeypatch.setattr(assess, "LEAST", float("-inf"))
    assert plan_steps(loaded, database)[0] == [""], "a sure plan stays"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_plan_behind_several_orders_is_the_same_text_under_every_method(
    loaded: LoadedModel, database: Database, temperature: float
) -> None:
    Conversation(toolbox := loaded.toolbox(database, AgentOptions(max_attempts=1))).ask("How old is the oldest singer?")
    call = toolbox.calls["plan"]
    assert call.prompts > 1
    options = dict(call.options) | {"temperature": temperature}
    texts = {name: _text(loaded, call.messages, options | {"decoder": name}) for name in loaded.decoder.ready_methods()}
    assert len(texts) >= 5 and len(texts["plain"]) > 10
    assert {name for name, text in texts.items() if text != texts["plain"]} == set()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_method_writes_plain_decodings_text(loaded: LoadedModel, database: Database, temperature: float) -> None:
    """An untrained model goes astray where it can: into small letters amid a keyword that plain decoding gets forced."""
    conversation = Conversation(toolbox := loaded.toolbox(database, AgentOptions(max_attempts=1)))
    conversation.ask("How many singers are from France, and which concerts did they sing in?")
    call = toolbox.calls["generate"]
    options = dict(call.options) | {"temperature": temperature, "max_new_tokens": 80}
    texts = {name: _text(loaded, call.messages, options | {"decoder": name}) for name in loaded.decoder.ready_methods()}
    assert len(texts) >= 5 and len(texts["plain"]) > 40
    assert {name for name, text in texts.items() if text != texts["plain"]} == set()


def test_likelihoods_depend_on_the_text_and_not_on_the_method(loaded: LoadedModel, database: Database) -> None:
    """Guards doubt against the draft: a forced token that was drafted is no choice, and has no probability."""
    conversation = Conversation(toolbox := loaded.toolbox(database, AgentOptions(max_attempts=1)))
    conversation.ask("How many singers are from France, and which concerts did they sing in?")
    call = toolbox.calls["generate"]
    options = dict(call.options) | {"temperature": 0.0, "max_new_tokens": 80, "likelihood": True}
    found = {
        name: _message(loaded, call.messages, options | {"decoder": name}) for name in loaded.decoder.ready_methods()
    }
    plain, rounds = found["plain"].log_probs, found["plain"].rounds
    assert sum(len(each.forced) for each in rounds) > 5
    assert len(plain) == len(rounds)  # one choice in each forward, and none for what is forced
    for message in found.values():
        assert message.log_probs == pytest.approx(plain, abs=1e-3)


def _text(loaded: LoadedModel, messages: Sequence[BaseMessage], options: dict[str, Any]) -> str:
    return _message(loaded, messages, options).text


def _message(loaded: LoadedModel, messages: Sequence[BaseMessage], options: dict[str, Any]) -> Completion:
    return ChatModel(loaded.decoder, raw=True).complete(messages, options | {"options": {}})


def _result(*values: int) -> Result:
    return _rows(*((value,) for value in values))


def _rows(*rows: tuple[Any, ...], truncated: bool = False) -> Result:
    width = len(rows[0]) if rows else 1
    return Result(("c",) * width, ("ANY",) * width, rows, truncated, 1.0)


def _elected(*candidates: Candidate) -> list[str]:
    return [each.sql for each in elect(candidates, "sqlite")]


def test_votes_come_before_likelihood() -> None:
    pair = [Candidate(sql, _result(1), -9.0) for sql in ("a", "b")]
    assert _elected(Candidate("c", _result(2), -1.0), *pair)[0] == "a"


def test_among_equal_votes_the_likeliest_is_chosen_and_the_first_of_equals() -> None:
    assert _elected(Candidate("a", _result(1), -5.0), Candidate("b", _result(2), -2.0)) == ["b", "a"]
    assert _elected(Candidate("a", _result(1)), Candidate("b", _result(2))) == ["a", "b"]


def test_rows_come_before_none_and_errors_last() -> None:
    failed = [Candidate(sql, QueryError("syntax", "no"), 0.0) for sql in "xyz"]
    assert _elected(*failed, Candidate("empty", _result(), -1.0), Candidate("rows", _result(1), -9.0))[:2] == [
        "rows",
        "empty",
    ]


def test_the_order_of_rows_counts_only_between_sorted_statements() -> None:
    """A list that is sorted the other way answers another question; without ORDER BY the order is the engine's."""
    up, down = (
        Candidate("SELECT a FROM t ORDER BY a", _result(1, 2)),
        Candidate("SELECT a FROM t ORDER BY a DESC", _result(2, 1)),
    )
    assert {each.votes for each in elect([up, down], "sqlite")} == {1}
    plain = [Candidate("SELECT a FROM t", _result(*values)) for values in ((1, 2), (2, 1))]
    assert {each.votes for each in elect(plain, "sqlite")} == {2}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_rows((2, "a")), _rows((Decimal("2.00"), "a"))),
        (_rows((1.0,)), _rows((True,))),
        (_rows((0.1 + 0.2,)), _rows((0.3,))),
        (_rows(("a", 1), ("b", 2)), _rows((2, "b"), (1, "a"))),
        (_rows((date(2020, 1, 2),)), _rows(("2020-01-02",))),
    ],
)
def test_equal_results(one: Result, other: Result) -> None:
    assert fingerprint(one, ordered=False) == fingerprint(other, ordered=False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_rows((2,)), _rows(("2",))),
        (_rows((None,)), _rows(("None",))),
        (_rows((123456789012,)), _rows((123456789013,))),
        (_rows((1,), (1,)), _rows((1,))),
        (_rows(("a", 1), ("b", 2)), _rows(("a", 2), ("b", 1))),
        (_rows(("a", "b"), ("b", "a")), _rows(("a", "b"), ("a", "b"))),
        (_rows((1,)), _rows((1,), truncated=True)),
    ],
)
def test_different_results(one: Result, other: Result) -> None:
    """Guards against keys of an id being rounded, lost duplicates, and columns compared without their rows."""
    assert fingerprint(one, ordered=False) != fingerprint(other, ordered=False)


def test_equal_statements_run_once_and_wrong_ones_never() -> None:
    ran: list[str] = []

    def run(sql: str, deadline_s: float) -> Outcome:
        ran.append(sql)
        return _result(len(sql))

    wrong = QueryError("syntax", "no")
    found = outcomes([("a", None), ("bb", wrong), ("a", None), ("ccc", None)], run, 10.0)
    assert found == [_result(1), wrong, _result(1), _result(3)]
    assert ran == ["a", "ccc"]


def test_all_candidates_share_one_deadline() -> None:
    """Guards against k slow candidates taking k times the time of one, and one taking all the time of the others."""
    given: list[float] = []

    def run(sql: str, deadline_s: float) -> Outcome:
        given.append(deadline_s)
        sleep(deadline_s + 0.01)
        return QueryError("timeout", sql)

    found = outcomes([(sql, None) for sql in "abcd"], run, 0.08)
    assert sum(given) <= 0.08
    assert given[0] <= 0.04
    assert found[-1] == OUT_OF_TIME
    assert len(found) == 4


def test_statements_that_sqlglot_cannot_write_are_compared_all_the_same() -> None:
    """Its writer raises AttributeError at DATETIME in DuckDB's dialect, which ended a question whose answer was there."""
    sampled = """SELECT STRFTIME('%Y-%m', DATETIME("a")) FROM t"""
    assert not same_sql(sampled, "SELECT 1", "duckdb")
    assert same_sql(sampled, sampled.replace("SELECT", "select\n") + ";", "duckdb")
