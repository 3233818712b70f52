"""What a model adds at mask tokens alone, to predict several tokens ahead: embeddings of their own, and low-rank layers.

A mask token's row gets the embedding of its depth, and before each layer `x + up @ silu(down @ norm(x))`, a parallel adapter
(He et al., arXiv 2110.04366) behind an RMS norm without a weight. No other row is touched, so the model's text stays what it
is, to the bit. PaSS (arXiv 2311.13581) and BiTA (arXiv 2401.12522) train embeddings and prompts for such rows instead.

A file holds the three tensors in fp16; its metadata name the target that it was trained on.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from decoding.errors import ModelUnavailable, UnsupportedModel

if TYPE_CHECKING:
    from decoding.checkpoints.model_config import ModelConfig
    from decoding.checkpoints.target_identity import TargetIdentity

FILE = "masks.safetensors"  # beside the adapter of the target
FORMAT = "1"
TENSORS = ("embeddings", "down", "up")
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MaskAdapter:
    """embeddings [depths, hidden]; down, up [layers, rank, hidden]: `up` is stored transposed, a row per component. fp32."""

    embeddings: Floats
    down: Floats
    up: Floats
    target: "TargetIdentity | None" = None  # None: unknown

    @property
    def depths(self) -> int:
        return len(self.embeddings)

    @property
    def rank(self) -> int:
        return int(self.down.shape[1])

    def check_fits(self, config: "ModelConfig") -> None:
        """Raise UnsupportedModel unless width and layers are the model's."""
        layers, hidden = config.layers, config.hidden_size
        shapes = {"embeddings": (self.depths, hidden)} | dict.fromkeys(("down", "up"), (layers, self.rank, hidden))
        for name, want in shapes.items():
            if getattr(self, name).shape != want:
                found = list(getattr(self, name).shape)
                raise UnsupportedModel(
                    f"the mask adapter is of another model: {name} has shape {found}, not {list(want)}"
                )


def write_mask_adapter(adapter: MaskAdapter, folder: Path) -> int:
    """Write `FILE` into a folder, whole or not at all; returns its size in bytes. Lossy (fp16)."""
    from safetensors.numpy import save

    from decoding.checkpoints.fetch.cache_folder import written_whole

    tensors = {name: getattr(adapter, name).astype(np.float16) for name in TENSORS}
    target = json.dumps(asdict(adapter.target)) if adapter.target else ""
    file = folder / FILE
    written_whole(file, save(tensors, {"format": FORMAT, "target": target}))
    return file.stat().st_size


def read_mask_adapter(folder: Path) -> MaskAdapter | None:
    """The mask adapter of a folder; None where it has none. Raises ModelUnavailable for a damaged file."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="numpy") as stored:
            about: dict[str, str] = stored.metadata() or {}
            tensors: dict[str, Any] = {name: stored.get_tensor(name).astype(np.float32) for name in TENSORS}
        if about.get("format") != FORMAT:
            raise UnsupportedModel(f"{file} has format {about.get('format')}; this version reads {FORMAT}")
        return MaskAdapter(**tensors, target=_target(about.get("target", "")))
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise ModelUnavailable(f"{file} is damaged ({error}); install sqlagent again, or train it anew") from error


def _target(text: str) -> "TargetIdentity | None":
    from decoding.checkpoints.target_identity import TargetIdentity

    return TargetIdentity(**json.loads(text)) if text else None
