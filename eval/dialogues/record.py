"""The record that a run of dialogues stores for each turn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from eval.predict.record import known_fields


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One line of records.jsonl; `id` is "d01/2", with the turn's number from 1.

    `correct` is None if the turn has no gold query; `error` is why the agent's SQL returned no rows when it was scored, and
    `prediction_error` is the agent's own error. `continues` is the number of the turn that the agent continued, `expected`
    the one that the file names; None if the question was read as, or is meant as, self-contained. `confidence` and
    `probably_wrong` are the answer's.
    """

    id: str
    kind: str
    question: str
    gold: str | None
    sql: str
    correct: bool | None
    error: str | None
    expected: int | None
    continues: int | None
    wall_ms: float
    new_tokens: int
    target_forwards: int
    steps: list[dict[str, Any]]
    prediction_error: str | None
    confidence: float | None = None
    probably_wrong: bool = False

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The record in a line. Raises KeyError for a missing field; ignores unknown ones."""
        return cls(**known_fields(cls, values))
