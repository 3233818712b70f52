"""What a run starts from and what it writes: a base checkpoint in, an adapter or a whole model out."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from decoding.checkpoints.adapters.adapter import About, Adapter, Factors, check_base, factorise, grown
from decoding.checkpoints.adapters.adapter_files import read_adapter, write_peft
from decoding.checkpoints.fetch.cache_folder import whole_folder
from decoding.checkpoints.fetch.progress import Progress, on_stderr
from decoding.checkpoints.identity import recorded
from decoding.checkpoints.model_config import ModelConfig
from decoding.checkpoints.resolve import load_config, resolve
from decoding.checkpoints.weight_files import base_sha256, read_weights
from decoding.tokenizer.tokenizer import Tokenizer
from decoding.training.config import LoraConfig, TrainConfig, TrainingError
from decoding.training.model.forward import TrainModel, adapter_of, new_factors
from decoding.training.model.gpu_model import GpuModel, gpu_model_fits

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


def load_base(name: str = "embedded", progress: Progress = on_stderr) -> Base:
    """The checkpoint of this name, as `resolve.resolve` finds it. Raises ModelUnavailable, UnsupportedModel."""
    folder = resolve(name, progress)
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
        return Adapter(given.factors, given.rank, given.alpha, about, given.rank_stabilised)
    if config.lora is None:
        return None
    factors = new_factors(_shapes(base), config.lora, config.seed)
    return Adapter(factors, config.lora.rank, config.lora.alpha, about, config.lora.rank_stabilised)


def _shapes(base: Base) -> dict[str, list[int]]:
    """[out, in] of every linear layer, by module."""
    return {
        name.removesuffix(".weight"): list(tensor.shape)
        for name, tensor in read_weights(base.folder)
        if name.endswith("_proj.weight")
    }


def ready_model(
    base: Base, adapter: Adapter | None, config: TrainConfig, dtype: torch.dtype, device: torch.device
) -> TrainModel:
    """The model, ready to train the adapter's factors or, without an adapter, all its matrices."""
    lora = config.lora or LoraConfig()
    if adapter:
        lora = LoraConfig(adapter.rank, adapter.alpha, lora.targets, lora.dropout, adapter.rank_stabilised)
    factors = adapter.factors if adapter else None
    weights, trained_dtype = read_weights(base.folder), dtype if config.sharded else torch.float32
    kind: type[TrainModel] = (
        GpuModel if gpu_model_fits(base.config, device, bool(adapter and lora.dropout)) else TrainModel
    )
    return kind(base.config, weights, factors, lora if adapter else None, dtype, device, trained_dtype)


def write_result(model: TrainModel, base: Base, adapter: Adapter | None, config: TrainConfig, folder: Path) -> None:
    """Write what was trained: an adapter in peft's format, or a whole model in hub layout with fp32 weights."""
    with whole_folder(folder) as staging:
        if adapter:
            write_peft(adapter_of(model, adapter), staging, config.lora.dropout if config.lora else 0.0)
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
