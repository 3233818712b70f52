"""What the training loop needs to train a mask adapter: packs of the frozen target's own answers, and the loss.

The loss is the cross-entropy from each mask's prediction to the target's own at the same position of its own text, at
temperature 1, and later depths count less. No answer is learnt: the target stays what it is. Other texts serve, too: a chain
of masks counts up to where the target would write something else.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from decoding.checkpoints.adapter import About, Adapter, merged_weights
from decoding.checkpoints.bigrams import FITTED, TokenPairs
from decoding.checkpoints.cache_folder import whole_folder
from decoding.checkpoints.identity import TargetIdentity, target_identity
from decoding.checkpoints.mask_adapter import MaskAdapter, write_mask_adapter
from decoding.checkpoints.weight_files import read_weights
from training.config import TrainConfig, TrainingError
from training.heads.features import groups_of
from training.heads.mask_model import GpuMaskModel, MaskModel, MaskRows, mask_rows
from training.heads.responses import Response
from training.objective import Objective, some
from training.packs.groups import TokenPair, Tokens
from training.packs.packing import Pack, pack
from training.run.base import Base, Subject
from training.run.gpu_model import gpu_model_fits

_EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class MaskConfig:
    """depths: how many tokens masks predict after a token. rank: components of each layer's change. decay: weight of a depth,
    of that of the depth before. chains: the most chains of masks in a pack, drawn anew each time. pair_rank, pair_tokens: of
    the scores of pairs; rank 0 trains none. alone: weight of what masks say without them. ahead: tokens that a mask, and a row
    of text, predicts beyond its own, by heads of rank ahead_rank; then a chain has a mask for each depth, or for every second
    and so on up to 1 + ahead, drawn anew each time.
    """

    depths: int = 8
    rank: int = 64
    decay: float = 0.85
    chains: int = 192
    pair_rank: int = 32
    pair_tokens: int = 1024
    alone: float = 0.25
    ahead: int = 0
    ahead_rank: int = 128

    def __post_init__(self) -> None:
        counts = self.depths, self.rank, self.chains, self.pair_tokens, self.ahead_rank
        if min(counts) < 1 or not 0.0 < self.decay <= 1.0:
            raise TrainingError(
                "depths, ranks, chains and pair_tokens must be 1 or more, and decay above 0 and at most 1"
            )
        if min(self.pair_rank, self.alone, self.ahead) < 0:
            raise TrainingError("pair_rank, alone and ahead must not be negative")


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
        curve = {
            "masks": repr(self.how),
            "begin": "" if self.begin is None else str(float(np.abs(self.begin.up).sum())),
        }
        return Objective(some(packs, min(rows, longest)), measured, left_out, self._loss, self._values, curve=curve)

    def subject(
        self, config: TrainConfig, base: Base, about: About, dtype: torch.dtype, device: torch.device
    ) -> Subject:
        """The target with an adapter in training."""
        weights = dict(merged_weights(read_weights(base.folder), self.adapter))
        begun = self._begun(config.seed, base, weights[_EMBEDDING][self.like])
        kind = GpuMaskModel if gpu_model_fits(base.config, device, dropout=False) else MaskModel
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


def frequent_tokens(responses: Iterable[Response]) -> list[int]:
    """The tokens of the answers, the most frequent first."""
    counts = Counter(token for response in responses for answer in response.answers for token in answer)
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
