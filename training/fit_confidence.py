"""Fits the confidence of answers on records of held-out databases, cross-validated by database."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from agent.calibration import Calibration, Weight
from eval.accuracy.record import Record
from eval.accuracy.summary import Judged, trust
from eval.datasets.official import DatasetError

Vector = npt.NDArray[np.float64]
PENALTY = 16.0  # of the squared weights; with a quarter of it the AUROC is less than 0.01 lower
MOST_RIGHT = 0.4  # of the answers that are headed "Probably wrong"
STEPS = 50
SHARES_RIGHT = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.99)


class Marked(Protocol):
    """An answer whose features are known, and whether it was right."""

    @property
    def db_id(self) -> str: ...
    @property
    def features(self) -> Mapping[str, float]: ...
    @property
    def correct(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Fitted:
    """The calibration from all records, and the figures of those made without each record's own database."""

    calibration: Calibration
    cross_validated: Mapping[str, Any]


def fit(records: Sequence[Record], about: Mapping[str, Any]) -> Fitted:
    """Fit on the records that were scored and have features. Raises DatasetError if they are too few."""
    known = [record for record in records if record.executed and record.features]
    databases = sorted({record.db_id for record in known})
    if len(databases) < 2 or len({record.correct for record in known}) < 2:
        raise DatasetError("confidence needs right and wrong answers with features, on two databases at least")
    judged = held_out(known, databases)
    below = threshold(judged)
    figures = trust(judged, [confidence < below for confidence, _ in judged]) or {}
    about = {**about, "databases": databases, "cross_validated": figures}
    return Fitted(logistic(known, below, about), figures)


def held_out(records: Sequence[Marked], databases: Sequence[str]) -> Judged:
    """The confidence of each answer by a fit without the records of its database, and whether it was right."""
    judged: list[tuple[float, bool]] = []
    for database in databases:
        others = logistic([record for record in records if record.db_id != database])
        own = [record for record in records if record.db_id == database]
        judged += [(others.confidence(record.features), record.correct) for record in own]
    return judged


def threshold(judged: Judged, most_right: float = MOST_RIGHT) -> float:
    """The largest confidence, 0.5 at most, below which at most this share of the answers is right; 0 if there is none."""
    ordered = sorted(judged)
    right = np.cumsum([is_right for _, is_right in ordered])
    allowed = [place for place in range(9, len(ordered)) if right[place] <= most_right * (place + 1)]
    return min(0.5, round(ordered[allowed[-1]][0], 4)) if allowed else 0.0


def bounds(judged: Judged) -> dict[str, float]:
    """For each share of right answers that can be kept, the least confidence with which an answer may be given.

    As in conformal risk control (Angelopoulos et al. 2022, arXiv 2208.02814) one more answer is counted, and that one as
    wrong: of the k surest answers w are wrong, and the largest k with (w + 1) / (k + 1) <= 1 - share is taken.
    """
    ordered = sorted(judged, reverse=True)
    wrong = np.cumsum([not is_right for _, is_right in ordered])
    found: dict[str, float] = {}
    for share in SHARES_RIGHT:
        kept = [k for k in range(len(ordered)) if (wrong[k] + 1) / (k + 2) <= 1 - share and _ends(ordered, k)]
        if kept:
            found[f"{share:g}"] = round(ordered[kept[-1]][0], 4)
    return found


def _ends(ordered: Judged, place: int) -> bool:
    """Whether the answer after this place has less confidence, so that a bound can part them."""
    return place + 1 == len(ordered) or ordered[place + 1][0] < ordered[place][0]


def logistic(records: Sequence[Marked], below: float = 0.0, about: Mapping[str, Any] | None = None) -> Calibration:
    """Logistic regression with a penalty on the squared weights, by Newton's method; every feature is standardised first."""
    names = sorted({name for record in records for name in record.features})
    values = np.array([[record.features.get(name, np.nan) for name in names] for record in records])
    means, scales = np.nanmean(values, 0), np.nanstd(values, 0)
    scales[scales < 1e-5] = 1.0  # a constant up to rounding; smaller scales would be written as 0
    rows = np.nan_to_num((values - means) / scales)  # what is not known counts as its mean
    bias, *weights = newton(rows, np.array([record.correct for record in records], np.float64), PENALTY)
    each = zip(names, means, scales, weights, strict=True)
    found = {name: Weight(*(round(float(one), 5) for one in given)) for name, *given in each}
    return Calibration(round(float(bias), 5), found, below, about or {})


def newton(rows: Vector, right: Vector, weight_penalty: float) -> Vector:
    """The bias and the weights [1 + features] of a logistic regression; the bias has no penalty."""
    inputs = np.column_stack([np.ones(len(rows)), rows])
    penalty = np.diag([0.0, *(weight_penalty for _ in rows.T)])
    found = np.zeros(inputs.shape[1])
    for _ in range(STEPS):
        chance = 1 / (1 + np.exp(-inputs @ found))
        gradient = inputs.T @ (right - chance) - penalty @ found
        curvature = (inputs.T * (chance * (1 - chance))) @ inputs + penalty
        step = np.linalg.solve(curvature, gradient)
        found += step
        if np.abs(step).max() < 1e-10:
            break
    return found
