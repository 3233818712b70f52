"""Turns the features of an answer into how often answers like it are right: a logistic model, in a file beside the adapter.

`eval.confidence.fit_confidence` fits it on databases that the adapter was not trained on; another adapter needs another one.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

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
    """

    bias: float
    weights: Mapping[str, Weight]
    doubtful_below: float
    about: Mapping[str, Any] = field(default_factory=dict)

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
