"""Pools of candidates: what is recorded of a question's readings, and which questions are drawn."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from agent.calibration import Vector
from agent.context import AgentContext
from agent.state import State
from eval.datasets.official import HELD_OUT_DATABASES, WITHOUT_ROWS, Example
from tests.eval.answering import AnsweringModel
from training import fit_verifier
from training.fit_verifier import collect, training_examples

GOLD, OTHER = "SELECT name FROM author", "SELECT title FROM book"


def test_readings_are_judged_and_a_run_is_continued(
    invented: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against verdicts of other readings, and against asking twice."""

    def query_summaries(states: Sequence[State], toolbox: AgentContext, tap: int) -> list[Vector]:
        return [np.array([len(state["sql"]), tap], np.float32) for state in states]

    monkeypatch.setattr(fit_verifier, "query_summaries", query_summaries)
    database = invented / "database" / "library" / "library.sqlite"
    examples = [Example(str(i), "library", f"question {i}", GOLD, database=database) for i in range(3)]
    model = AnsweringModel(lambda question: OTHER if question == "question 1" else GOLD)
    first = collect(examples[:3], model, 5, tmp_path / "out", {"adapter": "abc"}, plans=2, progress=False)
    assert [(pool.id, [each.right for each in pool.candidates]) for pool in first] == [
        ("0", [True]), ("1", [False]), ("2", [True]),
    ]  # fmt: skip
    assert first[1].candidates[0].summary == [len(OTHER), 5]
    asked = len(model.prompts)
    assert collect(examples[:3], model, 5, tmp_path / "out", {"adapter": "abc"}, plans=2, progress=False) == first
    assert len(model.prompts) == asked


def test_questions_are_drawn_from_training_databases_with_rows(spider: Path) -> None:
    found = training_examples(spider.parent, per_database=2, seed=1)
    databases = [example.db_id for example in found]
    assert not {*databases} & {*HELD_OUT_DATABASES, *WITHOUT_ROWS}
    assert len({*databases}) > 100 and max(map(databases.count, {*databases})) == 2
    assert [one.id for one in found] == [one.id for one in training_examples(spider.parent, 2, 1)]
    assert {example.id for example in found} < {example.id for example in training_examples(spider.parent, 3, 1)}
