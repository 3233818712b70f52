"""What every draft head is: a configuration, a module, a folder. `decoding.heads.kinds` lists the kinds.

A folder holds `config.json` and `head.safetensors`. It never contains a copy of the target's embedding or LM head: a head
gets them from the `Context` when it drafts.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args
from warnings import warn

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from decoding.checkpoints.identity import TargetIdentity
from decoding.checkpoints.model_config import read_json
from decoding.checkpoints.quantisation import packed, unpacked
from decoding.engine.method import Context, UnknownMethod
from decoding.engine.target import Array
from decoding.errors import ModelError, ModelUnavailable
from decoding.heads.kinds import KINDS, imported
from decoding.targets.own_thread import in_own_thread

FORMAT = 1
Storage = Literal["fp32", "bf16", "int4"]
SHIPPED = Path(__file__).parents[1] / "weights" / "heads"
_CONFIG, _TENSORS = "config.json", "head.safetensors"


class HeadUnavailable(UnknownMethod):
    """A method has no head to draft with; the message says how to get one."""


class HeadMismatch(ModelError):
    """A head does not fit the target that it should draft for."""


class OtherTarget(HeadMismatch, UserWarning):
    """A head was trained on another target: it drafts losslessly, but badly. It is a warning, unless warnings are errors."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Everything that is needed to rebuild a head's module, without its weights."""

    kind: str  # key of `decoding.heads.kinds.KINDS`
    hidden: int  # the target's width
    vocab: int  # the target's vocabulary
    taps: tuple[int, ...]  # the target's hidden states that it reads, see `decoding.engine.target.Target`
    sizes: Mapping[str, Any] = field(default_factory=dict)  # the kind's own, JSON values
    frequent: tuple[int, ...] = ()  # tokens that may be drafted for any prompt; empty: the whole vocabulary

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "HeadConfig":
        """From the JSON values that `asdict` makes. Raises KeyError, TypeError, ValueError for others."""
        taps, frequent = (tuple(map(int, raw[name])) for name in ("taps", "frequent"))
        return cls(str(raw["kind"]), int(raw["hidden"]), int(raw["vocab"]), taps, dict(raw["sizes"]), frequent)


class Head(nn.Module):
    """A draft head. `sizes` holds the kind's sizes with their defaults, which a configuration overrides."""

    sizes: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        if unknown := sorted(set(config.sizes) - set(self.sizes)):
            raise ValueError(f"a {config.kind} head has no size {unknown[0]}; it has: {', '.join(self.sizes)}")
        self.config = config
        self.identity: TargetIdentity | None = None
        self.kept: dict[str, Any] = {}  # what runtimes compute once for it, such as graphs; it goes with the head

    def size(self, name: str) -> Any:
        """A size of this head, or the kind's default."""
        return self.config.sizes.get(name, self.sizes[name])

    @property
    def all_sizes(self) -> dict[str, Any]:
        """Every size, by its name."""
        return {**self.sizes, **self.config.sizes}

    @property
    def needs_torch(self) -> bool:
        """Whether our own kernels lack something that a head of these sizes has."""
        return False

    def check_fits(self, embedding: Array) -> None:
        """Raise HeadMismatch unless the head's width and vocabulary are those of the target's embedding [vocab, hidden]."""
        mine, theirs = (self.config.vocab, self.config.hidden), tuple(embedding.shape)
        if mine != theirs:
            raise HeadMismatch(
                f"this {self.config.kind} head is for a target with {mine[0]} tokens of width {mine[1]}; the model has "
                f"{theirs[0]} of width {theirs[1]}: choose a head that was trained on it (sqlagent train head)"
            )


Network = TypeVar("Network", bound=Head)


def new_head(config: HeadConfig) -> Head:
    """A head with random weights. Raises ModelUnavailable for a kind that this version does not know."""
    if config.kind not in KINDS:
        raise ModelUnavailable(f"no head of kind {config.kind!r} is known; known: {', '.join(KINDS)}")
    head: Head = imported(KINDS[config.kind].head)(config)
    return head


def save_head(head: Head, folder: Path, identity: TargetIdentity, storage: Storage = "fp32") -> int:
    """Write a head; returns its size in bytes. Each file is written whole or not at all, the configuration last. bf16 and int4
    are lossy.
    """
    if storage not in get_args(Storage):
        raise ValueError(f"a head is stored as one of {', '.join(get_args(Storage))}, not {storage}")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in head.state_dict().items()}
    if storage == "bf16":
        tensors = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    elif storage == "int4":
        tensors = packed(tensors)
    values = {"format": FORMAT, "storage": storage, "target": asdict(identity), **asdict(head.config)}
    staging = folder / f"{_TENSORS}.unfinished"
    save_file(dict(sorted(tensors.items())), staging)
    os.replace(staging, folder / _TENSORS)
    staging.write_text(json.dumps(values, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(staging, folder / _CONFIG)
    return sum((folder / name).stat().st_size for name in (_CONFIG, _TENSORS))


def load_head(folder: Path) -> Head:
    """A head in fp32, ready to draft.

    Raises ModelUnavailable if the folder holds no complete head.
    """
    values = read_json(folder / _CONFIG)
    if values.get("format") != FORMAT:
        raise ModelUnavailable(f"{folder} is a head of format {values.get('format')}; this version reads {FORMAT}")
    try:
        head = new_head(HeadConfig.from_dict(values))
        tensors = load_file(folder / _TENSORS)
        tensors = unpacked(tensors) if values["storage"] == "int4" else tensors
        head.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        head.identity = TargetIdentity(**values["target"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelUnavailable(f"{folder} is damaged ({reason}); fetch or train the head again") from error
    return head.eval().requires_grad_(False)


def drafting_head(kind: str, wanted: Head | str, network: type[Network]) -> Network:
    """`find_head` for a method that can draft with this network alone. Raises HeadUnavailable for another, too."""
    found = find_head(kind, wanted)
    if not isinstance(found, network):
        raise HeadUnavailable(f"{kind} cannot draft with a head of kind {found.config.kind}")
    return found


def find_head(kind: str, wanted: Head | str = "auto") -> Head:
    """The head that a method drafts with: `wanted` itself, or the one in that folder; "auto" is the shipped one of `kind`.

    Raises HeadUnavailable, ModelUnavailable.
    """
    if isinstance(wanted, Head):
        return wanted
    folder = shipped_folder(kind) if wanted == "auto" else Path(wanted).expanduser()
    if not _holds_one(folder):
        where = "no head is shipped for it" if wanted == "auto" else f"{folder} holds none"
        raise HeadUnavailable(
            f"{kind} needs a trained head, and {where}: train one (sqlagent train head --method {kind}), then pass head=FOLDER"
        )
    return _loaded(folder.resolve(), (folder / _CONFIG).stat().st_mtime_ns)


def head_of(target: TargetIdentity, kind: str) -> Head | None:
    """The shipped head of a kind, if there is one that was trained on this target. Raises ModelUnavailable."""
    head = find_head(kind) if _holds_one(shipped_folder(kind)) else None
    return head if head and head.identity and not head.identity.difference(target) else None


def shipped_folder(kind: str) -> Path:
    """The folder for the trained head that comes with a kind; it need not exist."""
    known = KINDS.get(kind)
    return known.weights if known and known.weights else SHIPPED / kind


def _holds_one(folder: Path) -> bool:
    return (folder / _CONFIG).exists()


@lru_cache(maxsize=8)
def _loaded(folder: Path, changed_ns: int) -> Head:
    """One copy per process, because a method instance is made for every text. `changed_ns` differs for a rewritten folder."""
    return in_own_thread(lambda: load_head(folder))


def check_target(head: Head, context: Context) -> None:
    """Raise HeadMismatch where a head does not fit the context's target; warn once if it was trained on another one."""
    head.check_fits(context.embedding)
    if context.identity and head.identity and (difference := head.identity.difference(context.identity())):
        warn(OtherTarget(f"this {head.config.kind} head was trained on another target: {difference}"), stacklevel=3)
