"""Trains one head on features: what the loop needs, and the two long steps, each resumable."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from decoding.checkpoints.adapter import About, Adapter, merged_weights
from decoding.checkpoints.identity import TargetIdentity, target_identity, weights_sha256
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.loop import Request, decode
from decoding.engine.rounds import measure
from decoding.heads.head import Head, HeadMismatch, load_head, new_head, save_head
from decoding.heads.kinds import all_taps
from decoding.methods.registry import load_method
from decoding.serving.load import chosen_dtype, load_text_decoder, tensor_dtype
from decoding.serving.text_decoder import TextDecoder
from training.config import TrainConfig, TrainingError
from training.heads.features import (
    EngineStates,
    FeaturePack,
    Features,
    FromTarget,
    HeadBatch,
    HeadObjective,
    Origin,
    States,
    packs_of,
    write_features,
)
from training.heads.responses import Response, read_responses
from training.loop import Outcome, train
from training.objective import Objective
from training.packs.packing import digest_of
from training.run.base import Base, Subject
from training.run.gpu_model import TrainModel
from training.run.progress import join

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
            raise HeadMismatch(f"the features are of another target ({difference}): make them again with this one")
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


def make_features(
    base: Base,
    adapter: Adapter | None,
    responses: Iterable[Path],
    folder: Path,
    *,
    taps: Sequence[int] | None = None,
    pack_tokens: int = 1024,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    report: Callable[[str], None] = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Run the frozen target over its responses; returns whether it finished. The same call resumes where it was stopped.

    taps: None stores what any kind of head reads. dtype: "int8" takes the states of decoding in int8. Raises TrainingError,
    TrainingDataError.
    """
    target, listed = read_responses(responses)
    mine = replace(target_identity(base.sha256, adapter), prompt_hash=target.prompt_hash)
    if difference := target.difference(mine):
        raise TrainingError(f"the responses are of another target ({difference}): collect them with this one")
    packs, left_out = packs_of(listed, pack_tokens, seed)
    if not packs:
        raise TrainingError(f"there is nothing to learn from: no answer has at most pack_tokens = {pack_tokens} tokens")
    report(f"{sum(len(each.pairs) for each in packs):,} answers in {len(packs):,} packs; {left_out:,} are too long")
    config = base.config
    wanted = tuple(sorted({*(all_taps(config.layers) if taps is None else taps), config.layers}))
    origin = Origin(target, wanted, config.hidden_size, config.vocab_size, pack_tokens, seed, digest_of(packs), dtype)
    return write_features(_states_of(base, adapter, dtype, device), packs, origin, folder, report, stopped)


def _states_of(base: Base, adapter: Adapter | None, dtype: str, device: str) -> States:
    """The target's forward: torch's, or in int8 that of the engine, whose states drafts are made from."""
    _, where = join(device)
    if dtype == "int8":
        own: Path | Literal["none"] = adapter.files[0].parent if adapter else "none"
        return EngineStates(load_text_decoder(str(base.folder), dtype=dtype, device=where.type, adapter=own))
    chosen, _ = chosen_dtype(dtype, where.type)
    weights = merged_weights(read_weights(base.folder), adapter)
    model = TrainModel(base.config, weights, {}, 0.0, tensor_dtype(chosen), where)
    return lambda pack, taps: model.states(model.rows(pack), taps)


def train_head(
    config: TrainConfig,
    base: Base,
    features: Features,
    objective: HeadObjective,
    out: Path,
    *,
    adapter: Adapter | None = None,
    held_out_part: float = 0.02,
    begin: Head | None = None,
    resume: bool = False,
    stopped: Callable[[], bool] = lambda: False,
    prompt_version: int | None = None,
    notes: Mapping[str, Any] | None = None,
) -> Outcome:
    """Train a head; writes to `out` as `loop.train` does, with the head in `head/` and the best one in `best/`.

    begin: a head whose weights the new one takes if names and shapes agree. Raises TrainingError if none do.
    """
    lesson = HeadLesson(objective, features, base, adapter, begin)
    learnt = lesson.objective(held_out_part)
    return train(
        config,
        base,
        (),
        out,
        objective=lambda *_: learnt,
        subject=lesson.subject,
        resume=resume,
        stopped=stopped,
        prompt_version=prompt_version,
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class Exported:
    """The shipped folder's figures. Tokens per forward are for the same greedy answers; None if nothing was decoded.

    untrained: with random weights, for comparison, because a head that learnt nothing is as lossless as any. lost: share of the
    accepted draft tokens that quantisation costs.
    """

    bytes: int
    prompts: int
    fp32_tokens_per_forward: float | None = None
    int4_tokens_per_forward: float | None = None
    untrained_tokens_per_forward: float | None = None
    lost: float | None = None


def export_head(
    trained: Path, out: Path, decoder: TextDecoder, responses: Iterable[Response], *, limit: int, most_bytes: int
) -> Exported:
    """Write `trained` in int4 to `out`, and decode `limit` prompts with both. Raises TrainingError if it is too large."""
    head = load_head(trained)
    if head.identity is None:
        raise TrainingError(f"{trained} does not say which target it belongs to: train it again")
    size = save_head(head, out, head.identity, storage="int4")
    if size > most_bytes:
        raise TrainingError(
            f"the head takes {size / 1e6:.2f} MB, more than {most_bytes / 1e6:.2f}: train a smaller one, or raise --most-mb"
        )
    asked = list(islice(responses, limit))
    if not asked:
        return Exported(size, 0)
    whole, small, none = (tokens_per_forward(decoder, each, asked) for each in (head, load_head(out), _untrained(head)))
    lost = (whole - small) / (whole - 1) if whole > 1 else 0.0
    return Exported(size, len(asked), round(whole, 4), round(small, 4), round(none, 4), round(lost, 4))


def _untrained(head: Head) -> Head:
    """A head of the same shape with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return new_head(head.config).eval().requires_grad_(False)


def tokens_per_forward(decoder: TextDecoder, head: Head, responses: Iterable[Response]) -> float:
    """Tokens per forward of greedy answers to the responses' prompts, with the head's method and its default options."""
    rounds = []
    for response in responses:
        limit = max(len(answer) for answer in response.answers)
        method = load_method(head.config.kind, head=head)
        request = Request(response.prompt_ids, method, limit, stop=decoder.tokenizer.stop_ids)
        rounds += list(decode(decoder.target, [request]))
    return measure(rounds).tokens_per_forward
