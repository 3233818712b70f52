"""What a model thinks of a text that is given: log-probabilities of its tokens, in one forward."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decoding.engine.draft import ROOT, Draft
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import AnyTarget, Work
from decoding.methods.drafting.likely import log_probabilities
from decoding.serving.text_decoder import TextDecoder


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
    before = decoder.tokenizer.encode(prompt)
    logits = decoder.alone(lambda target: _logits(target, before, tokens))
    found = []
    for row, token in zip(log_probabilities(logits.astype(np.float64)), tokens, strict=True):
        best = np.argsort(-row, kind="stable")[:alternatives]
        likeliest = tuple((_text(decoder, int(each)), float(row[each])) for each in best)
        found.append(TokenScore(_text(decoder, token), float(row[token]), likeliest))
    return found


def _logits(
    target: AnyTarget, before: list[int], tokens: Sequence[int]
) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    sequence = target.open(before, Sampler())
    try:
        draft = Draft.chain(tokens[:-1])
        scores = target.score([Work(sequence, before[sequence.cached :], draft)])[0]
        return scores.after([ROOT, *range(len(draft))])
    finally:
        target.close(sequence)


def _text(decoder: TextDecoder, token: int) -> str:
    return decoder.tokenizer.decode([token], special=True)
