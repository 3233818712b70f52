"""The kinds of draft heads, what they read and draft by default, and the targets to which they belong.

`KINDS` has the network of each kind, how it is trained, and the sizes at which tests make it;
`decoding.methods.registry.register_method` adds a kind together with the method that drafts with it. Heads read few and shared
hidden states, because these are stored for training.

A head drafts the frequent tokens and those of the prompt: the LM head is the largest matrix of a small target, and the 500 most
frequent tokens of the training answers and the prompt's own cover nearly all that is written (FR-Spec, arXiv 2502.14856, keeps
32,768 of 128,256). A token outside them costs acceptance, never correctness.

`weights/targets.json` names frozen targets (a base, an adapter, prompts), oldest first. A name never changes its meaning: a
target that is trained further gets a new one.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from decoding.checkpoints.identity import TargetIdentity
from decoding.checkpoints.model_config import read_json
from decoding.engine.method import Context
from decoding.errors import ModelUnavailable, told_what_is_missing


@dataclass(frozen=True, slots=True)
class HeadKind:
    """A kind of draft head. `head` and `objective` are names, "module:Class", which are imported when needed.

    head: the network, a `decoding.heads.head.Head`. objective: how it is trained, a
    `training.heads.features.HeadObjective`. small: the sizes with which tests make one for a target of two layers.
    weights: the folder of the trained head that comes with it; None: `decoding/weights/heads/KIND`.
    """

    head: str
    objective: str
    small: Mapping[str, Any] = field(default_factory=dict)
    weights: Path | None = None


_MODULES, _OBJECTIVES = "decoding.heads.modules", "training.heads"
_LAYER = {"heads": 4, "kv_heads": 2, "head_dim": 4, "intermediate": 16}
_BLOCK = {**_LAYER, "block_size": 5}

KINDS: dict[str, HeadKind] = {
    "draft_model": HeadKind(f"{_MODULES}.drafters:SmallLm", f"{_OBJECTIVES}.drafter_kinds:DraftModelObjective", _LAYER),
    "medusa": HeadKind(f"{_MODULES}.drafters:MedusaHead", f"{_OBJECTIVES}.drafter_kinds:MedusaObjective", {"heads": 3}),
    "eagle3": HeadKind(f"{_MODULES}.drafters:Eagle3Head", f"{_OBJECTIVES}.drafter_kinds:Eagle3Objective", _LAYER),
    "falcon": HeadKind(
        f"{_MODULES}.drafters:FalconHead",
        f"{_OBJECTIVES}.drafter_kinds:FalconObjective",
        {**_LAYER, "lstm": 8, "memory": 3},
    ),
    "dflash": HeadKind(f"{_MODULES}.block:BlockHead", f"{_OBJECTIVES}.block_kinds:DFlashObjective", _BLOCK),
    "jetspec": HeadKind(
        f"{_MODULES}.block:BlockHead",
        f"{_OBJECTIVES}.block_kinds:JetSpecObjective",
        {**_BLOCK, "causal": True, "carry": True, "skip_places": 3},
    ),
    "domino": HeadKind(
        f"{_MODULES}.block:DominoHead",
        f"{_OBJECTIVES}.block_kinds:DominoObjective",
        {**_BLOCK, "gru": 8, "rank": 4, "skip_places": 2},
    ),
    "path_tree": HeadKind(
        f"{_MODULES}.block:DominoHead",
        f"{_OBJECTIVES}.block_kinds:PathTreeObjective",
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


def spread_taps(layers: int, count: int) -> tuple[int, ...]:
    """`count` taps, evenly spread from the 2nd layer's output to the last but one's (DFlash's choice, arXiv 2602.06036).

    There are fewer if the target has fewer layers. The three that EAGLE-3 reads are the first, the middle and the last of five.
    """
    first, last = min(2, layers), max(layers - 2, 1)
    taps = (first + round(i * (last - first) / max(count - 1, 1)) for i in range(count))
    return tuple(sorted(set(taps)))


def all_taps(layers: int) -> tuple[int, ...]:
    """The taps that are stored so that every kind of head can be trained: five layers, and the final norm's output."""
    return tuple(sorted({*spread_taps(layers, 5), *spread_taps(layers, 3), layers}))


def draft_ids(context: Context, frequent: Iterable[int], prompt: Iterable[int]) -> list[int]:
    """Ascending: the frequent tokens, the prompt's and the recall's; the whole vocabulary if `frequent` is empty."""
    always = set(frequent)
    if not always:
        return list(range(len(context.lm_head)))
    return sorted(always.union(prompt, *map(_distinct, context.recall.sequences)))


@lru_cache(maxsize=256)
def _distinct(sequence: tuple[int, ...]) -> frozenset[int]:
    """What many texts recall, such as the skeletons of all plans, is gone through once."""
    return frozenset(sequence)


TARGETS = Path(__file__).parents[1] / "weights" / "targets.json"


class NameTaken(ValueError):
    """A name that is already another target's."""


def frozen_targets(listed: Path = TARGETS) -> Mapping[str, TargetIdentity]:
    """Every frozen target by name; empty if nothing was frozen. Raises ModelUnavailable for a damaged list."""
    if not listed.exists():
        return {}
    try:
        return {name: TargetIdentity(**values) for name, values in read_json(listed).items()}
    except TypeError as error:
        raise ModelUnavailable(f"{listed} is damaged ({error}); install sqlagent again") from error


def frozen_name(target: TargetIdentity, listed: Path = TARGETS) -> str | None:
    """The name under which `target` was frozen; None if it was not."""
    return next((name for name, other in frozen_targets(listed).items() if not other.difference(target)), None)


def freeze(name: str, target: TargetIdentity, listed: Path = TARGETS) -> None:
    """Add a target under a name; does nothing if it has that name already. Raises NameTaken."""
    known = frozen_targets(listed)
    if name in known and (difference := known[name].difference(target)):
        raise NameTaken(f"{name} is another target ({difference}): choose a new name, such as target-v{len(known) + 1}")
    named = {other: asdict(each) for other, each in {**known, name: target}.items()}
    listed.write_text(json.dumps(named, indent=2) + "\n", encoding="utf-8")
