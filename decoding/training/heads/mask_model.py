"""The forward in which a mask adapter learns: a frozen target's rows without gradient, then mask tokens' rows with it."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.adapters.mask_adapter import FOLLOWERS, PAIRS, TENSORS, MaskAdapter, TokenPairs
from decoding.checkpoints.model_config import ModelConfig
from decoding.targets.fast_ops import adapted
from decoding.training.data.followers import FollowerRows, follower_rows
from decoding.training.data.groups import Tokens
from decoding.training.data.packing import Pack
from decoding.training.model.forward import Known, Mix, TrainModel, attended


@dataclass(frozen=True, slots=True)
class MaskRows:
    """Chains of mask tokens after some rows of a pack: `depths` each, chain after chain."""

    anchors: Tokens  # [chains] rows of the pack that the chains follow
    depths: int
    inside: np.ndarray  # [chains, depths] whether the answer has a token that the mask predicts
    firsts: Tokens  # [masks inside] index into the pack's `sources` of the mask's anchor
    targets: Tokens  # [masks inside] the same of the row whose prediction the mask's should be

    @property
    def places(self) -> np.ndarray:
        """Of the masks inside, among all."""
        return np.flatnonzero(self.inside)


def mask_rows(pack: Pack, chosen: Iterable[int], depths: int) -> MaskRows:
    """Chains after the rows `pack.sources[j]` for each j that is chosen.

    The row predicts the token after it, and the mask at depth d the one that is d + 2 after it: what row `sources[j + 1 + d]`
    predicts, if that is of the same answer.
    """
    owners, firsts = pack.owners, np.array(list(chosen), np.int64)
    ahead = firsts[:, None] + 1 + np.arange(depths)
    inside = ahead < len(owners)
    inside &= owners[np.minimum(ahead, len(owners) - 1)] == owners[firsts][:, None]
    anchors = np.broadcast_to(firsts[:, None], inside.shape)[inside]
    return MaskRows(pack.sources[firsts], depths, inside, anchors.astype(np.int32), ahead[inside].astype(np.int32))


@dataclass(frozen=True, slots=True)
class Predictions:
    """What masks predict, and what they should: logits [masks inside, size] over the tokens `ids` [size], ascending."""

    ids: Tensor
    masks: Tensor
    target: Tensor  # without gradient
    own: Tensor  # [masks inside] bool: whether the target itself would write all tokens between the anchor and the mask's


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
        for name in TENSORS:
            self._train(name, torch.from_numpy(getattr(adapter, name)))
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
        states = self._through(pack, masks, known)
        found = self._head(functional.embedding(self._ids(masks.places), states), ids)
        return Predictions(ids, found, right, own)

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
        names = (*PAIRS, FOLLOWERS) if FOLLOWERS in found else PAIRS
        pairs = self._pairs and TokenPairs(self._pairs.ids, *(found[name] for name in names))
        embeddings, down, up = (found[name] for name in TENSORS)
        return MaskAdapter(embeddings, down, up, pairs)

    def _through(self, pack: Pack, masks: MaskRows, known: Known) -> Tensor:
        """[masks, hidden] the last layer's output at all masks. known: keys and values of the pack's rows."""
        positions = self._ids((pack.positions()[masks.anchors][:, None] + 1 + np.arange(masks.depths)).reshape(-1))
        cos, sin = self._rope.at(positions, int(positions.max()) + 1)
        mix = self._mix_behind(pack, masks)
        x, down, up = (self._weight(name) for name in TENSORS)
        x = x.repeat(len(masks.anchors), 1)
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
    """[masks] whether all of `agreed` [targets] from a mask's anchor to before its target are true."""
    faults = functional.pad((~agreed).long().cumsum(0), (1, 0))
    return faults[targets] == faults[firsts]


def _seen(pack: Pack, masks: MaskRows) -> np.ndarray:
    """[masks, rows + masks] what each mask sees: what its anchor sees, and the masks of its chain up to itself."""
    chains, depths = len(masks.anchors), masks.depths
    own = np.kron(np.eye(chains, dtype=bool), np.tri(depths, dtype=bool))
    return np.concatenate([np.repeat(pack.mask()[masks.anchors], depths, 0), own], 1)
