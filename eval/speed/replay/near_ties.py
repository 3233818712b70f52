"""Checks losslessness despite rounding: a text may diverge from plain decoding's only at near-ties of the target.

In bf16, and in int8 on torch's operators, a forward's rounding depends on its number of rows, and so do the last bits of
its logits (in fp32 no text diverges; a test checks that). A divergence is harmless if the target itself scores the two
tokens almost equally.
"""

from itertools import zip_longest

from decoding.engine.draft import Draft
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import AnyTarget, Work
from decoding.serving.text_decoder import Generation, TextDecoder

TOLERANCE = 0.5
"""The widest gap, in logits, that counts as a near-tie: two steps of bf16 between logits of 32 and 64."""


def parting_gap(decoder: TextDecoder, prompt: str, plain: Generation, other: Generation, sampler: Sampler) -> float:
    """The gap between the target's scores for the first tokens in which two texts differ, in a forward without a draft.

    In logits; above temperature 0, scores include the sampler's noise and are multiplied by the temperature. 0 if the tokens
    are the same.
    """
    pairs = zip_longest(plain.tokens, other.tokens)
    at = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if at is None:
        return 0.0
    before = [*decoder.tokenizer.encode(prompt), *plain.tokens[:at]]
    rests = [each.tokens[at:] for each in (plain, other)]
    places = [[rest[0]] if rest else sorted(decoder.tokenizer.stop_ids) for rest in rests]
    return decoder.alone(lambda target: _gap(target, before, places, sampler))


def _gap(target: AnyTarget, before: list[int], places: list[list[int]], sampler: Sampler) -> float:
    """The gap between the best tokens of the two sets in `places`, each as a continuation of `before`."""
    sequence = target.open(before, Sampler())
    try:
        logits = target.score([Work(sequence, before[sequence.cached :], Draft())])[0].logits[0]
    finally:
        target.close(sequence)
    ranks = sampler.rank(logits, len(before)) * (sampler.temperature or 1.0)
    ours, theirs = (float(ranks[ids].max()) for ids in places)
    return abs(ours - theirs)
