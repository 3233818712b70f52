"""The forward in which a mask adapter learns, on a processor and on a GPU.

The forward in which a mask adapter learns: a frozen target's rows without gradient, then mask tokens' rows with it.

The forward in which a mask adapter learns on a GPU: packs of many thousand rows, and as many masks.

Chains are padded so that few sizes are compiled, and masks attend by FlexAttention. The same numbers as `MaskModel`'s up to
rounding.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import gcd

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask

from decoding.checkpoints.bigrams import TokenPairs
from decoding.checkpoints.mask_adapter import AHEAD, FOLLOWERS, OF_MASKS, OF_TEXT, PAIRS, TENSORS, Ahead, MaskAdapter
from decoding.checkpoints.model_config import ModelConfig
from decoding.targets.fast_ops import adapted
from training.packs.bigrams import FollowerRows, follower_rows
from training.packs.groups import Tokens
from training.packs.packing import Pack
from training.run import gpu_model
from training.run.forward import Known, Mix, TrainModel, attended
from training.run.gpu_model import BLOCK, GpuModel, blocks_listed, mixed_by_trees


@dataclass(frozen=True, slots=True)
class Asked:
    """Predictions by one head: of masks, or of the rows of text that chains follow.

    head: 0 for a mask's own prediction, j for the j-th token after its own. places [predictions]: the mask's index, or the
    chain's. firsts: index into the pack's `sources` of the chain's anchor; targets: the same of the row whose prediction this
    should be; depths: of the token, 0 for the one after the anchor's own prediction.
    """

    of_masks: bool
    head: int
    places: Tokens
    firsts: Tokens
    targets: Tokens
    depths: Tokens


@dataclass(frozen=True, slots=True)
class MaskRows:
    """Chains of mask tokens after some rows of a pack, chain after chain, and what they are asked.

    masks: of each chain, which stand for the depths 0, stride, 2 * stride and so on.
    """

    anchors: Tokens  # [chains] rows of the pack that the chains follow
    masks: int
    stride: int
    asked: tuple[Asked, ...]

    @property
    def firsts(self) -> Tokens:
        """Of all predictions, in the order in which they are asked; likewise the next two."""
        return np.concatenate([each.firsts for each in self.asked])

    @property
    def targets(self) -> Tokens:
        return np.concatenate([each.targets for each in self.asked])

    @property
    def depths(self) -> Tokens:
        return np.concatenate([each.depths for each in self.asked])


def mask_rows(pack: Pack, chosen: Iterable[int], depths: int, stride: int = 1, ahead: int = 0) -> MaskRows:
    """Chains after the rows `pack.sources[j]` for each j that is chosen, with a mask for every `stride` of the depths.

    The row predicts the token after it, and the mask at depth d the one that is d + 2 after it: what row `sources[j + 1 + d]`
    predicts, if that is of the same answer. ahead: tokens that rows and masks predict beyond their own.
    """
    firsts, masks = np.array(list(chosen), np.int64), -(-depths // stride)

    def asked(of_masks: bool, head: int, each: Tokens) -> Asked:
        """each: the depths that a chain's rows predict."""
        sources = firsts[:, None] + 1 + each
        inside = sources < len(pack.owners)
        inside &= pack.owners[np.minimum(sources, len(pack.owners) - 1)] == pack.owners[firsts][:, None]
        chain, column = np.nonzero(inside)
        parts = np.flatnonzero(inside), firsts[chain], sources[inside], each[column]
        return Asked(of_masks, head, *(part.astype(np.int32) for part in parts))

    own = stride * np.arange(masks, dtype=np.int32)
    by_masks = [asked(True, head, own + head) for head in range(1 + ahead)]
    by_text = [asked(False, head, np.array([head - 1], np.int32)) for head in range(1, 1 + ahead)]
    return MaskRows(pack.sources[firsts], masks, stride, (*by_masks, *by_text))


@dataclass(frozen=True, slots=True)
class Predictions:
    """What masks predict, and what they should: logits [predictions, size] over the tokens `ids` [size], ascending."""

    ids: Tensor
    masks: Tensor
    target: Tensor  # without gradient
    own: Tensor  # [predictions] bool: whether the target itself would write all tokens from the anchor to before each


class MaskModel(TrainModel):
    """A frozen target, and an adapter in training: `trained` has its tensors by their names."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Iterable[tuple[str, Tensor]],
        adapter: MaskAdapter,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(config, weights, {}, None, dtype, device)
        adapter.check_fits(config)
        for name, array in adapter.arrays().items():
            self._train(name, torch.from_numpy(array))
        self._pairs = adapter.pairs
        self._known_followers: dict[int, tuple[Pack, FollowerRows]] = {}  # by the identity of packs, which thus stay
        if adapter.pairs:
            self._frequent = self._ids(adapter.pairs.ids)
            self._row_of = torch.full((config.vocab_size,), -1, device=device)
            self._row_of[self._frequent] = torch.arange(len(adapter.pairs.ids), device=device)
            for name in PAIRS:
                self._train(name, torch.from_numpy(getattr(adapter.pairs, name)))
            if adapter.pairs.followers is not None:
                self._train(FOLLOWERS, torch.from_numpy(adapter.pairs.followers))

    def predictions(self, pack: Pack, masks: MaskRows) -> Predictions:
        """Over the tokens of the pack and those that have pairs, as methods ask the LM head about masks."""
        rows, known = self.rows(pack), Known()
        ids = torch.unique(torch.cat([self._ids(pack.tokens), self._ids(pack.targets), *self._paired_ids()]))
        with torch.no_grad():
            *_, x = self._layers(rows, known=known)
            right = self._head(functional.embedding(rows.sources, x), ids)
            own = _own(
                ids[right.argmax(-1)] == self._ids(pack.targets), self._ids(masks.firsts), self._ids(masks.targets)
            )
            right = right[self._ids(masks.targets)]
            anchors = functional.embedding(self._ids(masks.anchors), x)
        states = self._through(pack, masks, known)
        asked = [self._asked(each, states if each.of_masks else anchors) for each in masks.asked]
        return Predictions(ids, self._head(torch.cat(asked), ids), right, own)

    def _asked(self, asked: Asked, states: Tensor) -> Tensor:
        """[predictions, hidden] what the LM head gets for them. states [rows, hidden]: the last layer's output."""
        x = functional.embedding(self._ids(asked.places), states)
        if not asked.head:
            return x
        x = functional.rms_norm(x, x.shape[1:], None, self.config.rms_norm_eps)
        kind = OF_MASKS if asked.of_masks else OF_TEXT
        down, up = (self._weight(name)[kind, asked.head - 1] for name in AHEAD)
        return adapted(x, down, up, self.config.rms_norm_eps)

    def paired(self, found: Predictions, pack: Pack, masks: MaskRows) -> Tensor:
        """The masks' logits with what is known by the token before each prediction."""
        if self._pairs is None:
            return found.masks
        previous = pack.tokens[pack.sources[masks.targets]]
        rows = self._row_of[self._ids(previous)]
        before = functional.embedding(rows.clamp_min(0), self._weight("before")) * (rows >= 0)[:, None]
        scores = functional.linear(before, self._weight("after")).float()
        logits = found.masks.index_add(1, torch.searchsorted(found.ids, self._frequent), scores)
        if FOLLOWERS not in self.trained:
            return logits
        places, tokens, features = self._follower_rows(pack).of(masks.targets)
        added = torch.from_numpy(features).to(self.device) @ self.trained[FOLLOWERS]
        where = self._ids(places), torch.searchsorted(found.ids, self._ids(tokens))
        return logits.index_put(where, added, accumulate=True)

    def _follower_rows(self, pack: Pack) -> FollowerRows:
        """Of a pack, which is kept: a run has the same packs in every epoch."""
        if id(pack) not in self._known_followers:
            frequent = np.zeros(self.config.vocab_size, bool)
            frequent[self._frequent.cpu().numpy()] = True
            self._known_followers[id(pack)] = pack, follower_rows(pack, frequent)
        return self._known_followers[id(pack)][1]

    def _paired_ids(self) -> list[Tensor]:
        return [self._frequent] if self._pairs else []

    def adapter(self) -> MaskAdapter:
        """What has been learnt so far."""
        found = {name: tensor.detach().float().cpu().numpy() for name, tensor in self.trained.items()}
        pairs = self._pairs and TokenPairs(self._pairs.ids, found[PAIRS[0]], found[PAIRS[1]], found.get(FOLLOWERS))
        embeddings, down, up = (found[name] for name in TENSORS)
        ahead = Ahead(*(found[name] for name in AHEAD)) if AHEAD[0] in found else None
        return MaskAdapter(embeddings, down, up, pairs, ahead=ahead)

    def _through(self, pack: Pack, masks: MaskRows, known: Known) -> Tensor:
        """[masks, hidden] the last layer's output at all masks. known: keys and values of the pack's rows."""
        positions = self._ids((pack.positions()[masks.anchors][:, None] + 1 + np.arange(masks.masks)).reshape(-1))
        cos, sin = self._rope.at(positions, int(positions.max()) + 1)
        mix = self._mix_behind(pack, masks)
        x, down, up = (self._weight(name) for name in TENSORS)
        x = x[:: masks.stride][: masks.masks].repeat(len(masks.anchors), 1)
        for index, pair in enumerate(known):
            x = adapted(x, down[index], up[index], self.config.rms_norm_eps)
            x = self._layer(index, x, cos, sin, partial(_behind, mix, *pair))
        return x

    def _mix_behind(self, pack: Pack, masks: MaskRows) -> Mix:
        """The attention of masks to the keys of the pack's rows and, after these, of the masks."""
        return partial(attended, blocks=list(self._blocks(torch.from_numpy(_seen(pack, masks)))))


def _behind(mix: Mix, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return mix(query, torch.cat([keys, key]), torch.cat([values, value]))


def _own(agreed: Tensor, firsts: Tensor, targets: Tensor) -> Tensor:
    """[predictions] whether all of `agreed` [targets] from an anchor to before its target are true."""
    faults = functional.pad((~agreed).long().cumsum(0), (1, 0))
    return faults[targets] == faults[firsts]


def _seen(pack: Pack, masks: MaskRows) -> np.ndarray:
    """[masks, rows + masks] what each mask sees: what its anchor sees, and the masks of its chain up to itself."""
    own = np.kron(np.eye(len(masks.anchors), dtype=bool), np.tri(masks.masks, dtype=bool))
    return np.concatenate([np.repeat(pack.mask()[masks.anchors], masks.masks, 0), own], 1)


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
