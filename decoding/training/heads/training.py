"""What the training loop needs to train one head on features."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoding.checkpoints.adapters.adapter import About, Adapter, merged_weights
from decoding.checkpoints.identity import weights_sha256
from decoding.checkpoints.target_identity import TargetIdentity, target_identity
from decoding.checkpoints.weight_files import read_weights
from decoding.heads.head import Head, HeadMismatch, save_head
from decoding.training.config import TrainConfig, TrainingError
from decoding.training.heads.features import FeaturePack, Features
from decoding.training.heads.objective import FromTarget, HeadBatch, HeadObjective
from decoding.training.model.base import Base
from decoding.training.model.subject import Subject
from decoding.training.objective import Objective

_EMBEDDING, _LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"


class HeadLesson:
    """A head, the features that it learns from, and its objective: the state that the loop's callbacks share.

    begin: a head whose weights a new one takes if names and shapes agree. Raises HeadMismatch if the features are of another
    target than `base`.
    """

    def __init__(
        self,
        objective: HeadObjective,
        features: Features,
        base: Base,
        adapter: Adapter | None = None,
        begin: Head | None = None,
    ) -> None:
        target = features.origin.target
        mine = replace(target_identity(base.sha256, adapter), prompt_hash=target.prompt_hash)
        if difference := target.difference(mine):
            raise HeadMismatch(f"the features are of another target ({difference}): make them anew with this one")
        self._objective, self._features, self._base, self._adapter = objective, features, base, adapter
        self._begin = begin
        self._progress = 0.0

    def objective(self, held_out_part: float) -> Objective[FeaturePack]:
        """The objective for the training loop; the last packs are held out."""
        packs = self._features.packs
        held_out = min(round(held_out_part * len(packs)), len(packs) - 1)
        return Objective(
            packs[: len(packs) - held_out],
            packs[len(packs) - held_out :],
            left_out=0,
            loss=self._loss,
            evaluate=self._evaluate,
            curve={
                "objective": repr(self._objective),
                "features": repr(self._features.origin),
                "begin": weights_sha256(self._begin.state_dict()) if self._begin else "",
            },
        )

    def subject(
        self, config: TrainConfig, base: Base, about: About, dtype: torch.dtype, device: torch.device
    ) -> Subject:
        """A new head in fp32; `dtype` is the type of its arithmetic."""
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            head = self._objective.new(base.config, self._features.counts())
        stored = read_weights(base.folder)
        if isinstance(self._objective, FromTarget):
            weights = dict(merged_weights(stored, self._adapter))
            self._objective.start(head, weights)
        else:
            weights = {name: tensor for name, tensor in stored if name in (_EMBEDDING, _LM_HEAD)}
        if self._begin:
            _take(head, self._begin)
        head.to(device).train().requires_grad_()
        self._embedding = weights[_EMBEDDING].to(device, torch.float32)
        tied = base.config.tie_embeddings
        self._lm_head = self._embedding if tied else weights[_LM_HEAD].to(device, torch.float32)
        self._device, self._dtype = device, dtype
        identity = self._features.origin.target
        return Subject(
            head,
            dict(head.named_parameters()),
            dtype,
            device,
            result="head",
            small=True,
            write=lambda folder: _write(head, folder, identity),
            at=self._at,
        )

    def batch(self, pack: FeaturePack, taps: Sequence[int], progress: float = 1.0) -> HeadBatch:
        """A pack on the device."""
        layers = self._base.config.layers
        states = self._features.states(pack, (*taps, layers)).to(self._device)
        ids = {
            name: torch.from_numpy(getattr(pack, name)).long().to(self._device)
            for name in ("tokens", "parents", "sources", "targets", "owners")
        }
        return HeadBatch(
            **ids,
            positions=torch.from_numpy(pack.positions()).long().to(self._device),
            sees=torch.from_numpy(pack.mask()).to(self._device),
            hidden=states[:, :-1],
            final=states[:, -1],
            embedding=self._embedding,
            lm_head=self._lm_head,
            progress=progress,
        )

    def _at(self, progress: float) -> None:
        self._progress = progress

    def _loss(self, head: Head, pack: FeaturePack, step: Sequence[FeaturePack]) -> Tensor:
        part = len(pack.targets) / sum(len(each.targets) for each in step)
        with self._arithmetic():
            loss, _ = self._objective.loss(head, self.batch(pack, head.config.taps, self._progress))
        return part * loss[None]

    @torch.no_grad()
    def _evaluate(self, head: Head, packs: Sequence[FeaturePack]) -> Mapping[str, float]:
        """Means over the targets of `loss` and of the objective's own figures, with a fixed random seed."""
        sums: dict[str, float] = defaultdict(float)
        head.eval()
        with torch.random.fork_rng(), self._arithmetic():
            torch.manual_seed(0)
            for pack in packs:
                loss, figures = self._objective.loss(head, self.batch(pack, head.config.taps))
                for name, value in {"loss": loss, **figures}.items():
                    sums[name] += float(value) * len(pack.targets)
        head.train()
        targets = sum(len(pack.targets) for pack in packs)
        return {name: value / targets for name, value in sums.items()}

    def _arithmetic(self) -> AbstractContextManager[Any]:
        """Half precision if requested; weights, and the sums of a loss, stay in fp32."""
        if self._dtype != torch.bfloat16:
            return nullcontext()
        return torch.autocast(self._device.type, self._dtype)


def _take(head: Head, begin: Head) -> None:
    """Give `head` the weights of `begin` that have its names and shapes."""
    shapes = {name: tensor.shape for name, tensor in head.state_dict().items()}
    found = {name: tensor for name, tensor in begin.state_dict().items() if shapes.get(name) == tensor.shape}
    if not found:
        raise TrainingError(f"a {begin.config.kind} head has no weight that a {head.config.kind} head could begin with")
    head.load_state_dict(found, strict=False)


def _write(head: Head, folder: Path, identity: TargetIdentity) -> None:
    save_head(head, folder, identity)
