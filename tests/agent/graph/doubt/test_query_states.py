"""Summaries of readings by the shipped model, in int8 and fp32: those of texts read whole, with a prompt that is not."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agent.assemble import ModelChoice, load_model
from agent.calibration import Vector
from agent.context import AgentContext, ReadingWatch
from agent.conversation import Conversation
from agent.nodes import assess
from agent.nodes.assess import query_summaries
from agent.state import State
from decoding.engine.target import AnyTarget, Array
from decoding.serving.text_decoder import TextDecoder, text_states
from kernels.cpu.processor import variant
from tests.decoding.engine.reading import read, rows_fed
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.example.build import example_database

QUESTION = "Which genre sells best?"
TAP = 24
INT8 = pytest.param(
    "int8", marks=pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    opened = open_database(example_database(tmp_path_factory.mktemp("example")))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def asked(database: Database) -> tuple[AgentContext, list[State]]:
    """The shipped model after a question, and the readings that it had."""
    toolbox, seen = load_model(ModelChoice()).toolbox(database), list[State]()
    toolbox.watch = ReadingWatch(lambda readings: seen.extend(one.state for one in readings))
    Conversation(toolbox).ask(QUESTION)
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
    """Stands in for `text_states`: reads each text from its first token on, with states. late: rows that it leaves out."""

    def __init__(self, late: int = 0) -> None:
        self._late = late

    def __call__(self, decoder: TextDecoder, prompt: str, texts: Sequence[str], taps: tuple[int, ...]) -> list[Array]:
        self.prompt, *wholes = (decoder.tokenizer.encode(text) for text in (prompt, *texts))
        assert all(whole[: len(self.prompt)] == self.prompt for whole in wholes)
        own = len(self.prompt)
        self.rows = [1 + len(whole) - own for whole in wholes]
        return [read(empty(decoder.target), whole, taps)[own + self._late :] for whole in wholes]


@pytest.mark.parametrize("kind", [INT8, "fp32"])
def test_summaries_are_those_of_whole_texts_and_no_prompt_is_read_twice(
    asked: tuple[AgentContext, list[State]], database: Database, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In int8 to the bit. In fp32 a number may differ by 1e-3, which is rounding: they reach 213. Without the first row of
    its states a number of each summary changes by more than 0.05, and summaries of two readings differ by more than 4."""
    toolbox = load_model(ModelChoice(dtype=kind, device="cpu")).toolbox(database)
    late = summaries_by(Whole(late=1), asked[1], toolbox)
    want = summaries_by(whole := Whole(), asked[1], toolbox)
    assert abs(late - want).max(1).min() > 0.05 and abs(want[0] - want[1]).max() > 4
    for cached in (None, (), (TAP,)):  # no prompt; one without states; one with them
        fresh, target = anew(toolbox)
        if cached is not None:
            read(target, whole.prompt, cached)
        fed = rows_fed(target, monkeypatch)
        np.testing.assert_allclose(
            query_summaries(asked[1], fresh, TAP), want, rtol=0, atol=0 if kind == "int8" else 1e-3
        )
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
