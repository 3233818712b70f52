"""The identity of the target that a head belongs to; an adapter merged into the weights is part of it."""

import hashlib
import json
from dataclasses import dataclass

from decoding.checkpoints.adapters.adapter import Adapter
from decoding.checkpoints.identity import weights_sha256


@dataclass(frozen=True, slots=True)
class TargetIdentity:
    """The target that a head was trained on: weights, adapter, and the prompts whose answers it learned from."""

    base_sha256: str
    adapter_sha256: str | None = None  # None: no adapter
    prompt_hash: str | None = None  # None: no prompts of ours

    def difference(self, other: "TargetIdentity") -> str | None:
        """What differs, in words; None if both are the same target."""
        pairs = {
            "base": (self.base_sha256, other.base_sha256),
            "adapter": (self.adapter_sha256, other.adapter_sha256),
            "prompts": (self.prompt_hash, other.prompt_hash or self.prompt_hash),  # a decoder has no prompts
        }
        parts = [
            f"{name} {(mine or 'none')[:12]} and not {(theirs or 'none')[:12]}"
            for name, (mine, theirs) in pairs.items()
            if mine != theirs
        ]
        return ", ".join(parts) or None


def target_identity(base_sha256: str, adapter: Adapter | None, prompts: object = None) -> TargetIdentity:
    """prompts: any JSON value that identifies the prompts' wording (a version, a hash); None: no prompts of ours."""
    prompt_hash = None if prompts is None else hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
    return TargetIdentity(base_sha256, adapter_sha256(adapter) if adapter else None, prompt_hash)


def adapter_sha256(adapter: Adapter) -> str:
    """SHA-256 of the changes that an adapter makes, independent of the format from which it was read."""
    factors = {f"{m}.{part}": array for m in adapter.factors for part, array in zip("ab", adapter.arrays(m), strict=True)}
    return hashlib.sha256(f"{weights_sha256(factors)} {adapter.scale!r}".encode()).hexdigest()
