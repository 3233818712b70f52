"""The model being accelerated, and the sole owner of its KV cache.

Implementations: `decoding.targets.hf_target` (any transformers causal LM; the reference), `decoding.targets.fast_target`,
and `decoding.targets.int8.cpu_target`, which is exact in eight bits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.mask_adapter import DraftPriors
from decoding.engine.draft import ROOT, Draft
from decoding.engine.sampler import Floats, Sampler

FEW_TOKENS = 1024  # of a vocabulary: sooner looked up in the LM head than all of its logits are computed


class Array(Protocol):
    """What targets, methods and heads hand to each other: numpy arrays on our own kernels, tensors on torch's operators.

    The engine passes arrays on and selects rows of them. What it computes with itself, it gets as `Floats`.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any, /) -> Any: ...

    def __setitem__(self, key: Any, value: Any, /) -> None: ...

    def swapaxes(self, first: int, second: int, /) -> Any: ...


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class TokenSet:
    """Tokens for which alone logits are wanted, known by identity, so that targets can keep what belongs to a set. ids:
    ascending, each once.
    """

    ids: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)


Ranked = tuple[list[int], list[float]]  # tokens, best first, and their log-probabilities


class PairScores(Protocol):
    """Scores of pairs of tokens, learnt (`decoding.checkpoints.mask_adapter.TokenPairs`)."""

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The tokens that have scores: the frequent ones."""
        ...

    def in_text(self, text: Sequence[int]) -> "TextScores":
        """The scores in a text; an empty one has no followers, and never gets any."""
        ...

    def beginning(self, end: tuple[int, int], tokens: npt.NDArray[np.int64]) -> Floats | None:
        """[positions, tokens] logits, not yet corrected, of an answer to a prompt with this end; None: nothing is known."""
        ...


class TextScores(Protocol):
    """Scores of tokens by the two tokens before them, and by the text so far."""

    def grow(self, text: Sequence[int]) -> None:
        """Go on with a text that begins with the one so far."""
        ...

    def corrected(self, logits: Floats, tail: tuple[int, int], tokens: npt.NDArray[np.int64]) -> Floats:
        """[tokens] logits and what is added to that of each of `tokens`, which ascend. tail: the last two tokens before it."""
        ...

    @property
    def best(self) -> Callable[[Floats, int, tuple[int, int], TokenSet, int], Ranked] | None:
        """(logits, row, tail, tokens, count) -> the best by a row of logits [rows, tokens], corrected; None: not faster."""
        ...


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """What one forward says about one sequence's pending tokens and draft."""

    after: Callable[[Sequence[int]], Floats]  # nodes (or ROOT) -> logits [nodes, vocab], which may be computed only now
    hidden: Array | None  # [pending + nodes, taps, hidden] in the order fed; None when nothing is tapped
    choice: Callable[[int], int]  # node (or ROOT) -> the target's own keyed choice after it, before any constraint
    nodes: int  # of the draft
    some: Callable[[Sequence[int], TokenSet], Floats] | None = None  # `among`, where that is cheaper than all logits
    of_choice: Callable[[int], float | None] | None = (
        None  # `log_prob` of `choice`, where the forward has it (else None)
    )
    ahead: Callable[[Sequence[tuple[int, int]], TokenSet | None], Floats] | None = (
        None  # logits [asked, tokens] of the j-th token after the one that a node predicts: (node, j), see `Target.ahead`
    )

    @classmethod
    def of(cls, logits: Floats, hidden: Array | None, choice: Callable[[int], int]) -> Self:
        """With logits that are there already [1 + nodes, vocab]: row 0 is the root's, row 1 + i that of node i."""
        return cls(lambda nodes: logits[[node + 1 for node in nodes]], hidden, choice, len(logits) - 1)

    def among(self, nodes: Sequence[int], tokens: TokenSet | None) -> Floats:
        """Logits [nodes, tokens] of some tokens alone; of all where `tokens` is None."""
        if tokens is None:
            return self.after(nodes)
        return self.some(nodes, tokens) if self.some else self.after(nodes)[:, tokens.ids]

    def masked(self, node: int, mask: npt.NDArray[np.bool_]) -> Floats:
        """Logits [vocab] after a node, -inf where `mask` [vocab] forbids a token. Those of a few tokens are computed alone."""
        ids, row = np.flatnonzero(mask), np.full(len(mask), -np.inf, np.float32)
        row[ids] = self.among([node], TokenSet(ids))[0] if len(ids) <= FEW_TOKENS else self.after([node])[0][ids]
        return row

    def log_probs(self, tokens: Mapping[int, int]) -> tuple[float, ...]:
        """Natural log-probability of a token after each of some nodes: node -> token."""
        known = {node: self._known(node, token) for node, token in tokens.items()}
        unknown = [node for node, value in known.items() if value is None]
        rows = self.after(unknown) if unknown else ()
        known |= {node: _log_prob(row, tokens[node]) for node, row in zip(unknown, rows, strict=True)}
        return tuple(value for value in known.values() if value is not None)

    def _known(self, node: int, token: int) -> float | None:
        return self.of_choice(node) if self.of_choice and self.choice(node) == token else None

    @property
    def logits(self) -> Floats:
        """[1 + nodes, vocab] of all rows; a target may have to compute them."""
        return self.after(range(ROOT, self.nodes))


def _log_prob(logits: Floats, token: int) -> float:
    above = logits - logits.max()
    return float(above[token]) - math.log(np.exp(above).sum())


class DraftCache(Protocol):
    """What a draft head has computed from the first `count` tokens of a sequence, and from nothing else."""

    @property
    def count(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def first(self, count: int) -> Self:
        """What of it belongs to the first `count` tokens, for another sequence that begins with them."""
        ...


DraftCaches = dict[object, DraftCache]
"""By head."""

Opened = TypeVar("Opened", bound="TargetSequence")


class TargetSequence(Protocol):
    """An open sequence; belongs to the target that opened it."""

    @property
    def cached(self) -> int:
        """Tokens whose keys, values and tapped hidden states the target holds."""
        ...

    @property
    def hidden(self) -> Array | None:
        """Tapped hidden states of the cached tokens [cached, taps, hidden]; None when nothing is tapped."""
        ...

    @property
    def draft_caches(self) -> DraftCaches:
        """What heads have computed from cached tokens; they add to it. Our own targets hand it on with a cached prefix."""
        ...


class ForwardInput(NamedTuple, Generic[Opened]):
    """One sequence's part in the next forward: every committed token that is not yet cached, and a draft after them.

    taps: the forward gives the hidden states of the rows that it is fed in `ForwardOutput.hidden`, and nobody keeps them.
    Only for a sequence opened without taps, which may begin with a cached prefix that has no states.
    """

    sequence: Opened
    pending: Sequence[int]
    draft: Draft
    taps: tuple[int, ...] = ()

    def tapped(self, opened_with: tuple[int, ...]) -> tuple[int, ...]:
        """The taps of `ForwardOutput.hidden`: the sequence's own, or the input's. Raises ValueError for both."""
        if opened_with and self.taps:
            raise ValueError(
                "a sequence opened with taps has their states: name taps in open() or in ForwardInput, not in both"
            )
        return opened_with or self.taps


class Target(Protocol[Opened]):
    """Scores drafts for several sequences in one forward, and keeps what was accepted.

    Contract per sequence: `open`, then `score` and `commit` in turn, then `close`. The cache holds every committed token
    but the last. The sampler is fixed at `open`, because `ForwardOutput.choice` is the target's own choice.
    A tap is an index into transformers' `hidden_states`: 0 the embeddings, i the output of the i-th layer, and the number
    of layers the output of the final norm.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def mask_tokens(self) -> range:
        """Ids beyond the vocabulary, one for each depth, that a draft may hold to have tokens predicted ahead; they are never
        text. Empty for most targets.
        """
        ...

    prompt_mask: bool
    """Whether the weights were trained to read a prompt's last token as a mask (`train jacobi --first-guess mask`)."""

    @property
    def mask_pairs(self) -> "PairScores | None":
        """What is known of the token that a mask predicts by the one before it; None for most targets."""
        ...

    @property
    def ahead(self) -> int:
        """How many tokens after its own a mask or a token of the text predicts (`ForwardOutput.ahead`); mostly 0."""
        ...

    @property
    def draft_priors(self) -> DraftPriors:
        """What the method `adaptive` counts on before a text has taught it."""
        ...

    @property
    def max_length(self) -> int:
        """Longest sequence in tokens, the deepest draft node included; a tree may have more nodes than that."""
        ...

    @property
    def embedding(self) -> Array:
        """Input embedding [vocab, hidden]."""
        ...

    @property
    def lm_head(self) -> Array:
        """Output projection [vocab, hidden]."""
        ...

    @property
    def weight_dtype(self) -> str:
        """The type of the weight matrices, "int8", "fp32", "bf16", "stored" or another; with int8, the embedding is in fp32."""
        ...

    @property
    def runtime(self) -> str:
        """What computes, a part of the key of measured times: "cpu" or "cuda", or "kernels" for our own on a processor."""
        ...

    def open(self, prompt: Sequence[int], sampler: Sampler, taps: tuple[int, ...] = ()) -> Opened:
        """A new sequence that reuses the longest cached prefix of `prompt[:-1]`; `sequence.cached` says how long it is.

        A cached prefix that lacks one of `taps` is a miss.
        """
        ...

    def score(self, work: Sequence[ForwardInput[Opened]]) -> list[ForwardOutput]:
        """One forward over the work of several sequences. Stages keys and values; commits nothing.

        Raises ValueError for taps of a work whose sequence was opened with taps.
        """
        ...

    def commit(self, sequence: Opened, path: Sequence[int]) -> None:
        """Keep what was staged for the pending tokens and for the draft nodes of `path`; drop the rest."""
        ...

    def fork(self, sequence: Opened, sampler: Sampler) -> Opened:
        """An independent copy of a sequence with nothing staged, under another sampler."""
        ...

    def close(self, sequence: Opened) -> None:
        """End a sequence; its committed prefix may stay in the prefix cache for later ones."""
        ...


AnyTarget = Target[Any]


class PromptTooLong(ValueError):
    """The prompt leaves no room for a single new token."""


def room_after(prompt: Sequence[int], target: AnyTarget) -> int:
    """How many tokens fit after the prompt. Raises PromptTooLong."""
    if not 0 < len(prompt) < target.max_length:
        raise PromptTooLong(f"the prompt has {len(prompt)} tokens; the model takes 1 to {target.max_length - 1}")
    return target.max_length - len(prompt)
