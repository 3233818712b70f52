"""What a run starts from, what it trains and writes, and the loss of a pack.

A run starts from a base checkpoint and writes an adapter or a whole model. What it trains is a language model (an adapter or
all of it), or something else that has parameters. The loss is that of a pack's targets; figures are measured on held-out packs.
"""

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.adapter import About, Adapter, Factors, check_base, read_adapter, write_peft
from decoding.checkpoints.cache_folder import whole_folder
from decoding.checkpoints.catalog import resolve
from decoding.checkpoints.identity import recorded
from decoding.checkpoints.model_config import ModelConfig, load_config
from decoding.checkpoints.weight_files import base_sha256, read_weights
from decoding.tokenizer import Tokenizer
from training.config import TrainConfig, TrainingError
from training.low_rank import factorise, grown
from training.packs.packing import Pack
from training.run.cpu_ops import head_loss
from training.run.gpu_model import GpuModel, TrainModel, adapter_of, gpu_model_fits, new_factors

_TOKENIZER_AND_CONFIG = ("config.json", "generation_config.json", "tokenizer*", "*.jinja", "vocab*", "merges.txt")


@dataclass(frozen=True, slots=True)
class Base:
    """A checkpoint to train."""

    name: str
    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer
    sha256: str

    @property
    def max_length(self) -> int:
        """Longest sequence in tokens."""
        return min([self.config.max_positions, *(window for window in self.config.sliding_windows if window)])


def load_base(name: str = "embedded") -> Base:
    """The checkpoint of this name, as `resolve.resolve` finds it. Raises ModelUnavailable, UnsupportedModel."""
    folder = resolve(name)
    origin = recorded(folder)
    called = origin.name if origin else folder.name if Path(name).exists() else name
    return Base(called, folder, load_config(folder), Tokenizer(folder), base_sha256(folder))


def initial_adapter(base: Base, config: TrainConfig, about: About) -> Adapter | None:
    """The adapter that training starts from: `init_adapter`, grown if asked for, or a new one; None to train all matrices.

    Raises AdapterMismatch if `init_adapter` belongs to another base, TrainingError if it has a higher rank already.
    """
    if config.init_adapter:
        given = read_adapter(config.init_adapter)
        check_base(given, base.sha256)
        if config.grow_rank and config.grow_rank < given.rank:
            raise TrainingError(
                f"--grow-rank is {config.grow_rank}, and the adapter has rank {given.rank}: give a higher one"
            )
        if config.grow_rank:
            given = grown(given, config.grow_rank, config.seed)
        return replace(given, about=about, files=())
    if config.lora is None:
        return None
    factors = new_factors(_shapes(base), config.lora.rank, config.seed)
    return Adapter(factors, config.lora.rank, config.lora.alpha, about)


def _shapes(base: Base) -> dict[str, list[int]]:
    """[out, in] of every linear layer, by module."""
    return {
        name.removesuffix(".weight"): list(tensor.shape)
        for name, tensor in read_weights(base.folder)
        if name.endswith("_proj.weight")
    }


def ready_model(
    base: Base, adapter: Adapter | None, dtype: torch.dtype, device: torch.device, sharded: bool = False
) -> TrainModel:
    """The model, ready to train the adapter's factors or, without an adapter, all its matrices. sharded: their masters lie
    elsewhere (`TrainConfig.sharded`), so they have the type `dtype`.
    """
    kind: type[TrainModel] = GpuModel if gpu_model_fits(base.config, device) else TrainModel
    factors, scale = (adapter.factors, adapter.scale) if adapter else (None, 0.0)
    return kind(
        base.config, read_weights(base.folder), factors, scale, dtype, device, dtype if sharded else torch.float32
    )


def write_result(model: TrainModel, base: Base, adapter: Adapter | None, folder: Path) -> None:
    """Write what was trained: an adapter in peft's format, or a whole model in hub layout with fp32 weights."""
    with whole_folder(folder) as staging:
        if adapter:
            write_peft(adapter_of(model, adapter), staging)
            return
        for pattern in _TOKENIZER_AND_CONFIG:
            for file in base.folder.glob(pattern):
                shutil.copyfile(file, staging / file.name)
        weights = dict(_trained_weights(model, base))
        save_file(weights, staging / "model.safetensors", {"format": "pt"})


def _trained_weights(model: TrainModel, base: Base) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in read_weights(base.folder):
        yield name, (model.trained[name].detach().cpu() if name in model.trained else tensor).contiguous()


def factorised(base: Base, trained: Path, rank: int, about: About) -> Adapter:
    """The adapter of `rank` that best approximates the whole model in `trained`, which was trained from `base`."""
    after = dict(read_weights(trained))
    factors: dict[str, Factors] = {}
    for name, before in read_weights(base.folder):
        if before.dim() == 2 and not torch.equal(before.float(), after[name].float()):
            module = name.removesuffix(".weight")
            factors |= factorise({module: after[name].float() - before.float()}, rank)
    return Adapter(factors, rank, float(rank), about)


@dataclass(frozen=True, slots=True)
class Subject:
    """All that the loop knows about what it trains."""

    model: Any  # passed to the objective's loss and evaluation
    trained: Mapping[str, Tensor]  # leaves by name: fp32, or of type `dtype` if the optimiser keeps sharded masters
    dtype: torch.dtype
    device: torch.device
    result: str  # name of the result's folder
    small: bool  # whether the result is written with every checkpoint, not only at the end
    write: Callable[[Path], None]  # writes the result so far to a folder
    at: Callable[[float], None] = lambda progress: None  # called before each step with the run's progress, 0 to 1


Subjects = Callable[[TrainConfig, Base, About, torch.dtype, torch.device], Subject]
"""(configuration, base, the result's description, ...) -> what is trained. Raises what `train` raises."""


def language_model(config: TrainConfig, base: Base, about: About, dtype: torch.dtype, device: torch.device) -> Subject:
    """Trains the base with an adapter, or all of its matrices."""
    adapter = initial_adapter(base, config, about)
    model = ready_model(base, adapter, dtype, device, config.sharded)
    return Subject(
        model,
        model.trained,
        model.dtype,
        model.device,
        result="adapter" if adapter else "model",
        small=adapter is not None,
        write=lambda folder: write_result(model, base, adapter, folder),
    )


def pack_loss(model: TrainModel, pack: Pack) -> Tensor:
    """The sum over the pack's targets of weight times cross-entropy, in nats; a scalar with gradient."""
    rows, head = model.rows(pack), model.frozen_head
    if head is None or model.device.type != "cpu":
        return target_loss(model.logits(rows), pack)
    targets, weights = torch.from_numpy(pack.targets).long(), torch.from_numpy(pack.weights)
    return head_loss(model.outputs(rows)[: len(targets)], head, targets, weights)


def target_loss(logits: Tensor, pack: Pack) -> Tensor:
    """`pack_loss` from the logits [targets, vocab]."""
    targets = torch.from_numpy(pack.targets).long().to(logits.device)
    losses = functional.cross_entropy(logits, targets, reduction="none")
    return losses @ torch.from_numpy(pack.weights).to(logits.device)


def total_weight(packs: Iterable[Pack]) -> float:
    """The divisor of the packs' summed loss."""
    return float(sum(pack.weights.sum(dtype=np.float64) for pack in packs))


@torch.no_grad()
def evaluate(model: TrainModel, packs: Sequence[Pack]) -> dict[str, float]:
    """`loss`: mean cross-entropy of a target, unweighted. `exact`: share of the pairs whose every target is the most likely
    token given those before it, so that greedy decoding writes the answer. Also `loss_<step>` and `exact_<step>`.
    """
    losses: dict[str, list[float]] = defaultdict(list)
    exact: dict[str, list[bool]] = defaultdict(list)
    for pack in packs:
        logits = model.logits(model.rows(pack))[: len(pack.targets)]
        targets = torch.from_numpy(pack.targets).long().to(model.device)
        nats = functional.cross_entropy(logits, targets, reduction="none").cpu().numpy()
        right = (logits.argmax(1) == targets).cpu().numpy()
        for index, (step, _) in enumerate(pack.pairs):
            own = pack.owners == index
            for name in ("", f"_{step}"):
                losses[name].extend(nats[own].tolist())
                exact[name].append(bool(right[own].all()))
    return {
        f"{kind}{name}": float(np.mean(found[name]))
        for name in losses
        for kind, found in (("loss", losses), ("exact", exact))
    }
