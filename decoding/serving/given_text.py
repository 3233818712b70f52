"""What a model makes of a text that is given, in one forward: log-probabilities of its tokens, or its hidden states."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from decoding.engine.draft import ROOT, Draft
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import AnyTarget, Array, Scores, Work
from decoding.methods.drafting.likely import log_probabilities
from decoding.serving.text_decoder import TextDecoder

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token as text, its natural log-probability at temperature 1 and without a constraint, and the likeliest ones there."""

    text: str
    log_prob: float
    alternatives: tuple[tuple[str, float], ...] = ()


def token_scores(decoder: TextDecoder, prompt: str, tokens: Sequence[int], alternatives: int = 0) -> list[TokenScore]:
    """The scores of `tokens` after `prompt`, with `alternatives` of the likeliest tokens at each place, best first."""
    if not tokens:
        return []
    rows = [ROOT, *range(len(tokens) - 1)]
    logits = _read(decoder, decoder.tokenizer.encode(prompt), tokens[:-1], lambda scores: scores.after(rows))
    found = []
    for row, token in zip(log_probabilities(logits.astype(np.float64)), tokens, strict=True):
        best = np.argsort(-row, kind="stable")[:alternatives]
        likeliest = tuple((_text(decoder, int(each)), float(row[each])) for each in best)
        found.append(TokenScore(_text(decoder, token), float(row[token]), likeliest))
    return found


def text_states(decoder: TextDecoder, prompt: str, text: str, taps: tuple[int, ...]) -> Array:
    """The hidden states [tokens, taps, hidden], float32, at each token of `text` after those that it begins with like `prompt`.

    Taps are those of `decoding.engine.target.Target`. A prompt that is in the cache without them is read again, once.
    """
    before, whole = decoder.tokenizer.encode(prompt), decoder.tokenizer.encode(text)
    same = [one == other for one, other in zip(before, whole, strict=False)]
    shared = same.index(False) if False in same else len(same)
    tokens = whole[shared:]

    def states(scores: Scores) -> Array:
        if scores.hidden is None:
            raise ValueError("a forward with taps gave no hidden states")
        return np.array(scores.hidden[-len(tokens) :].tolist(), np.float32)  # a tensor's too, without torch

    return _read(decoder, whole[:shared], tokens, states, taps)


def _read(
    decoder: TextDecoder,
    before: Sequence[int],
    tokens: Sequence[int],
    read: Callable[[Scores], Found],
    taps: tuple[int, ...] = (),
) -> Found:
    """What `read` takes from the target's scores after `before` and after each of `tokens`."""

    def alone(target: AnyTarget) -> Found:
        sequence = target.open(before, Sampler(), taps)
        try:
            return read(target.score([Work(sequence, before[sequence.cached :], Draft.chain(tokens))])[0])
        finally:
            target.close(sequence)

    return decoder.alone(alone)


def _text(decoder: TextDecoder, token: int) -> str:
    return decoder.tokenizer.decode([token], special=True)
