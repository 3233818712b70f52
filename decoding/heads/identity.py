"""Which target a head belongs to: what is merged into the weights counts as much as the weights."""

import hashlib
import json

from decoding.adapter import Adapter
from decoding.heads.head import TargetIdentity
from decoding.identity import weights_sha256


def target_identity(base_sha256: str, adapter: Adapter | None, prompts: object = None) -> TargetIdentity:
    """prompts: anything that names the prompts' wording (a version, a hash), as JSON takes it; None: no prompts of ours."""
    told = None if prompts is None else hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
    return TargetIdentity(base_sha256, adapter_sha256(adapter) if adapter else None, told)


def adapter_sha256(adapter: Adapter) -> str:
    """Of the changes that it makes, whichever format it was read from."""
    factors = {f"{m}.{part}": getattr(f, part).float() for m, f in adapter.factors.items() for part in "ab"}
    return hashlib.sha256(f"{weights_sha256(factors)} {adapter.scale!r}".encode()).hexdigest()
