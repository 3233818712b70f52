"""What a run of dialogues leaves behind for each turn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from eval.predict.record import known_fields


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One line of records.jsonl; `id` is "d01/2", with the turn's number from 1.

    `correct` is None where the turn has no gold query; `error` is why the agent's SQL gave no rows when it was scored, and
    `prediction_error` what the agent said. `continues` is the number of the turn that the agent went on from, `expected` the
    one that the file names; None where the question was taken, or is meant, to stand by itself.
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

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The record of one line. Raises KeyError for a missing field; unknown ones are left out."""
        return cls(**known_fields(cls, values))
