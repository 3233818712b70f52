"""What a model makes of a text that is given, in one forward: log-probabilities of its tokens, what else it might have
written, or its hidden states.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from heapq import nlargest
from itertools import takewhile
from typing import Any

import numpy as np

from decoding.engine.constraint import Constraint, ConstraintCursor
from decoding.engine.draft import ROOT, Draft
from decoding.engine.sampling.numpy_choice import Floats
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import AnyTarget, Array, Scores, TargetSequence, Work
from decoding.serving.text_decoder import TextDecoder
from decoding.targets.cache.prefix_cache import common_length


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
    logits = _logits(decoder, decoder.tokenizer.encode(prompt), tokens)
    found = []
    for row, token in zip(_log_probabilities(logits.astype(np.float64)), tokens, strict=True):
        best = np.argsort(-row, kind="stable")[:alternatives]
        likeliest = tuple((_text(decoder, int(each)), float(row[each])) for each in best)
        found.append(TokenScore(_text(decoder, token), float(row[token]), likeliest))
    return found


def other_beginnings(
    decoder: TextDecoder, prompt: str, tokens: Sequence[int], constraint: Constraint[Any], count: int
) -> list[tuple[int, ...]]:
    """The `count` likeliest ways to leave a text, best first: some of its first tokens, and then another token than its own.

    A way is as likely as all its tokens among those that the constraint allows. Stop tokens are left out, at the text's end and
    as other tokens, and so is what follows a token that the constraint does not allow.
    """
    stop = decoder.tokenizer.stop_ids
    cursor, so_far = ConstraintCursor.start(constraint, stop), 0.0
    found: list[tuple[float, tuple[int, ...]]] = []
    written = list(takewhile(lambda token: token not in stop, tokens))
    logits = _logits(decoder, decoder.tokenizer.encode(prompt), written) if written else ()
    for place, (token, row) in enumerate(zip(written, logits, strict=True)):
        if not cursor.admits(token):
            break
        if not cursor.run:
            ids = np.flatnonzero(cursor.allowed())
            known = dict(zip(ids.tolist(), _log_probabilities(row[ids].astype(np.float64)).tolist(), strict=True))
            others = nlargest(count, (each for each in known if each != token and each not in stop), known.__getitem__)
            found += [(so_far + known[each], (*written[:place], each)) for each in others]
            so_far += known[token]
        cursor = cursor.after(token)
    return [way for _, way in nlargest(count, found)]


def _logits(decoder: TextDecoder, prompt: Sequence[int], tokens: Sequence[int]) -> Floats:
    """[tokens, vocab] by which each of `tokens` is predicted after `prompt`."""

    def alone(target: AnyTarget) -> Floats:
        with ExitStack() as opened:
            sequence = target.open(prompt, Sampler())
            opened.callback(target.close, sequence)
            work = Work(sequence, prompt[sequence.cached :], Draft.chain(tokens[:-1]))
            return target.score([work])[0].after([ROOT, *range(len(tokens) - 1)])

    return decoder.alone(alone)


def text_states(decoder: TextDecoder, prompt: str, texts: Sequence[str], taps: tuple[int, ...]) -> list[Array]:
    """The hidden states [tokens, taps, hidden], float32, of each text, at its tokens after those that it begins with like
    `prompt`. Taps are those of `decoding.engine.target.Target`; at least one text is needed.

    One forward reads all texts. Its rows are the last token that all of them share with the prompt, and what follows it. What
    comes before is taken from the prefix cache, which needs no states; if it is not there, another forward reads it once.
    """
    before, wholes = decoder.tokenizer.encode(prompt), [decoder.tokenizer.encode(text) for text in texts]
    own = [common_length(before, whole) for whole in wholes]

    def alone(target: AnyTarget) -> list[Array]:
        with ExitStack() as opened:
            sequences = _begun(target, before[: min(own)], len(texts), opened)
            parts = [
                Work(each, whole[each.cached :], Draft(), taps) for each, whole in zip(sequences, wholes, strict=True)
            ]
            counts = [len(whole) - first for whole, first in zip(wholes, own, strict=True)]
            return [_last_states(*each) for each in zip(target.score(parts), counts, strict=True)]

    return decoder.alone(alone)


def _begun(target: AnyTarget, tokens: Sequence[int], count: int, opened: ExitStack) -> list[TargetSequence]:
    """`count` sequences in which all of `tokens` but the last are cached. Closing `opened` closes them."""
    first = target.open(tokens, Sampler())
    opened.callback(target.close, first)
    if unread := tokens[first.cached : -1]:
        target.score([Work(first, unread, Draft())])
        target.commit(first, ())
    sequences = [first]
    for _ in range(count - 1):
        sequences.append(target.fork(first, Sampler()))
        opened.callback(target.close, sequences[-1])
    return sequences


def _last_states(scores: Scores, count: int) -> Array:
    if scores.hidden is None:
        raise ValueError("a forward with taps gave no hidden states")
    rows = scores.hidden[len(scores.hidden) - count :]
    return np.array(rows.tolist(), np.float32).reshape(rows.shape)  # a tensor's too, without torch


def _text(decoder: TextDecoder, token: int) -> str:
    return decoder.tokenizer.decode([token], special=True)


def _log_probabilities(scores: Floats) -> Floats:
    """Log-softmax over the last dimension. NaN becomes -inf."""
    shifted = scores - scores.max(-1, keepdims=True)
    found: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    found[np.isnan(found)] = -np.inf
    return found
