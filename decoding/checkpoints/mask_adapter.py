"""What a model adds at mask tokens alone, to predict several tokens ahead: embeddings of their own, and low-rank layers.

A mask token's row gets the embedding of its depth, and before each layer `x + up @ silu(down @ norm(x))`, a parallel adapter
(He et al., arXiv 2110.04366) behind an RMS norm without a weight. No other row is touched, so the model's text stays what it
is, to the bit. PaSS (arXiv 2311.13581) and BiTA (arXiv 2401.12522) train embeddings and prompts for such rows instead.

A mask does not know the token before the one that it predicts, which is known when a draft is made. So what the masks say
is corrected by scores of pairs, and of the tokens that follow it in the text so far (`token_pairs`). When a text begins, no
mask was asked yet: its first tokens are guessed by the end of its prompt (`beginnings`).

A mask may also say which tokens come after its own, by a low-rank head for each (`ahead`), as Medusa's do (arXiv 2401.10774).
So a chain needs a mask only for every few tokens. Rows of text have such heads, too, for ends of a draft without a mask.

A file holds the low-rank layers in int8, with a scale for each component, and all else in fp16; its metadata name the target
that it was trained on, and what drafts count on with it (`draft_priors`).
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from decoding.checkpoints.bigrams import FITTED, Beginnings, TokenPairs
from decoding.checkpoints.draft_priors import DEFAULT_PRIORS, DraftPriors
from decoding.errors import ModelUnavailable, UnsupportedModel

if TYPE_CHECKING:
    from decoding.checkpoints.identity import TargetIdentity
    from decoding.checkpoints.model_config import ModelConfig


FILE = "masks.safetensors"  # beside the adapter of the target
FORMAT = "5"
TENSORS = ("embeddings", "down", "up")
AHEAD = ("ahead_down", "ahead_up")
OF_TEXT, OF_MASKS = 0, 1  # the heads of `Ahead`
PAIRS = ("before", "after")
FOLLOWERS = "followers"
BEGINNINGS = "beginning_ends", "beginning_logits"
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ahead:
    """Heads for the tokens after a row's own prediction. down, up [2, tokens, rank, hidden], fp32: of rows of text, of masks.

    With y, the output of the final norm without its weight, a head's logits are those of the row y + up @ silu(down @ y).
    """

    down: Floats
    up: Floats

    @property
    def tokens(self) -> int:
        return int(self.down.shape[1])

    @classmethod
    def new(cls, tokens: int, rank: int, hidden: int, seed: int) -> "Ahead":
        """Heads that predict what their row predicts."""
        drawn = np.random.default_rng([seed, 4]).uniform(-1.0, 1.0, (2, tokens, rank, hidden)) * hidden**-0.5
        return cls(drawn.astype(np.float32), np.zeros_like(drawn, np.float32))


@dataclass(frozen=True, slots=True)
class MaskAdapter:
    """embeddings [depths, hidden]; down, up [layers, rank, hidden]: `up` is stored transposed, a row per component. fp32."""

    embeddings: Floats
    down: Floats
    up: Floats
    pairs: TokenPairs | None = None
    target: "TargetIdentity | None" = None  # None: unknown
    ahead: Ahead | None = None
    priors: DraftPriors = DEFAULT_PRIORS

    @property
    def depths(self) -> int:
        return len(self.embeddings)

    @property
    def rank(self) -> int:
        return int(self.down.shape[1])

    def grown(self, depths: int, rank: int, seed: int) -> "MaskAdapter":
        """The same predictions, with room for more: deeper masks begin like the deepest, and new components change nothing.

        Raises ValueError if it has more of either already.
        """
        if depths < self.depths or rank < self.rank:
            raise ValueError(
                f"the adapter has {self.depths} depths and rank {self.rank}: give no fewer (--depths, --rank)"
            )
        layers, more, hidden = len(self.down), rank - self.rank, self.down.shape[2]
        drawn = np.random.default_rng([seed, 3]).uniform(-1.0, 1.0, (layers, more, hidden)) * hidden**-0.5
        return replace(
            self,
            embeddings=np.concatenate([self.embeddings, np.repeat(self.embeddings[-1:], depths - self.depths, 0)]),
            down=np.concatenate([self.down, drawn.astype(np.float32)], 1),
            up=np.concatenate([self.up, np.zeros_like(drawn, np.float32)], 1),
        )

    def with_followers(self) -> "MaskAdapter":
        """The same, with weights for what follows what in a text, where it has scores of pairs and no such weights."""
        pairs = self.pairs
        if pairs is None or pairs.followers is not None:
            return self
        return replace(self, pairs=TokenPairs(pairs.ids, pairs.before, pairs.after, FITTED.copy()))

    def with_beginnings(self, beginnings: Beginnings) -> "MaskAdapter":
        """The same, with what answers begin with. Raises ValueError where it has no scores of pairs."""
        if (pairs := self.pairs) is None:
            raise ValueError("beginnings need scores of pairs, which these masks lack")
        return replace(self, pairs=TokenPairs(pairs.ids, pairs.before, pairs.after, pairs.followers, beginnings))

    def with_ahead(self, tokens: int, rank: int, seed: int) -> "MaskAdapter":
        """The same, with heads for so many tokens. Raises ValueError if it has heads for another number of them."""
        if self.ahead is not None or not tokens:
            if (has := self.ahead.tokens if self.ahead else 0) != tokens:
                raise ValueError(f"the adapter has heads for {has} tokens ahead (--ahead)")
            return self
        return replace(self, ahead=Ahead.new(tokens, rank, self.down.shape[2], seed))

    def check_fits(self, config: "ModelConfig") -> None:
        """Raise UnsupportedModel unless width and layers are the model's."""
        layers, hidden = config.layers, config.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"embeddings": (self.depths, hidden)}
        shapes |= dict.fromkeys(("down", "up"), (layers, self.rank, hidden))
        arrays = self.arrays()
        if self.ahead:
            shapes |= dict.fromkeys(AHEAD, (2, self.ahead.tokens, self.ahead.down.shape[2], hidden))
        for name, want in shapes.items():
            if (found := arrays[name].shape) != want:
                raise UnsupportedModel(
                    f"the mask adapter is of another model: {name} has shape {list(found)}, not {list(want)}"
                )

    def arrays(self) -> dict[str, Floats]:
        """Those of the masks and of `ahead`, by their names in a file."""
        ahead = () if self.ahead is None else (self.ahead.down, self.ahead.up)
        return dict(zip((*TENSORS, *AHEAD), (self.embeddings, self.down, self.up, *ahead), strict=False))


def write_mask_adapter(adapter: MaskAdapter, folder: Path) -> int:
    """Write `FILE` into a folder, whole or not at all; returns its size in bytes. Lossy (int8 and fp16)."""
    from safetensors.numpy import save

    from decoding.checkpoints.cache_folder import written_whole

    arrays = adapter.arrays()
    tensors: dict[str, Any] = {"embeddings": arrays.pop("embeddings").astype(np.float16)}
    for name, array in arrays.items():
        tensors[name], tensors[f"{name}_scale"] = _rounded(array)
    if adapter.pairs:
        tensors |= {name: getattr(adapter.pairs, name).astype(np.float16) for name in PAIRS}
        tensors["ids"] = adapter.pairs.ids.astype(np.int32)
        if adapter.pairs.followers is not None:
            tensors[FOLLOWERS] = adapter.pairs.followers
        if known := adapter.pairs.beginnings:
            tensors |= dict(
                zip(BEGINNINGS, (known.ends.astype(np.int32), known.logits.astype(np.float16)), strict=True)
            )
    target = json.dumps(asdict(adapter.target)) if adapter.target else ""
    file = folder / FILE
    written_whole(file, save(tensors, {"format": FORMAT, "target": target, "priors": adapter.priors.text()}))
    return file.stat().st_size


def read_mask_adapter(folder: Path) -> MaskAdapter | None:
    """The mask adapter of a folder; None where it has none. Raises ModelUnavailable for a damaged file."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="numpy") as stored:
            about: dict[str, str] = stored.metadata() or {}
            names = set(stored.keys())
            embeddings, down, up = (_restored(stored, name, names) for name in TENSORS)
            pairs = _restored_pairs(stored, names) if "ids" in names else None
            ahead = [_restored(stored, name, names) for name in AHEAD if name in names]
        if about.get("format") != FORMAT:
            raise UnsupportedModel(
                f"{file} has format {about.get('format')}; this version reads {FORMAT}: train it again"
            )
        heads = Ahead(*ahead) if ahead else None
        priors = DraftPriors.read(about.get("priors", ""))
        return MaskAdapter(embeddings, down, up, pairs, _target(about.get("target", "")), heads, priors)
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise ModelUnavailable(f"{file} is damaged ({error}); install sqlagent again, or train it anew") from error


def _restored_pairs(stored: Any, names: set[str]) -> TokenPairs:
    before, after = (_restored(stored, name, names) for name in PAIRS)
    followers = _restored(stored, FOLLOWERS, names) if FOLLOWERS in names else None
    beginnings = None
    if names.issuperset(BEGINNINGS):
        ends, logits = map(stored.get_tensor, BEGINNINGS)
        beginnings = Beginnings(ends.astype(np.int64), logits.astype(np.float32))
    return TokenPairs(stored.get_tensor("ids").astype(np.int64), before, after, followers, beginnings)


def _rounded(rows: Floats) -> "tuple[npt.NDArray[np.int8], Floats]":
    """Rows in int8, and a scale for each; one of zeros has scale 0."""
    scale = np.abs(rows).max(-1, keepdims=True) / np.float32(127.0)
    steps = np.divide(rows, scale, out=np.zeros_like(rows), where=scale > 0.0)
    return np.rint(steps).astype(np.int8), scale


def _restored(stored: Any, name: str, names: set[str]) -> Floats:
    found: Floats = stored.get_tensor(name).astype(np.float32)
    return found * stored.get_tensor(f"{name}_scale") if f"{name}_scale" in names else found


def _target(text: str) -> "TargetIdentity | None":
    from decoding.checkpoints.identity import TargetIdentity

    return TargetIdentity(**json.loads(text)) if text else None
