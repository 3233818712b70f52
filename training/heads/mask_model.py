"""Training a mask adapter: the forward in which it learns, on a processor and on a GPU, and what the training loop needs.

A frozen target's rows are computed without gradient, then mask tokens' rows with it. On a GPU chains are padded so that few
sizes are compiled, and masks attend by FlexAttention: the same numbers up to rounding.

The loss is the cross-entropy from each mask's prediction to the target's own at the same position, at temperature 1; later
depths count less. The target stays what it is. Other texts serve, too: a chain counts up to where the target would differ.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask

from decoding.checkpoints.adapter import About, Adapter, merged_weights
from decoding.checkpoints.bigrams import FITTED, TokenPairs
from decoding.checkpoints.cache_folder import whole_folder
from decoding.checkpoints.identity import TargetIdentity, target_identity
from decoding.checkpoints.mask_adapter import (
    AHEAD,
    FOLLOWERS,
    OF_MASKS,
    OF_TEXT,
    PAIRS,
    TENSORS,
    Ahead,
    MaskAdapter,
    write_mask_adapter,
)
from decoding.checkpoints.model_config import ModelConfig
from decoding.checkpoints.weight_files import read_weights
from decoding.targets.llama_model import adapted
from training.config import TrainConfig, TrainingError
from training.heads.features import groups_of
from training.heads.responses import Response
from training.objective import Objective, some
from training.packs.bigrams import FollowerRows, follower_rows
from training.packs.groups import TokenPair, Tokens
from training.packs.packing import Pack, pack
from training.run import gpu_model
from training.run.base import Base, Subject
from training.run.gpu_model import (
    BLOCK,
    GpuModel,
    Known,
    Mix,
    TrainModel,
    attended,
    blocks_listed,
    gpu_model_fits,
    mixed_by_trees,
)


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
        super().__init__(config, weights, {}, 0.0, dtype, device)
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
        mix = self._mix_after(pack, masks)
        x, down, up = (self._weight(name) for name in TENSORS)
        x = x[:: masks.stride][: masks.masks].repeat(len(masks.anchors), 1)
        for index, pair in enumerate(known):
            x = adapted(x, down[index], up[index], self.config.rms_norm_eps)
            x = self._layer(index, x, cos, sin, partial(_after, mix, *pair))
        return x

    def _mix_after(self, pack: Pack, masks: MaskRows) -> Mix:
        """The attention of masks to the keys of the pack's rows and, after these, of the masks."""
        return partial(attended, blocks=list(self._blocks(torch.from_numpy(_seen(pack, masks)))))


def _after(mix: Mix, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
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

    def _mix_after(self, pack: Pack, masks: MaskRows) -> Mix:
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


_EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class MaskConfig:
    """The options of `sqlagent train masks`. The chains of a pack are drawn again each time; with `ahead`, so is whether a
    chain has a mask for each depth, or for every second and so on up to 1 + ahead.
    """

    depths: Annotated[int, typer.Option("--depths", min=1, help="Tokens that masks predict after a token.")] = 8
    rank: Annotated[int, typer.Option("--rank", min=1, help="Components of each layer's change.")] = 64
    decay: Annotated[
        float, typer.Option("--decay", min=0.01, max=1.0, help="Weight of a depth, of that of the depth before.")
    ] = 0.85
    chains: Annotated[int, typer.Option("--chains", min=1, help="Chains of masks in a pack.")] = 192
    pair_rank: Annotated[
        int, typer.Option("--pair-rank", min=0, help="Rank of the scores of pairs of tokens; 0 for none.")
    ] = 32
    pair_tokens: Annotated[int, typer.Option("--pair-tokens", min=1, help="Tokens that have such scores.")] = 1024
    alone: Annotated[
        float, typer.Option("--alone", min=0.0, help="Weight of what masks say without the token before.")
    ] = 0.25
    ahead: Annotated[
        int, typer.Option("--ahead", min=0, help="Tokens that a mask and a row of text predict beyond their own.")
    ] = 0
    ahead_rank: Annotated[int, typer.Option("--ahead-rank", min=1, help="Rank of the heads that do.")] = 128


@dataclass(frozen=True, slots=True)
class MaskLesson:
    """A frozen target, how its masks learn, and the adapter that training starts from (None: a new one).

    begin: an adapter with fewer depths or components is grown. like: what methods take for a mask where a target has none of
    its own is a good choice (`methods.jacobi.first_guess`). pairs: groups of other texts.

    Raises TrainingError where the responses are another target's.
    """

    how: MaskConfig
    base: Base
    adapter: Adapter | None  # of the target
    target: TargetIdentity  # whose responses are learnt
    begin: MaskAdapter | None = None
    like: int = 0  # the token whose embedding the masks of a new adapter have
    frequent: Sequence[int] = ()  # tokens whose pairs a new adapter knows
    pairs: Sequence[Sequence[TokenPair]] = ()

    def __post_init__(self) -> None:
        mine = replace(target_identity(self.base.sha256, self.adapter), prompt_hash=self.target.prompt_hash)
        if difference := self.target.difference(mine):
            raise TrainingError(f"the responses are of another target ({difference}): collect them with this one")

    def objective(
        self, config: TrainConfig, base: Base, responses: Iterable[Response], held_out: Iterable[Response]
    ) -> Objective[Pack]:
        """Packs of responses, and their loss. A pack may have more rows than a text may have tokens."""
        rows, longest = config.pack_tokens, base.max_length
        packs, left_out = pack([*groups_of(responses), *self.pairs], rows, config.seed, longest)
        measured, _ = pack(groups_of(held_out), rows, config.seed, longest)
        return self.packed(some(packs, min(rows, longest)), measured, left_out)

    def packed(self, packs: Sequence[Pack], held_out: Sequence[Pack], left_out: int) -> Objective[Pack]:
        """The objective on packs."""
        begin = "" if self.begin is None else str(float(np.abs(self.begin.up).sum()))
        curve = {"masks": repr(self.how), "begin": begin}
        return Objective(packs, held_out, left_out, self._loss, self._values, curve=curve)

    def subject(
        self, config: TrainConfig, base: Base, about: About, dtype: torch.dtype, device: torch.device
    ) -> Subject:
        """The target with an adapter in training."""
        weights = dict(merged_weights(read_weights(base.folder), self.adapter))
        begun = self._begun(config.seed, base, weights[_EMBEDDING][self.like])
        kind = GpuMaskModel if gpu_model_fits(base.config, device) else MaskModel
        model = kind(base.config, weights.items(), begun, dtype, device)

        def write(folder: Path) -> None:
            found = model.adapter()
            with whole_folder(folder) as staging:
                write_mask_adapter(replace(found, target=self.target, priors=begun.priors), staging)

        return Subject(model, model.trained, dtype, device, result="masks", small=True, write=write)

    def _begun(self, seed: int, base: Base, like: Tensor) -> MaskAdapter:
        how = self.how
        if self.begin is None:
            return new_mask_adapter(how, base, like, self.frequent, seed)
        try:
            begun = self.begin.with_followers().grown(how.depths, how.rank, seed)
            return begun.with_ahead(how.ahead, how.ahead_rank, seed)
        except ValueError as error:
            raise TrainingError(str(error)) from error

    def _loss(self, model: MaskModel, pack: Pack, step: Sequence[Pack]) -> Tensor:
        how, stride = self.how, 1 + int(torch.randint(1 + self.how.ahead, ()))
        masks = mask_rows(pack, _drawn(pack, how), how.depths, stride, how.ahead)
        said = _said(model, pack, masks)
        losses = said.losses(how.alone)
        weights = torch.from_numpy(how.decay**masks.depths).to(losses) * said.own
        return (losses @ weights / weights.sum().clamp_min(1e-6) / len(step))[None]

    @torch.no_grad()
    def _values(self, model: MaskModel, packs: Sequence[Pack]) -> Mapping[str, float]:
        """`loss`: the mean over all masks; `right_<depth>`: share of the masks that predict the target's own token, given the
        token before it. With `ahead`, chains have as few masks as they can, and `text_<depth>` is the share of rows of text.
        """
        stride = 1 + self.how.ahead
        losses: list[Tensor] = []
        right: dict[str, list[float]] = defaultdict(list)
        for each in packs:
            masks = mask_rows(each, range(0, len(each.sources), 3), self.how.depths, stride, self.how.ahead)
            said = _said(model, each, masks)
            names = [
                f"{'right' if asked.of_masks else 'text'}_{depth}" for asked in masks.asked for depth in asked.depths
            ]
            losses.append(said.losses(0.0)[said.own])
            for name, own, hit in zip(names, said.own.tolist(), said.hits.tolist(), strict=True):
                if own:
                    right[name].append(hit)
        counted = torch.cat(losses) if losses else torch.empty(0)
        shares = {name: float(np.mean(hits)) for name, hits in sorted(right.items())}
        return {"loss": float(counted.mean()) if len(counted) else 0.0, **shares}


def new_mask_adapter(how: MaskConfig, base: Base, like: Tensor, frequent: Sequence[int], seed: int) -> MaskAdapter:
    """An adapter that changes nothing yet: every mask has the embedding `like` [hidden], and what would change is zero."""
    config, chance = base.config, np.random.default_rng([seed, 3])
    shape = (config.layers, how.rank, config.hidden_size)
    down = chance.uniform(-1.0, 1.0, shape).astype(np.float32) * config.hidden_size**-0.5
    embeddings = np.tile(like.float().numpy(), (how.depths, 1))
    ids = np.array(frequent[: how.pair_tokens], np.int64)
    before = chance.standard_normal((len(ids), how.pair_rank), np.float32) * np.float32(max(how.pair_rank, 1) ** -0.5)
    pairs = TokenPairs(ids, before, np.zeros_like(before), FITTED.copy()) if before.size else None
    made = MaskAdapter(embeddings, down, np.zeros(shape, np.float32), pairs)
    return made.with_ahead(how.ahead, how.ahead_rank, seed)


def frequent_tokens(answers: Iterable[Iterable[int]]) -> list[int]:
    """The tokens of the answers, the most frequent first."""
    counts = Counter(token for answer in answers for token in answer)
    return [token for token, _ in counts.most_common()]


def _drawn(pack: Pack, how: MaskConfig) -> list[int]:
    """At most `how.chains` of a pack's anchors, by torch's global generator, which the loop seeds for every pack. One is drawn
    in proportion to how many of its masks predict a token of the same answer, as the others' rows would be wasted.
    """
    weights = torch.from_numpy(_ahead(pack)).clamp(max=how.depths).double().clamp_min(1e-6)
    chosen: list[int] = torch.multinomial(weights, min(how.chains, len(weights))).sort().values.tolist()
    return chosen


def _ahead(pack: Pack) -> Tokens:
    """[sources] how many targets of the same answer come after each."""
    lasts = np.append(np.flatnonzero(np.diff(pack.owners)), len(pack.owners) - 1)
    places = np.arange(len(pack.owners))
    found: Tokens = (lasts[np.searchsorted(lasts, places)] - places).astype(np.int32)
    return found


@dataclass(frozen=True, slots=True)
class _Said:
    """Logits [predictions, size]: what masks say alone, and with the token before; and what the target says.

    own: as `Predictions` has it.
    """

    alone: Tensor
    paired: Tensor
    right: Tensor
    own: Tensor

    def losses(self, alone: float) -> Tensor:
        """[predictions] the cross-entropy to the target's own prediction, and `alone` times that of the masks alone."""
        right = self.right.softmax(-1)
        losses = -(right * self.paired.log_softmax(-1)).sum(-1)
        if not alone or self.alone is self.paired:
            return losses
        return losses - alone * (right * self.alone.log_softmax(-1)).sum(-1)

    @property
    def hits(self) -> Tensor:
        """[predictions] whether both rank the same token first."""
        return self.paired.argmax(-1) == self.right.argmax(-1)


def _said(model: MaskModel, pack: Pack, masks: MaskRows) -> _Said:
    found = model.predictions(pack, masks)
    return _Said(found.masks, model.paired(found, pack, masks), found.target, found.own)
