"""What the readers of published heads share: reading a folder, finding a setting, and filling a head with tensors."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from decoding.checkpoints.model_config import ModelConfig, read_json
from decoding.checkpoints.weight_files import read_weights
from decoding.errors import ModelUnavailable, UnsupportedModel
from decoding.heads.head import Head, HeadConfig, HeadMismatch, new_head

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Published:
    """A folder's contents: its configuration (empty if it has none) and its tensors."""

    folder: Path
    raw: Mapping[str, Any]
    tensors: Tensors

    def setting(self, *names: str, default: Any = None, inside: tuple[str, ...] = ()) -> Any:
        """The first of `names` that is set, in the objects `inside` or else at the top level; otherwise `default`."""
        places = [self.raw.get(place) or {} for place in inside] + [self.raw]
        found = (place[name] for name in names for place in places if place.get(name) is not None)
        return next(found, default)

    def needed(self, *names: str, inside: tuple[str, ...] = ()) -> Any:
        """Like `setting`, but raises UnsupportedModel if it is not set."""
        value = self.setting(*names, inside=inside)
        if value is None:
            raise UnsupportedModel(f"{self.folder / 'config.json'} does not say {names[0]}: is it a whole head?")
        return value


Reader = Callable[[Published, ModelConfig], Head]


def open_published(folder: Path, *files: str) -> Published:
    """A folder's configuration and tensors; `files` are special names of weight files. Raises ModelUnavailable."""
    raw = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    own = next((folder / name for name in files if (folder / name).exists()), None)
    return Published(folder, raw, _tensors(own) if own else dict(read_weights(folder)))


def _tensors(file: Path) -> Tensors:
    if file.suffix == ".safetensors":
        return load_file(file)
    loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(loaded, dict):
        raise ModelUnavailable(f"{file} holds no tensors by name")
    return loaded


def same_size(found: Published, target: ModelConfig, hidden: int, vocab: int | None = None) -> None:
    """Raise HeadMismatch unless the head's width, and its vocabulary if it has one, are the target's."""
    for what, mine, theirs in (("wide", hidden, target.hidden_size), ("tokens", vocab, target.vocab_size)):
        if mine is not None and mine != theirs:
            raise HeadMismatch(
                f"the head in {found.folder} is for a target of {mine} ({what}), and the model has {theirs}: "
                "choose the model that it was trained on"
            )


def filled(config: HeadConfig, tensors: Mapping[str, Tensor], folder: Path) -> Head:
    """A head of `config` with `tensors`, which have our names. Raises UnsupportedModel, which names what does not fit."""
    head = new_head(config)
    wanted = head.state_dict()
    for name in sorted(wanted.keys() | tensors.keys()):
        if name not in tensors:
            raise UnsupportedModel(f"{folder} lacks the tensor {name}")
        if name not in wanted:
            raise UnsupportedModel(
                f"{folder} has the tensor {name}, which a {config.kind} head of its settings has not"
            )
        if wanted[name].shape != tensors[name].shape:
            raise UnsupportedModel(
                f"{folder}: {name} has shape {list(tensors[name].shape)}; its settings say {list(wanted[name].shape)}"
            )
    head.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return head.eval().requires_grad_(False)


def without(tensors: Mapping[str, Tensor], *prefixes: str) -> Iterator[tuple[str, Tensor]]:
    """All tensors but those whose names begin with one of `prefixes`."""
    return ((name, tensor) for name, tensor in tensors.items() if not name.startswith(prefixes))


def attention_settings(found: Published, inside: tuple[str, ...] = ()) -> dict[str, Any]:
    """Sizes of decoder layers, from a configuration with transformers' names; `rope_theta` may be nested."""
    heads = found.needed("num_attention_heads", inside=inside)
    rope = found.setting("rope_parameters", default={}, inside=inside)
    return {
        "heads": heads,
        "kv_heads": found.setting("num_key_value_heads", default=heads, inside=inside),
        "head_dim": found.setting(
            "head_dim", default=found.needed("hidden_size", inside=inside) // heads, inside=inside
        ),
        "intermediate": found.needed("intermediate_size", inside=inside),
        "rope_theta": float(found.setting("rope_theta", default=rope.get("rope_theta", 10000.0), inside=inside)),
        "eps": found.setting("rms_norm_eps", default=1e-6, inside=inside),
    }
