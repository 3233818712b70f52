"""How likely an answer is right: a logistic model of its features, and a verifier of hidden states.

The logistic model maps the features of an answer to the share of such answers that are right. `training.fit_confidence` fits it
on databases that the adapter was not trained on.

The verifier is a linear model of the target's hidden states, which compares several queries for one question. States tell
whether an answer is right (Kadavath et al. 2022, arXiv 2207.05221; Azaria and Mitchell 2023, arXiv 2304.13734), and a verifier
trained on a model's own samples chooses among them better than their votes (Cobbe et al. 2021, arXiv 2110.14168).
`training.fit_verifier` fits it.

Both are files next to the adapter; another adapter needs its own.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from decoding.engine.target import Array
from decoding.errors import ModelUnavailable

FILE = "confidence.json"


@dataclass(frozen=True, slots=True)
class Weight:
    """A feature's weight, for the feature less its mean, over its scale."""

    mean: float
    scale: float
    weight: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The model: confidence = 1 / (1 + exp(-(bias + weights * features))), Platt's scaling of several scores at once.

    doubtful_below: answers with less confidence are headed "Probably wrong". about: how it was fitted, as JSON values.
    answer_from: for a share of right answers, such as "0.95", the confidence from which at least that share of the answers
    was right on databases that were read for nothing else (`training.fit_confidence.bounds`); a share that was not reached
    is missing.
    """

    bias: float
    weights: Mapping[str, Weight]
    doubtful_below: float
    about: Mapping[str, Any] = field(default_factory=dict)
    answer_from: Mapping[str, float] = field(default_factory=dict)

    def least_confidence(self, share_right: float) -> float | None:
        """The confidence from which at least this share of the answers is right; None if no answer is known to be that sure.

        >>> Calibration(0.0, {}, 0.4, answer_from={"0.8": 0.7, "0.9": 0.85}).least_confidence(0.85)
        0.85
        """
        return min((least for share, least in self.answer_from.items() if float(share) >= share_right), default=None)

    def confidence(self, features: Mapping[str, float]) -> float:
        """The probability in [0, 1] that the answer is right. A feature that is not known counts as its mean.

        >>> two = Calibration(0.0, {"empty": Weight(mean=0.5, scale=0.5, weight=-1.0)}, 0.4)
        >>> two.confidence({}), round(two.confidence({"empty": 1.0}), 2)
        (0.5, 0.27)
        """
        known = ((features[name], each) for name, each in self.weights.items() if name in features)
        total = self.bias + sum((value - each.mean) / each.scale * each.weight for value, each in known)
        return 1.0 / (1.0 + math.exp(-max(-50.0, min(50.0, total))))

    def write(self, folder: Path) -> Path:
        """Write the file into the adapter's folder; returns its path."""
        path = folder / FILE
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return path


def forget_calibration(folder: Path) -> bool:
    """Delete the calibration in a folder whose adapter is replaced; whether there was one."""
    known = (folder / FILE).exists()
    (folder / FILE).unlink(missing_ok=True)
    return known


_CALIBRATION = TypeAdapter(Calibration)


def calibration_of(values: Mapping[str, Any]) -> Calibration:
    """The calibration in JSON values. Raises ValidationError, a ValueError."""
    return _CALIBRATION.validate_python(values)


def read_calibration(folder: Path) -> Calibration | None:
    """The calibration in an adapter's folder; None if it has none. Raises ModelUnavailable for a damaged file."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return _CALIBRATION.validate_json(path.read_bytes())
    except ValidationError as error:
        raise ModelUnavailable(f"{path} is damaged ({error.errors()[0]['msg']}): delete it, or fit it again") from error


VERIFIER_FILE = "verifier.safetensors"
LEAST = 1e-3  # that a confidence counts as, so that its log odds are finite
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Verifier:
    """log odds = bias + weights * `summary`.

    tap: whose states it reads, as in `decoding.engine.target.Target`. weights: [3 * hidden], float32. look_below: others are
    looked for where an answer's confidence is lower. margin: by how much another reading's worth must be higher to be the
    answer. calibration: how often answers that were chosen by their worth are right, by that and by how many other plans give
    their rows; None if that was not fitted. about: how the verifier was fitted, as JSON values.
    """

    tap: int
    weights: Vector
    bias: float
    look_below: float
    margin: float
    calibration: Calibration | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def log_odds(self, found: Vector) -> float:
        """The natural logarithm of the odds that the query with this summary is right."""
        return self.bias + float(self.weights @ found)

    def worth(self, found: Vector, confidence: float) -> float:
        """Its log odds and those of the confidence, which sees other signs: a fit gives both about the same weight."""
        bounded = min(max(confidence, LEAST), 1 - LEAST)
        return self.log_odds(found) + math.log(bounded / (1 - bounded))

    def write(self, folder: Path) -> Path:
        """Write the file into the adapter's folder; returns its path."""
        numbers = {"tap": self.tap, "bias": self.bias, "look_below": self.look_below, "margin": self.margin}
        trust = asdict(self.calibration) if self.calibration else None
        said = {"verifier": numbers, "calibration": trust, "about": dict(self.about)}
        path = folder / VERIFIER_FILE
        path.write_bytes(save({"weights": self.weights}, {name: json.dumps(value) for name, value in said.items()}))
        return path


def summary(states: Array, sql_tokens: int) -> Vector:
    """[3 * hidden] of the states [tokens, hidden] along a plan and, in the last `sql_tokens` rows, its SQL: the mean over the
    SQL, its last state, and the mean over the plan."""
    rows = np.asarray(states, np.float32)
    plan, sql = rows[:-sql_tokens], rows[-sql_tokens:]
    return np.concatenate([sql.mean(0), sql[-1], plan.mean(0)])


def forget_verifier(folder: Path) -> bool:
    """Delete the verifier in a folder whose adapter is replaced; whether there was one."""
    known = (folder / VERIFIER_FILE).exists()
    (folder / VERIFIER_FILE).unlink(missing_ok=True)
    return known


def read_verifier(folder: Path) -> Verifier | None:
    """The verifier in an adapter's folder; None if it has none. Raises ModelUnavailable for a damaged file."""
    path = folder / VERIFIER_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, "np") as file:
            said = {name: json.loads(value) for name, value in (file.metadata() or {}).items()}
            trust = said.get("calibration")
            return Verifier(
                weights=file.get_tensor("weights"),
                calibration=calibration_of(trust) if trust else None,
                about=said["about"],
                **said["verifier"],
            )
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ModelUnavailable(f"{path} is damaged ({error}): delete it, or fit it again") from error
