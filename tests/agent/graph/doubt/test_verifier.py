"""The choice among readings by a verifier, with scripted models and summaries made for the test.

Summaries of readings by the shipped model, in int8 and fp32: those of texts read whole, with a prompt that is not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.assemble import ModelChoice, load_model
from agent.calibration import VERIFIER_FILE as FILE
from agent.calibration import Calibration, Vector, Verifier, Weight, forget_verifier, read_verifier, summary
from agent.context import AgentContext, ReadingWatch
from agent.conversation import Conversation
from agent.nodes import assess
from agent.nodes.assess import query_summaries
from agent.state import State
from decoding.engine.target import AnyTarget, Array
from decoding.errors import ModelUnavailable
from decoding.serving.text_decoder import TextDecoder, text_states
from kernels.cpu.processor import variant
from tests.agent.conftest import Talk
from tests.decoding.engine.reading import read, rows_fed
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.example.build import example_database

SURE = Calibration(0.5, {}, 0.5)  # every answer has a confidence of 0.62, and none is headed
PLAN = "singer: name | SELECT _ FROM _ WHERE _"
PLANS = [f"{PLAN} {place}" for place in "ab"]
SPAIN, FRANCE, OLD = (
    "SELECT name FROM singer WHERE country = 'Spain'",
    "SELECT name FROM singer WHERE country = 'France'",
    "SELECT name FROM singer WHERE age > 30",
)
QUESTION = "Which singers are from Spain?"


def verifier(look_below: float = 0.7, margin: float = 0.1) -> Verifier:
    """The log odds are the first number of a summary."""
    return Verifier(2, np.array([1, 0, 0], np.float32), 0.0, look_below, margin)


@pytest.fixture
def worths(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The first number of each query's summary, by its SQL; to be filled by the test."""
    known: dict[str, float] = {}

    def query_summaries(states: Sequence[State], toolbox: AgentContext, tap: int) -> list[Vector]:
        assert tap == 2
        return [np.array([known[state["sql"]], 9, 9], np.float32) for state in states]

    monkeypatch.setattr(assess, "query_summaries", query_summaries)
    monkeypatch.setattr(assess, "OTHER_PLANS", len(PLANS))
    return known


def looked(talk: Talk, judge: Verifier | None) -> Conversation:
    conversation = talk(PLAN, SPAIN, *PLANS, FRANCE, OLD, rerank=True)
    conversation.toolbox.calibration, conversation.toolbox.verifier = SURE, judge
    return conversation


def test_the_reading_with_the_best_odds_is_the_answer(talk: Talk, worths: dict[str, float]) -> None:
    """Guards against choosing by confidence, which is the same for all here."""
    worths |= {SPAIN: 0.5, FRANCE: 0.7, OLD: 0.9}
    answer = looked(talk, verifier()).ask(QUESTION)
    assert (answer.sql, answer.rows) == (OLD, [["Ada"], ["Bo"]])
    assert [other["sql"] for other in answer.alternatives] == [SPAIN, FRANCE]
    assert [step["detail"] for step in answer.steps if step["name"] == "verify"] == ["3 readings"]


def test_a_reading_that_is_hardly_better_is_offered_only(talk: Talk, worths: dict[str, float]) -> None:
    worths |= {SPAIN: 0.5, FRANCE: 0.4, OLD: 0.55}
    answer = looked(talk, verifier()).ask(QUESTION)
    assert answer.sql == SPAIN
    assert [other["sql"] for other in answer.alternatives] == [OLD, FRANCE]


def test_what_was_compared_has_the_confidence_of_its_odds(talk: Talk, worths: dict[str, float]) -> None:
    """Guards against the confidence of a first answer, 0.62 for all, and against the odds of another reading."""
    worths |= {SPAIN: 0.5, FRANCE: 0.7, OLD: 0.9}
    by_worth = Calibration(0.25, {"first": Weight(0.5, 1.0, 2.0), "verifier": Weight(0.0, 1.0, 2.0)}, 0.6)
    answer = looked(talk, replace(verifier(), calibration=by_worth)).ask(QUESTION)
    assert (answer.sql, answer.confidence) == (OLD, pytest.approx(1 / (1 + exp(-(0.25 + 2 * 0.9)))))
    odds = {SPAIN: 0.25 + 2 * 0.5, FRANCE: 0.25 + 2 * 0.7}
    assert {other["sql"]: other["confidence"] for other in answer.alternatives} == {
        sql: pytest.approx(1 / (1 + exp(-each))) for sql, each in odds.items()
    }
    assert not answer.probably_wrong


def test_plans_that_agree_make_an_answer_surer(talk: Talk, worths: dict[str, float]) -> None:
    """Guards against a confidence that does not know that nearly all other plans gave these rows."""
    worths |= {SPAIN: 0.5, FRANCE: 0.1, OLD: 0.2}
    by_votes = Calibration(0.0, {"votes": Weight(2.0, 1.0, 1.0)}, 0.3)
    found = {}
    for lines in ((SPAIN, SPAIN), (SPAIN, OLD), (FRANCE, OLD)):
        talking = talk(PLAN, SPAIN, *PLANS, *lines, rerank=True)
        talking.toolbox.calibration, talking.toolbox.verifier = SURE, replace(verifier(), calibration=by_votes)
        answer = talking.ask(QUESTION)
        assert (answer.sql, answer.features["votes"]) == (SPAIN, answer.votes) and answer.plans == len(PLANS)
        found[answer.votes] = answer.confidence
    assert list(found) == sorted(found, reverse=True) and list(found.values()) == sorted(found.values(), reverse=True)
    assert len(found) == 3


def test_an_answer_that_comparing_makes_doubtful_is_headed(talk: Talk, worths: dict[str, float]) -> None:
    worths |= {SPAIN: -0.5, FRANCE: -0.6, OLD: -0.7}
    by_worth = Calibration(0.0, {"verifier": Weight(0.0, 1.0, 2.0)}, 0.5)
    answer = looked(talk, replace(verifier(), calibration=by_worth)).ask(QUESTION)
    assert (answer.sql, answer.probably_wrong) == (SPAIN, True)


def test_an_answer_with_enough_confidence_is_not_looked_at_again(talk: Talk, worths: dict[str, float]) -> None:
    answer = looked(talk, verifier(look_below=0.6)).ask(QUESTION)
    assert (answer.sql, answer.alternatives) == (SPAIN, [])
    assert worths == {}


def test_without_a_verifier_only_headed_answers_are_looked_at_again(talk: Talk, worths: dict[str, float]) -> None:
    assert looked(talk, None).ask(QUESTION).alternatives == []


def test_whoever_watches_gets_the_readings_of_every_answer(talk: Talk, worths: dict[str, float]) -> None:
    seen: list[str] = []
    conversation = looked(talk, None)
    conversation.toolbox.watch = ReadingWatch(
        lambda readings: seen.extend(one.state["sql"] for one in readings), plans=len(PLANS)
    )
    conversation.ask(QUESTION)
    assert seen == [SPAIN, FRANCE, OLD]


def test_whoever_watches_doubtful_answers_is_not_told_of_others(talk: Talk, worths: dict[str, float]) -> None:
    conversation, seen = looked(talk, None), list[str]()
    conversation.toolbox.watch = ReadingWatch(lambda readings: seen.append("told"), below=0.62)
    assert conversation.ask(QUESTION).alternatives == [] == seen


def test_a_summary_tells_plan_and_sql_apart() -> None:
    """Guards the mean over the SQL, its last state, and the mean over the plan, in this order."""
    states = np.array([[1, 10], [3, 30], [5, 50], [9, 70]], np.float16)
    assert summary(states, sql_tokens=2).tolist() == [7, 60, 9, 70, 2, 20]


def test_a_verifier_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_verifier(tmp_path) is None
    by_worth = Calibration(0.25, {"votes": Weight(0.5, 1.0, 2.0)}, 0.6)
    made = Verifier(24, np.array([0.5, -1, 2], np.float32), 0.25, 0.7, 0.1, by_worth, {"questions": ["635:abc"]})
    made.write(tmp_path)
    found = read_verifier(tmp_path)
    assert found is not None
    assert (found.tap, found.bias, found.look_below, found.margin) == (24, 0.25, 0.7, 0.1)
    assert (found.about, found.calibration) == (made.about, by_worth)
    assert found.log_odds(np.array([2, 1, 1], np.float32)) == pytest.approx(2.25)
    assert found.worth(np.array([2, 1, 1], np.float32), confidence=0.8) == pytest.approx(2.25 + 1.3863, abs=1e-4)
    assert found.worth(np.array([2, 1, 1], np.float32), confidence=0.0) == pytest.approx(2.25 - 6.9068, abs=1e-4)
    assert forget_verifier(tmp_path) and not forget_verifier(tmp_path)


def test_a_verifier_without_calibration_keeps_its_file_readable(tmp_path: Path) -> None:
    Verifier(24, np.array([0.5, -1, 2], np.float32), 0.25, 0.7, 0.1).write(tmp_path)
    found = read_verifier(tmp_path)
    assert found is not None and found.calibration is None


def test_a_damaged_verifier_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no tensors")
    with pytest.raises(ModelUnavailable, match=r"verifier\.safetensors is damaged"):
        read_verifier(tmp_path)


QUESTION_QUERY_STATES = "Which genre sells best?"
TAP = 24
INT8 = pytest.param(
    "int8", marks=pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    opened = open_database(example_database(tmp_path_factory.mktemp("example")))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def asked(shop: Database) -> tuple[AgentContext, list[State]]:
    """The shipped model after a question, and the readings that it had."""
    toolbox, seen = load_model(ModelChoice()).toolbox(shop), list[State]()
    toolbox.watch = ReadingWatch(lambda readings: seen.extend(one.state for one in readings))
    Conversation(toolbox).ask(QUESTION_QUERY_STATES)
    assert len(seen) > 1
    return toolbox, seen


def anew(toolbox: AgentContext) -> tuple[AgentContext, AnyTarget]:
    """With the same model in a target that has an empty prefix cache."""
    model = toolbox.local
    assert model
    target = empty(model.decoder.target)
    decoder = TextDecoder(target, model.decoder.tokenizer, "shipped")
    return replace(toolbox, model=replace(model, decoder=decoder)), target


def empty(target: Any) -> Any:
    return type(target)(target.model)


class Whole:
    """Stands in for `text_states`: reads each text from its first token on, with states. `late`: rows that it leaves out."""

    late = 0

    def __init__(self) -> None:
        self._states: dict[tuple[int, ...], Array] = {}

    def __call__(self, decoder: TextDecoder, prompt: str, texts: Sequence[str], taps: tuple[int, ...]) -> list[Array]:
        self.prompt, *wholes = (decoder.tokenizer.encode(text) for text in (prompt, *texts))
        assert all(whole[: len(self.prompt)] == self.prompt for whole in wholes)
        own = len(self.prompt)
        self.rows = [1 + len(whole) - own for whole in wholes]
        for whole in map(tuple, wholes):
            if whole not in self._states:
                self._states[whole] = read(empty(decoder.target), whole, taps)
        return [self._states[tuple(whole)][own + self.late :] for whole in wholes]


@pytest.mark.parametrize("kind", [INT8, "fp32"])
def test_summaries_are_those_of_whole_texts_and_no_prompt_is_read_twice(
    asked: tuple[AgentContext, list[State]], shop: Database, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In int8 to the bit. In fp32 a number may differ by 1e-3, which is rounding: they reach 213. Without the first row of
    its states a number of each summary changes by more than 0.05, and summaries of two readings differ by more than 1."""
    toolbox, readings = load_model(ModelChoice(dtype=kind, device="cpu")).toolbox(shop), asked[1][:3]
    want = summaries_by(whole := Whole(), readings, toolbox)
    whole.late = 1
    late = summaries_by(whole, readings, toolbox)
    assert abs(late - want).max(1).min() > 0.05 and abs(want[0] - want[1]).max() > 1
    for cached in (None, (), (TAP,)):  # no prompt; one without states; one with them
        fresh, target = anew(toolbox)
        if cached is not None:
            read(target, whole.prompt, cached)
        fed = rows_fed(target, monkeypatch)
        found = query_summaries(readings, fresh, TAP)
        np.testing.assert_allclose(found, want, rtol=0, atol=0 if kind == "int8" else 1e-3)
        assert fed == ([[len(whole.prompt) - 1]] if cached is None else []) + [whole.rows]


def summaries_by(whole: Whole, states: Sequence[State], toolbox: AgentContext) -> Vector:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assess, "text_states", whole)
        return np.array(query_summaries(states, toolbox, TAP))


def test_the_prompt_of_a_question_is_cached_when_its_readings_are_compared(
    asked: tuple[AgentContext, list[State]], monkeypatch: pytest.MonkeyPatch
) -> None:
    toolbox, states = asked
    assert toolbox.local
    decoder = toolbox.local.decoder
    given: list[tuple[str, ...]] = []

    def noted(decoder: TextDecoder, prompt: str, texts: Sequence[str], taps: tuple[int, ...]) -> list[Array]:
        given.append((prompt, *texts))
        return text_states(decoder, prompt, texts, taps)

    monkeypatch.setattr(assess, "text_states", noted)
    fed = rows_fed(decoder.target, monkeypatch)
    query_summaries(states, toolbox, TAP)
    prompt, *texts = (len(decoder.tokenizer.encode(text)) for text in given[0])
    assert fed == [[1 + length - prompt for length in texts]]
