"""How far confidences can be trusted: pure functions of (confidence, whether the answer was right). All shares are of 1."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

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
    found = [_in_bin(part) for part in np.array_split(_sorted(judged), min(bins, len(judged)))]
    return round(sum(count * abs(mean - share) for mean, share, count in found) / len(judged), 4)


def curve(judged: Judged) -> dict[str, float]:
    """The share right among the answers with most confidence, by the share that is answered."""
    best = _sorted(judged)[::-1, 1]
    return {f"{share:g}": round(float(best[: max(1, round(share * len(best)))].mean()), 4) for share in SHARES}


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
        "headed": said,
        "wrong": sum(wrong),
        "wrong_and_headed": caught,
    }


def _sorted(judged: Judged) -> npt.NDArray[np.float64]:
    return np.array(sorted(judged), np.float64)


def _in_bin(part: npt.NDArray[np.float64]) -> tuple[float, float, int]:
    return float(part[:, 0].mean()), float(part[:, 1].mean()), len(part)
