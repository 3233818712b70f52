"""The kinds of draft heads: the network of each, how it is trained, and the sizes at which tests make it.

`decoding.methods.table.register_method` adds a kind together with the method that drafts with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from decoding.errors import ModelUnavailable, told_what_is_missing


@dataclass(frozen=True, slots=True)
class HeadKind:
    """A kind of draft head. `head` and `objective` are names, "module:Class", which are imported when needed.

    head: the network, a `decoding.heads.head.Head`. objective: how it is trained, a
    `decoding.training.heads.objective.HeadObjective`. small: the sizes with which tests make one for a target of two layers.
    weights: the folder of the trained head that comes with it; None: `decoding/weights/heads/KIND`.
    """

    head: str
    objective: str
    small: Mapping[str, Any] = field(default_factory=dict)
    weights: Path | None = None


_MODULES, _OBJECTIVES = "decoding.heads.modules", "decoding.training.head_kinds"
_LAYER = {"heads": 4, "kv_heads": 2, "head_dim": 4, "intermediate": 16}
_BLOCK = {**_LAYER, "block_size": 5}

KINDS: dict[str, HeadKind] = {
    "draft_model": HeadKind(f"{_MODULES}.small_lm:SmallLm", f"{_OBJECTIVES}.draft_model:DraftModelObjective", _LAYER),
    "medusa": HeadKind(f"{_MODULES}.medusa:MedusaHead", f"{_OBJECTIVES}.medusa:MedusaObjective", {"heads": 3}),
    "eagle3": HeadKind(f"{_MODULES}.eagle3:Eagle3Head", f"{_OBJECTIVES}.eagle3:Eagle3Objective", _LAYER),
    "falcon": HeadKind(
        f"{_MODULES}.falcon:FalconHead", f"{_OBJECTIVES}.falcon:FalconObjective", {**_LAYER, "lstm": 8, "memory": 3}
    ),
    "dflash": HeadKind(f"{_MODULES}.block:BlockHead", f"{_OBJECTIVES}.dflash:DFlashObjective", _BLOCK),
    "jetspec": HeadKind(
        f"{_MODULES}.block:BlockHead",
        f"{_OBJECTIVES}.jetspec:JetSpecObjective",
        {**_BLOCK, "causal": True, "carry": True, "skip_places": 3},
    ),
    "domino": HeadKind(
        f"{_MODULES}.domino:DominoHead",
        f"{_OBJECTIVES}.domino:DominoObjective",
        {**_BLOCK, "gru": 8, "rank": 4, "skip_places": 2},
    ),
    "path_tree": HeadKind(
        f"{_MODULES}.domino:DominoHead",
        f"{_OBJECTIVES}.path_tree:PathTreeObjective",
        {**_BLOCK, "gru": 8, "rank": 4, "causal": True, "carry": True},
    ),
}


def imported(place: str, error: type[Exception] = ModelUnavailable) -> Any:
    """The object that "module:Name" names. Raises MissingPackage where an extra is not installed, and `error`, with a one-line
    message, where it cannot be imported otherwise."""
    try:
        with told_what_is_missing():
            return resolve_name(place)
    except (ImportError, AttributeError, ValueError) as reason:
        raise error(f"{place} cannot be imported: {reason}") from reason
