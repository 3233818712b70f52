"""A toy target that recomputes its logits from the text and checks the engine's side of the contract on every call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from decoding.checkpoints.mask_adapter import DEFAULT_PRIORS
from decoding.engine.draft import ROOT, Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import DraftCaches, ForwardInput, ForwardOutput
from decoding.engine.tensor_choice import tensor_scores

VOCAB = 12


def toy_logits(tokens: Sequence[int], noise: float = 0.3) -> Tensor:
    """Logits [VOCAB] that depend on the last three tokens; a fixed random function."""
    return _cached_logits(*([0, 0, 0, *tokens][-3:]), noise)


@cache
def _cached_logits(third: int, second: int, last: int, noise: float) -> Tensor:
    near = torch.Generator().manual_seed(last * VOCAB + second)
    far = torch.Generator().manual_seed(1000 + last * VOCAB + third)
    return 2.5 * torch.randn(VOCAB, generator=near) + noise * torch.randn(VOCAB, generator=far)


@dataclass
class ToySequence:
    sampler: Sampler
    taps: tuple[int, ...]
    tokens: list[int]
    staged: tuple[list[int], Draft] | None = None
    closed: bool = False
    reused: int = field(init=False)
    draft_caches: DraftCaches = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reused = len(self.tokens)

    @property
    def cached(self) -> int:
        return len(self.tokens)

    @property
    def hidden(self) -> Tensor | None:
        return toy_hidden(self.tokens, len(self.taps)) if self.taps else None


def toy_hidden(tokens: Sequence[int], taps: int) -> Tensor:
    """Hidden states [tokens, taps, VOCAB]: token * 10 + tap in each place, so that a test can tell which row it got."""
    told = torch.tensor([[10.0 * token + tap for tap in range(taps)] for token in tokens]).reshape(len(tokens), taps)
    return told[..., None].expand(-1, -1, VOCAB)


class ToyTarget:
    vocab_size, max_length = VOCAB, 10_000
    embedding = lm_head = torch.eye(VOCAB)
    weight_dtype, runtime, mask_tokens, mask_pairs, ahead = "fp32", "cpu", range(0), None, 0
    draft_priors = DEFAULT_PRIORS
    prompt_mask = True  # so that methods that ask masks do so

    def __init__(self, logits: Callable[[Sequence[int]], Tensor] = toy_logits) -> None:
        self.logits, self.forwards = logits, 0
        self.closed: list[ToySequence] = []

    def open(self, prompt: Sequence[int], sampler: Sampler, taps: tuple[int, ...] = ()) -> ToySequence:
        known = [s.tokens for s in self.closed if set(taps) <= set(s.taps)]
        return ToySequence(sampler, taps, list(prompt[: max((_common(prompt[:-1], k) for k in known), default=0)]))

    def score(self, work: Sequence[ForwardInput[ToySequence]]) -> list[ForwardOutput]:
        self.forwards += 1
        return [self._score(item) for item in work]

    def _score(self, work: ForwardInput[ToySequence]) -> ForwardOutput:
        sequence, pending, draft, _ = work
        assert not sequence.closed and sequence.staged is None, "score() twice without commit()"
        assert pending, "nothing to score"
        sequence.staged = (list(pending), draft)
        text = [*sequence.tokens, *pending]
        texts = [text, *([*text, *(draft.tokens[j] for j in draft.path(i))] for i in range(len(draft)))]
        logits = torch.stack([self.logits(t) for t in texts])
        fed = [*pending, *draft.tokens]
        taps = work.tapped(sequence.taps)
        hidden = toy_hidden(fed, len(taps)) if taps else None
        return tensor_scores(sequence.sampler, logits, hidden, lambda row: len(text) + draft.depth(row - 1))

    def commit(self, sequence: ToySequence, path: Sequence[int]) -> None:
        assert sequence.staged is not None, "commit() without score()"
        pending, draft = sequence.staged
        assert list(path) == (draft.path(path[-1]) if path else []), "not a path from the root"
        sequence.tokens += [*pending, *(draft.tokens[i] for i in path)]
        sequence.staged = None

    def fork(self, sequence: ToySequence, sampler: Sampler) -> ToySequence:
        assert sequence.staged is None
        return ToySequence(sampler, sequence.taps, list(sequence.tokens))

    def close(self, sequence: ToySequence) -> None:
        assert not sequence.closed, "closed twice"
        sequence.closed, sequence.staged = True, None
        self.closed.append(sequence)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


__all__ = ["ROOT", "VOCAB", "ToySequence", "ToyTarget", "toy_hidden", "toy_logits"]
