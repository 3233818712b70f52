"""Computes the figures of dialogues from their records, in pure functions. All shares are fractions of 1."""

from collections.abc import Mapping, Sequence
from typing import Any

from eval.accuracy.summary import mean, percentile, share, wilson_95
from eval.dialogues.read import Dialogue
from eval.dialogues.record import TurnRecord


def summarise(dialogues: Sequence[Dialogue], records: Sequence[TurnRecord]) -> dict[str, Any]:
    """What summary.json holds. `n` counts the turns with a gold query, and `ex` is over these; `turns` counts all turns, and
    `continued_right` is over these. A dialogue is right if all its turns with a gold query are.
    """
    scored = [record for record in records if record.correct is not None]
    correct = sum(record.correct is True for record in scored)
    whole = _whole(dialogues, records)
    right = sum(record.continues == record.expected for record in records)
    return {
        "turns": len(records),
        "n": len(scored),
        "ex": share(correct, len(scored)),
        "ex_ci95": wilson_95(correct, len(scored)),
        "by_kind": {
            kind: _kind([r for r in records if r.kind == kind]) for kind in dict.fromkeys(r.kind for r in records)
        },
        "dialogues": len(dialogues),
        "dialogues_right": share(sum(whole), len(whole)),
        "continued_right": share(right, len(records)),
        "continued_right_ci95": wilson_95(right, len(records)),
        "continued_wrong": confusion(records),
        "headed": _headed(scored),
        "invalid_sql_rate": share(sum(record.error is not None for record in scored), len(scored)),
        "mean_ms": mean([record.wall_ms for record in records]),
        "p95_ms": percentile([record.wall_ms for record in records], 95),
    }


def _headed(scored: Sequence[TurnRecord]) -> Mapping[str, int]:
    """How many right and wrong answers there are, and how many of each were headed "Probably wrong"."""
    right, wrong = ([one for one in scored if one.correct is kind] for kind in (True, False))
    return {
        "right": len(right),
        "right_and_headed": sum(one.probably_wrong for one in right),
        "wrong": len(wrong),
        "wrong_and_headed": sum(one.probably_wrong for one in wrong),
        "wrong_and_failed": sum(one.prediction_error is not None for one in wrong),
    }


def in_short(records: Sequence[TurnRecord], figures: Mapping[str, int]) -> list[str]:
    """Each wrong answer in a line, and all of them in the last."""
    wrong = [one for one in records if one.correct is False]
    lines = [f"{_mark(one)}  {one.question}  →  {one.sql or one.prediction_error}" for one in wrong]
    told = f"{figures['right']} right, {figures['wrong']} wrong; headed “Probably wrong”: {figures['wrong_and_headed']} wrong"
    return [
        *lines,
        f"{told} and {figures['right_and_headed']} right; {figures['wrong_and_failed']} wrong ones gave no answer",
    ]


def _mark(record: TurnRecord) -> str:
    if record.prediction_error is not None:
        return "no answer     "
    return "probably wrong" if record.probably_wrong else "wrong         "


def confusion(records: Sequence[TurnRecord]) -> Mapping[str, int]:
    """How many turns were read wrongly, by kind of mistake."""
    pairs = [(record.expected, record.continues) for record in records]
    return {
        "leaning_taken_as_standalone": sum(expected is not None and taken is None for expected, taken in pairs),
        "standalone_taken_as_leaning": sum(expected is None and taken is not None for expected, taken in pairs),
        "wrong_turn": sum(None not in (expected, taken) and expected != taken for expected, taken in pairs),
    }


def _whole(dialogues: Sequence[Dialogue], records: Sequence[TurnRecord]) -> list[bool]:
    wrong = {record.id for record in records if record.correct is False}
    return [wrong.isdisjoint(dialogue.turn_ids) for dialogue in dialogues]


def _kind(records: Sequence[TurnRecord]) -> dict[str, Any]:
    """The figures of one kind of turn; `ex` is None if none of them has a gold query."""
    scored = [record for record in records if record.correct is not None]
    return {
        "turns": len(records),
        "n": len(scored),
        "ex": share(sum(record.correct is True for record in scored), len(scored)),
        "continued_right": share(sum(record.continues == record.expected for record in records), len(records)),
    }
