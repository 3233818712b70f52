"""What a model adds at mask tokens alone, to predict several tokens ahead: embeddings of their own, and low-rank layers.

A mask token's row gets the embedding of its depth, and before each layer `x + up @ silu(down @ norm(x))`, a parallel adapter
(He et al., arXiv 2110.04366) behind an RMS norm without a weight. No other row is touched, so the model's text stays what it
is, to the bit. PaSS (arXiv 2311.13581) and BiTA (arXiv 2401.12522) train embeddings and prompts for such rows instead.

A mask does not know the token before the one that it predicts, which is known when a draft is made. So what the masks say
is corrected by a low-rank score for each pair of frequent tokens, as in Domino (arXiv 2605.29707) without its recurrence, and
by a score for the tokens that follow it in the text so far (`followers`).

A mask may also say which tokens come after its own, by a low-rank head for each (`ahead`), as Medusa's do (arXiv 2401.10774).
So a chain needs a mask only for every few tokens. Rows of text have such heads, too, for ends of a draft without a mask.

A file holds the low-rank layers in int8, with a scale for each component, and all else in fp16 (format 1: everything in
fp16; 2: without the weights of `followers`; 3: without `ahead`); its metadata name the target that it was trained on.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from decoding.checkpoints.adapters.followers import FITTED, Followers
from decoding.errors import ModelUnavailable, UnsupportedModel

if TYPE_CHECKING:
    from decoding.checkpoints.model_config import ModelConfig
    from decoding.checkpoints.target_identity import TargetIdentity

FILE = "masks.safetensors"  # beside the adapter of the target
FORMATS = ("1", "2", "3", "4")  # the newest is written
TENSORS = ("embeddings", "down", "up")
AHEAD = ("ahead_down", "ahead_up")
OF_TEXT, OF_MASKS = 0, 1  # the heads of `Ahead`
PAIRS = ("before", "after")
FOLLOWERS = "followers"
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class TokenPairs:
    """Scores of pairs of tokens, of which other tokens have none. ids [tokens]; before, after [tokens, rank], fp32. followers
    [9]: weights of what follows what in a text; None: it has no score. Raises ValueError for another number of them.
    """

    def __init__(self, ids: Ids, before: Floats, after: Floats, followers: Floats | None = None) -> None:
        if followers is not None and followers.shape != FITTED.shape:
            raise ValueError(f"followers has shape {list(followers.shape)}, not {list(FITTED.shape)}")
        self.ids, self.before, self.after, self.followers = ids, before, after, followers
        self._rows = {token: row for row, token in enumerate(ids.tolist())}
        self._padded = np.concatenate([after, np.zeros_like(after[:1])])  # the last row is that of all other tokens
        self._places = np.full(int(ids.max(initial=0)) + 2, len(ids), np.int64)
        self._places[ids] = np.arange(len(ids))
        self._after: dict[int, Floats] = {}  # the scores of all tokens after one, once it is asked for
        self._asked = ids, self._places[ids]  # the tokens that were asked for last, and their places
        self._asked_after: dict[int, Floats] = {}  # their scores after one

    def scores(self, previous: int, tokens: Ids) -> Floats:
        """[tokens] what is added to the logit of each of `tokens` after `previous`. Shared: do not write to it."""
        if tokens is not self._asked[0]:
            self._asked = tokens, self._places[np.minimum(tokens, len(self._places) - 1)]
            self._asked_after = {}
        if (found := self._asked_after.get(previous)) is None:
            found = self._asked_after[previous] = self._scores_after(previous)[self._asked[1]]
        return found

    def _scores_after(self, previous: int) -> Floats:
        """[frequent tokens, and one for all others]."""
        if (row := self._rows.get(previous)) is None:
            return np.zeros(len(self._padded), np.float32)
        if row not in self._after:
            self._after[row] = np.einsum("tr,r->t", self._padded, self.before[row])  # not by BLAS: see `KernelRotation`
        return self._after[row]

    def in_text(self, text: Sequence[int]) -> "TextScores":
        """The scores in a text; an empty one has no followers, and never gets any."""
        if self.followers is None or not text:
            return TextScores(self, None)
        return TextScores(self, Followers(text, self.followers, self._rows))


@dataclass(frozen=True, slots=True)
class TextScores:
    """Scores of pairs, and of what follows what in one text."""

    pairs: TokenPairs
    followers: Followers | None

    def grow(self, text: Sequence[int]) -> None:
        """Go on with a text that begins with the one so far."""
        if self.followers:
            self.followers.grow(text)

    def corrected(self, logits: Floats, tail: tuple[int, int], tokens: Ids) -> Floats:
        """[tokens] logits and what is added to that of each of `tokens`, which ascend. tail: the last two tokens before it."""
        found: Floats = logits + self.pairs.scores(tail[-1], tokens)
        if self.followers:
            places, added = self.followers.among(*tail, tokens)
            found[places] += added
        return found


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

    from decoding.checkpoints.fetch.cache_folder import written_whole

    arrays = adapter.arrays()
    tensors: dict[str, Any] = {"embeddings": arrays.pop("embeddings").astype(np.float16)}
    for name, array in arrays.items():
        tensors[name], tensors[f"{name}_scale"] = _rounded(array)
    if adapter.pairs:
        tensors |= {name: getattr(adapter.pairs, name).astype(np.float16) for name in PAIRS}
        tensors["ids"] = adapter.pairs.ids.astype(np.int32)
        if adapter.pairs.followers is not None:
            tensors[FOLLOWERS] = adapter.pairs.followers
    target = json.dumps(asdict(adapter.target)) if adapter.target else ""
    file = folder / FILE
    written_whole(file, save(tensors, {"format": FORMATS[-1], "target": target}))
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
            scored = (*PAIRS, FOLLOWERS) if FOLLOWERS in names else PAIRS
            pairs = [_restored(stored, name, names) for name in scored if "ids" in names]
            ids = stored.get_tensor("ids").astype(np.int64) if pairs else None
            ahead = [_restored(stored, name, names) for name in AHEAD if name in names]
        if about.get("format") not in FORMATS:
            raise UnsupportedModel(
                f"{file} has format {about.get('format')}; this version reads {' and '.join(FORMATS)}"
            )
        scores = None if ids is None else TokenPairs(ids, *pairs)
        heads = Ahead(*ahead) if ahead else None
        return MaskAdapter(embeddings, down, up, scores, _target(about.get("target", "")), heads)
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise ModelUnavailable(f"{file} is damaged ({error}); install sqlagent again, or train it anew") from error


def _rounded(rows: Floats) -> "tuple[npt.NDArray[np.int8], Floats]":
    """Rows in int8, and a scale for each; one of zeros has scale 0."""
    scale = np.abs(rows).max(-1, keepdims=True) / np.float32(127.0)
    steps = np.divide(rows, scale, out=np.zeros_like(rows), where=scale > 0.0)
    return np.rint(steps).astype(np.int8), scale


def _restored(stored: Any, name: str, names: set[str]) -> Floats:
    found: Floats = stored.get_tensor(name).astype(np.float32)
    return found * stored.get_tensor(f"{name}_scale") if f"{name}_scale" in names else found


def _target(text: str) -> "TargetIdentity | None":
    from decoding.checkpoints.target_identity import TargetIdentity

    return TargetIdentity(**json.loads(text)) if text else None
