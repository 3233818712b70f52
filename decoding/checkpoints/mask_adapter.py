"""The adapter of mask tokens, and the priors of drafts that it carries.

They belong to weights: `train masks` writes them into the metadata of a mask adapter, from which they are read again, and
targets without one have the defaults, which were fitted on answers of the shipped adapter.

A mask token's row gets the embedding of its depth, and before each layer `x + up @ silu(down @ norm(x))`, a parallel adapter
(He et al., arXiv 2110.04366) after an RMS norm without a weight. No other row is touched, so the model's text stays what it
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from decoding.checkpoints.bigrams import FITTED, Beginnings, TokenPairs
from decoding.errors import ModelUnavailable, UnsupportedModel

if TYPE_CHECKING:
    from decoding.checkpoints.identity import TargetIdentity
    from decoding.checkpoints.model_config import ModelConfig


Series = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DraftPriors:
    """Raises ValueError for values of another form.

    >>> DraftPriors.read(DraftPriors(asking=0.1).text()).asking
    0.1
    """

    # What a mask is worth, in committed tokens, for each position that it covers: those that no copy had, less the price of
    # the rows that guessed them. Then the same in rounds with copies, which have most of what masks say.
    masks: Series = (0.65, 0.55, 0.48, 0.42, 0.38, 0.34, 0.3, 0.26, 0.23, 0.2, 0.17, 0.15)
    masks_with_copies: Series = (0.24, 0.24, 0.22, 0.2, 0.2, 0.18, 0.16, 0.15, 0.14, 0.13, 0.12, 0.1)
    text_row: float = 0.3  # what the guesses of the last row of text are worth after such a round, all of them

    # How often a copied token is right, by the length of the match before it; at the beginning of a text, where it was
    # predicted as a whole, by match 1, 2, 3 and more, of the first token and of later ones; and a further copy where those
    # before it are wrong: later, and at the beginning.
    copies: Series = (0.0, 0.6, 0.7, 0.83, 0.79, 0.87, 0.84, 0.85, 0.88, 0.9, 0.91, 0.91, 0.92, 0.93, 0.955)
    first_copies: Series = (0.6, 0.7, 0.62, 0.78, 0.98, 0.98)
    second_copies: Series = (0.6, 0.9)

    # Weights of proposers' log-probabilities where one of the two guesses and where both do, and what these are multiplied by
    # where something is copied.
    head_weight: float = 0.8
    mask_weight: float = 0.88
    head_weight_with_masks: float = 0.26
    mask_weight_with_head: float = 0.65
    weight_with_copy: float = 0.63

    # What a copied token gets: a constant, and a share of the log-odds that it is right. Then the score of all tokens that
    # nobody guessed, before what proposers leave for them is counted, with this share of their weights.
    copy_score: float = 1.34
    copy_slope: float = 0.3
    other_score: float = -2.0
    other_score_with_copy: float = -1.83
    rest_share: float = 0.59
    unlisted: float = 0.002  # what a proposer says of a token that it did not list
    least_rest: float = 1e-5  # the least that it leaves for all of those

    # What a round commits where a head drafts and where it does not, by the length of the longest match of a copy, and what
    # one without the head, its draft, and asking the LM head about masks take, in plain steps. Without a match `without_head`
    # is not what was measured where texts are predicted, but closer to what it is where none are.
    with_head: Series = (3.5, 3.6, 4.2, 4.6, 4.4, 5.0, 5.6, 5.9, 6.4)
    without_head: Series = (2.0, 2.9, 2.9, 3.6, 3.3, 3.6, 4.9, 5.4, 6.4)
    round_steps: float = 1.45
    draft_steps: float = 0.4
    asking: float = 0.06

    def __post_init__(self) -> None:
        for each in fields(self):
            value, default = getattr(self, each.name), each.default
            if isinstance(default, tuple) and len(value) != len(default):
                raise ValueError(f"{each.name} has {len(value)} values, not {len(default)}")

    @classmethod
    def read(cls, text: str) -> "DraftPriors":
        """From metadata; the defaults where there is nothing. Raises TypeError and ValueError for damaged ones."""
        values = json.loads(text) if text else {}
        found: dict[str, Any] = {n: tuple(each) if isinstance(each, list) else each for n, each in values.items()}
        return cls(**found)

    def text(self) -> str:
        """For metadata."""
        return json.dumps(asdict(self))


DEFAULT_PRIORS = DraftPriors()


FILE = "masks.safetensors"  # next to the adapter of the target
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

    def heads(self, asked: Sequence[tuple[bool, int]]) -> list[int]:
        """Which of all heads [2 * tokens] speaks for each row; -1: none. asked: whether a row is a mask's, and how many tokens
        after its own are meant, 0 for that itself.
        """
        return [
            (OF_MASKS if of_mask else OF_TEXT) * self.tokens + count - 1 if count else -1 for of_mask, count in asked
        ]

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
        raise ModelUnavailable(f"{file} is damaged ({error}); install sqlagent again, or train it again") from error


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
