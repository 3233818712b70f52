"""The adapters that come with the embedded model, and the one that a caller's choice means."""

from pathlib import Path
from typing import Literal

from decoding.checkpoints.adapters.adapter import Adapter, check_base
from decoding.checkpoints.adapters.adapter_files import read_adapter
from decoding.checkpoints.adapters.mask_adapter import MaskAdapter, read_mask_adapter
from decoding.checkpoints.fetch.embedded import EMBEDDED_NAMES
from decoding.checkpoints.resolve import base_sha256

_WEIGHTS = Path(__file__).parents[2] / "weights"
SHIPPED_ADAPTER = _WEIGHTS / "sqlagent-135m"
SHIPPED_BASE = _WEIGHTS / "base"  # what belongs to the embedded model without an adapter
Choice = Path | Literal["auto", "none"]


def chosen_adapter(name: str, path: Path, wanted: Choice, any_base: bool = False) -> Adapter | None:
    """The adapter that `wanted` means for the model `name` in `path`: see `decoding.serving.load.load_text_decoder`."""
    if wanted == "none" or (wanted == "auto" and not (name in EMBEDDED_NAMES and SHIPPED_ADAPTER.is_dir())):
        return None
    found = read_adapter(SHIPPED_ADAPTER if wanted == "auto" else Path(wanted))
    check_base(found, base_sha256(path), force=any_base)
    return found


def chosen_masks(name: str, adapter: Adapter | None) -> MaskAdapter | None:
    """The mask adapter beside the adapter of a model, or for the embedded one without an adapter the one that comes with it.

    Raises ModelUnavailable for a damaged file.
    """
    if adapter is None:
        return read_mask_adapter(SHIPPED_BASE) if name in EMBEDDED_NAMES else None
    return read_mask_adapter(adapter.files[0].parent) if adapter.files else None
