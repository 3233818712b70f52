"""Frozen targets: names for combinations of base, adapter and prompts, to which draft heads belong.

`weights/targets.json` lists them, oldest first. A name never changes its meaning: a target that is trained further gets a new
one.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from decoding.checkpoints.model_config import read_json
from decoding.checkpoints.target_identity import TargetIdentity
from decoding.errors import ModelUnavailable

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
