"""The forward in which a mask adapter learns on a GPU: packs of many thousand rows, and as many masks.

Chains are padded so that few sizes are compiled, and masks attend by FlexAttention. The same numbers as `MaskModel`'s up to
rounding.
"""

from dataclasses import replace
from functools import partial
from math import gcd

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from decoding.training.data.packing import Pack
from decoding.training.heads.mask_model import MaskModel, MaskRows, Predictions
from decoding.training.model import gpu_model
from decoding.training.model.forward import Mix
from decoding.training.model.gpu_model import BLOCK, GpuModel, blocks_listed, mixed_by_trees


class GpuMaskModel(MaskModel, GpuModel):
    """`MaskModel` for packs and masks that are many."""

    def predictions(self, pack: Pack, masks: MaskRows) -> Predictions:
        return super().predictions(pack, padded(masks, gpu_model.PADDED))

    def _mix_behind(self, pack: Pack, masks: MaskRows) -> Mix:
        ends = np.concatenate([pack.ends(), np.zeros(-pack.rows % gpu_model.PADDED, np.int32)])  # padding is not seen
        anchors = np.repeat(masks.anchors, masks.masks)
        return partial(mixed_by_trees, self._compiled, mask_blocks(ends, anchors, masks.masks, self.device))


def padded(masks: MaskRows, multiple: int) -> MaskRows:
    """The same masks, and chains of which none is asked anything until masks are a multiple of `multiple`."""
    spare = -len(masks.anchors) % (multiple // gcd(multiple, masks.masks))
    return replace(masks, anchors=np.concatenate([masks.anchors, np.repeat(masks.anchors[-1:], spare)]))


def mask_blocks(ends: np.ndarray, anchors: np.ndarray, length: int, device: torch.device) -> BlockMask:
    """What masks see: of the rows before them what their anchor sees, and the masks of their chain up to themselves.

    ends: of the rows of a forest, `Pack.ends`, and 0 for padding. anchors: of each mask. length: of a chain. Rows, and masks,
    are multiples of BLOCK. Keys are the rows and then the masks.
    """
    rows, masks = len(ends), len(anchors)
    by_keys, by_masks = ends.reshape(-1, BLOCK), anchors.reshape(-1, BLOCK)
    first = np.arange(len(by_keys)) * BLOCK
    low, high = by_masks.min(1)[:, None], by_masks.max(1)[:, None]
    some = (first <= high) & (by_keys.max(1) > low)
    whole = (first + BLOCK <= low) & (by_keys.min(1) > high)
    chains = np.arange(masks, dtype=np.int32) // length
    chain = chains.reshape(-1, BLOCK)
    among = (chain.min(1) <= chain.max(1)[:, None]) & (chain.max(1) >= chain.min(1)[:, None])
    # Tensors, and no numbers: chains of another length then need no compiling.
    tables = np.concatenate([ends, anchors * 0]), anchors, np.concatenate([np.full(rows, -1, np.int32), chains])
    last, anchor, chain_of = (torch.from_numpy(each).to(device) for each in tables)

    def seen(batch: Tensor, head: Tensor, mask: Tensor, key: Tensor) -> Tensor:
        before = (key <= anchor[mask]) & (anchor[mask] < last[key])
        own = (key - rows <= mask) & (chain_of[key] == chain_of[mask + rows])
        return torch.where(key < rows, before, own)

    none = np.zeros_like(among)
    partly = blocks_listed(np.concatenate([some & ~whole, among], 1), device)
    wholly = blocks_listed(np.concatenate([whole, none], 1), device)
    return BlockMask.from_kv_blocks(
        *partly, *wholly, BLOCK_SIZE=BLOCK, mask_mod=seen, seq_lengths=(masks, rows + masks)
    )
