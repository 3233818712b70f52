"""Computes a run's figures from its records: accuracy, and how far confidences can be trusted.

All figures are pure functions of the records, and all shares are of 1. `n` counts the questions, `executed` those that could be
scored; every accuracy is over the latter.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from eval.accuracy.record import Record
from eval.scoring.bird import r_ves

Judged = Sequence[tuple[float, bool]]
BINS = 10
SHARES = (0.25, 0.5, 0.75, 1.0)


def auroc(judged: Judged) -> float | None:
    """The chance that a right answer has more confidence than a wrong one, ties counting half (Mann and Whitney 1947); None
    without answers of both kinds.

    >>> auroc([(0.9, True), (0.2, False), (0.9, False)])
    0.75
    """
    right = np.array([confidence for confidence, is_right in judged if is_right])
    wrong = np.array([confidence for confidence, is_right in judged if not is_right])
    if not (len(right) and len(wrong)):
        return None
    above = (right[:, None] > wrong).mean() + (right[:, None] == wrong).mean() / 2
    return round(float(above), 4)


def expected_calibration_error(judged: Judged, bins: int = BINS) -> float | None:
    """The mean distance between confidence and share right, over bins of equal numbers of answers (Nguyen and O'Connor 2015);
    None without answers.

    >>> expected_calibration_error([(0.75, True), (0.75, True), (0.75, True), (0.75, False)], bins=1)
    0.0
    """
    if not judged:
        return None
    parts = np.array_split(_sorted(judged), min(bins, len(judged)))
    return round(sum(len(part) * abs(float(np.subtract(*part.mean(0)))) for part in parts) / len(judged), 4)


def curve(judged: Judged) -> dict[str, float]:
    """The share right among the answers with most confidence, by the share that is answered."""
    best = _sorted(judged)[::-1, 1]
    return {f"{share:g}": round(float(best[: max(1, round(share * len(best)))].mean()), 4) for share in SHARES}


def coverage(judged: Judged, share_right: float) -> float:
    """The largest share of the answers, the surest first, of which at least `share_right` are right.

    >>> coverage([(0.9, True), (0.8, True), (0.7, False), (0.2, False)], 0.95)
    0.5
    """
    right = np.cumsum(_sorted(judged)[::-1, 1])
    kept = np.flatnonzero(right >= share_right * np.arange(1, len(right) + 1))
    return round(float(kept[-1] + 1) / len(right), 4) if len(kept) else 0.0


def trust(judged: Judged, headed: Sequence[bool]) -> Mapping[str, Any] | None:
    """The figures of a run; None where no answer has a confidence. `headed`: which answers were headed "Probably wrong"."""
    if not judged:
        return None
    wrong = [not is_right for _, is_right in judged]
    said = sum(headed)
    caught = sum(is_wrong and is_headed for is_wrong, is_headed in zip(wrong, headed, strict=True))
    return {
        "n": len(judged),
        "auroc": auroc(judged),
        "expected_calibration_error": expected_calibration_error(judged),
        "right_of_answered": curve(judged),
        "coverage": {f"{share:g}": coverage(judged, share) for share in (0.8, 0.9, 0.95)},
        "headed": said,
        "wrong": sum(wrong),
        "wrong_and_headed": caught,
    }


def _sorted(judged: Judged) -> npt.NDArray[np.float64]:
    return np.array(sorted(judged), np.float64)


_Z_95 = 1.959963984540054


def summarise(
    records: Sequence[Record], *, dataset: str, engine: str, model: str, decoder: str, levels: Sequence[str] = ()
) -> dict[str, Any]:
    """What summary.json holds; figures without data are None, and so are times where none was taken. `tokens_per_s` is over
    the time to the SQL; `ex_of_all` counts questions that could not be scored as wrong; `continued` counts the answers that
    say that they continue an earlier one. `levels`: the difficulties in their order; any others follow them.
    """
    scored = [record for record in records if record.executed]
    seconds = sum(record.wall_ms for record in records) / 1e3
    tokens, forwards = sum(r.new_tokens for r in records), sum(r.target_forwards for r in records)
    correct = sum(record.correct for record in scored)
    times = [record.wall_ms for record in scored] if seconds else []
    return {
        "dataset": dataset,
        "engine": engine,
        "model": model,
        "decoder": decoder,
        "n": len(records),
        "executed": len(scored),
        "ex": share(correct, len(scored)),
        "ex_ci95": wilson_95(correct, len(scored)),
        "ex_of_all": share(correct, len(records)),
        "soft_f1": mean([record.soft_f1 for record in scored if record.soft_f1 is not None]),
        "r_ves": _r_ves(scored),
        "invalid_sql_rate": share(sum(record.error is not None for record in scored), len(scored)),
        "mean_tokens_per_forward": share(tokens, forwards),
        "tokens_per_s": share(tokens, seconds),
        "mean_ms": mean(times),
        "p50_ms": percentile(times, 50),
        "p95_ms": percentile(times, 95),
        "continued": sum(record.continues is not None for record in records),
        "by_difficulty": {level: _level(scored, level) for level in _levels(scored, levels)},
        "trust": _trust(scored),
        "unrunnable_gold": [
            {"id": record.id, "db_id": record.db_id, "error": record.gold_error}
            for record in records
            if not record.executed
        ],
    }


def _trust(scored: Sequence[Record]) -> Mapping[str, Any] | None:
    """What the confidences of the answers are worth; None if they have none."""
    known = [record for record in scored if record.confidence is not None]
    judged = [(record.confidence or 0.0, record.correct) for record in known]
    return trust(judged, [record.probably_wrong for record in known])


def wilson_95(hits: int, n: int) -> list[float] | None:
    """Wilson's 95 % score interval of hits/n (Wilson 1927), which stays inside [0, 1]; None for n = 0."""
    if n == 0:
        return None
    share, z2 = hits / n, _Z_95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return [round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4)]


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value that `percent` % of the values do not exceed (nearest rank); None for no values."""
    rank = math.ceil(percent / 100 * len(values))
    return round(sorted(values)[max(0, rank - 1)], 3) if values else None


def _levels(records: Sequence[Record], known: Sequence[str]) -> list[str]:
    present = {record.difficulty for record in records} - {""}
    return [level for level in known if level in present] + sorted(present.difference(known))


def _level(records: Sequence[Record], level: str) -> dict[str, Any]:
    at_level = [record for record in records if record.difficulty == level]
    correct = sum(record.correct for record in at_level)
    return {
        "n": len(at_level),
        "ex": share(correct, len(at_level)),
    }


def _r_ves(records: Sequence[Record]) -> float | None:
    rewards = [record.ves_reward for record in records if record.ves_reward is not None]
    return round(r_ves(rewards), 4) if rewards else None


def share(part: float, whole: float) -> float | None:
    """The quotient to four decimals; None if `whole` is 0."""
    return round(part / whole, 4) if whole else None


def mean(values: Sequence[float]) -> float | None:
    """The mean to four decimals; None for no values."""
    return share(sum(values), len(values))


def paired_difference(pairs: Sequence[tuple[bool, bool]]) -> tuple[float, float, float]:
    """(difference of the shares, lower, upper end of its 95 % interval) from (ours, theirs) on the same questions.

    The interval is Agresti and Min's (Statistics in Medicine 2005): Wald's, with half a question added to each of the four
    cells, so that its width is not zero if the two never differ.
    """
    ours, theirs = (sum(pair[i] and not pair[1 - i] for pair in pairs) for i in (0, 1))
    n, b, c = len(pairs) + 2, ours + 0.5, theirs + 0.5
    middle, half = (b - c) / n, _Z_95 * math.sqrt(b + c - (b - c) ** 2 / n) / n
    return (ours - theirs) / max(len(pairs), 1), max(middle - half, -1.0), min(middle + half, 1.0)
