"""What a mask says, corrected by the tokens before its own, and the best of it: `TextScores.best` without Python's share.

`decoding.checkpoints.bigrams` says what is added for tokens that follow one another in a text.
"""

import math

import numpy as np
from numba import types

from kernels.cpu.draft_tokens import best_of
from kernels.cpu.emit import get, get_int, get_long, kernel, put, put_int, read_record
from kernels.cpu.job import MOST_FOLLOWERS, TextTable


@kernel
def best_in_text(table, logits, pairs, length, before, last, count, tokens, scores, room):  # type: ignore[no-untyped-def]
    """The best `count` tokens, int64, by corrected logits, fp32 [size], and their log-probabilities among all, fp32.

    pairs: fp32 scores of pairs after `last`; 0: it has none. length: of the text. before, last: the tokens before the wanted
    one. room: of `text_guesses_room` bytes. Addresses.
    """
    of = read_record(table, TextTable)
    padded = (of.size + 15) // 16 * 16
    spare, found = room + 4 * padded, room + 8 * padded
    for i in range(of.size):
        put(room, i, get(logits, i))
    if pairs != 0:
        for i in range(of.size):
            put(room, i, get(room, i) + get(pairs, get_long(of.places, i)))
    if of.weights != 0:
        _add_followers(of, length, before, last, pairs != 0, found, room)
    best_of(types.intp(room), of.size, of.ids, count, tokens, scores, types.intp(spare))


@kernel
def _add_followers(of, length, before, last, is_common, found, logits):  # type: ignore[no-untyped-def]
    """Add the scores of what follows `last` in the text. found: room for tokens, their counts, and those after `before`."""
    counts, narrow = found + 4 * MOST_FOLLOWERS, found + 8 * MOST_FOLLOWERS
    distinct, total, narrow_total = 0, 0, 0
    for place in range(length - 1):
        if get_int(of.text, place) == last:
            token, k = get_int(of.text, place + 1), 0
            while k < distinct and get_int(found, k) != token:
                k += 1
            if k == distinct:
                if distinct == MOST_FOLLOWERS:
                    return
                put_int(found, k, token)
                put_int(counts, k, 0)
                put_int(narrow, k, 0)
                distinct += 1
            is_narrow = place > 0 and get_int(of.text, place - 1) == before
            put_int(counts, k, get_int(counts, k) + 1)
            put_int(narrow, k, get_int(narrow, k) + is_narrow)
            total, narrow_total = total + 1, narrow_total + is_narrow
    for k in range(distinct):
        place = _place_of(of.ids, of.size, get_int(found, k))
        if place >= 0:
            is_known = get_long(of.places, place) != of.common
            score = _score(
                of.weights, is_common, is_known, get_int(counts, k) / total, get_int(narrow, k), narrow_total
            )
            put(logits, place, get(logits, place) + np.float32(score))


@kernel
def _place_of(ids, size, token):  # type: ignore[no-untyped-def]
    """The place of a token among ascending ones; -1: it is not there."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if get_long(ids, middle) < token:
            low = middle + 1
        else:
            high = middle
    return low if low < size and get_long(ids, low) == token else -1


@kernel
def _score(weights, is_common, is_known, share, narrow, narrow_total):  # type: ignore[no-untyped-def]
    """Of a follower: `Followers` says what the weights are of."""
    first = 0 if is_common else 2
    score = get(weights, first) + get(weights, first + 1) * math.log(share)
    if narrow > 0:
        score += get(weights, 4) + get(weights, 5) * math.log(narrow / narrow_total)
    elif narrow_total > 0:
        score += get(weights, 6)
    if is_known:
        score += get(weights, 7) + get(weights, 8) * is_common
    return score
