"""Guesses of draft heads: the best tokens of a draft vocabulary and their log-probabilities, and Domino's corrections.

Logits stay in a buffer of the head's; what leaves is `count` tokens a row.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from kernels.cpu.emit import get, get_int, get_long, kernel, largest, put, put_long, read_record
from kernels.cpu.heads.linear import Matrix, linear, linear_scratch
from kernels.cpu.heads.recurrent import gru_cell, sigmoid
from kernels.cpu.lm_head import noise_word
from kernels.cpu.row_phases import copy
from kernels.cpu.swiglu import exponentials

_LOG2E, _ZERO, _ONE = np.float32(1.4426950408889634), np.float32(0.0), np.float32(1.0)
_NEVER, _ALWAYS = np.float32(-np.inf), np.float32(np.inf)


class Vocabulary(NamedTuple):
    """The tokens that may be drafted."""

    matrix: Matrix  # the LM head's rows for them; outputs beyond `size` are padding
    ids: int  # int64 [size]
    size: int
    heat: float  # the temperature; at 0 there is no noise
    seed: int  # of the noise


class Corrector(NamedTuple):
    """Domino's causal encoder and its correction."""

    inputs: Matrix  # of the GRU: gates [3, width] from an embedding
    recurrent: Matrix  # and from its state
    mixed: Matrix  # the correction's left factor [rank], from the encoder's state
    factors: Matrix  # its right factor: [size of the vocabulary, rank]
    embedding: int  # fp32 [vocab, hidden]
    columns: int  # of the embedding


@kernel
def ranked(table, states, stride, rows, position, step, logits, scratch):  # type: ignore[no-untyped-def]
    """`_ranked` of the vocabulary of a table."""
    _ranked(read_record(table, Vocabulary), states, stride, rows, position, step, logits, scratch)


@kernel
def _ranked(vocabulary, states, stride, rows, position, step, logits, scratch):  # type: ignore[no-untyped-def]
    """logits [rows, outputs] of the vocabulary, over the temperature and with the noise of positions; addresses.

    Row i guesses `position + i * step`.
    """
    outputs = vocabulary.matrix.outputs
    linear(vocabulary.matrix, 0, outputs, states, stride, rows, logits, 4 * outputs, False, scratch)
    if vocabulary.heat > _ZERO:
        for row in range(rows):
            _add_noise(vocabulary, position + row * step, logits + 4 * row * outputs)


@kernel
def _add_noise(vocabulary, position, logits):  # type: ignore[no-untyped-def]
    cold = _ONE / vocabulary.heat
    for i in range(vocabulary.size):
        word = noise_word(np.uint64(vocabulary.seed), np.uint64(position), np.uint64(get_long(vocabulary.ids, i)))
        uniform = (np.float64(word) + 0.5) / 2.0**24
        put(logits, i, get(logits, i) * cold + np.float32(-math.log(-math.log(uniform))))


@kernel
def best(table, states, stride, rows, position, step, count, tokens, scores, logits, scratch):  # type: ignore[no-untyped-def]
    """The best `count` tokens of every row, int64 [rows, count], and their log-probabilities, fp32 [rows, count].

    logits: room for [rows + 1, outputs]. table: of the vocabulary.
    """
    vocabulary = read_record(table, Vocabulary)
    _ranked(vocabulary, states, stride, rows, position, step, logits, scratch)
    outputs = vocabulary.matrix.outputs
    for row in range(rows):
        mine, spare = logits + 4 * row * outputs, logits + 4 * rows * outputs
        best_of(mine, vocabulary.size, vocabulary.ids, count, tokens + 8 * row * count, scores + 4 * row * count, spare)


@kernel
def best_of(logits, size, ids, count, tokens, scores, spare):  # type: ignore[no-untyped-def]
    """The best `count` of `size` logits, best first, of equals the first, and their log-probabilities among all.

    NaN is never chosen where there is anything else. Both arrays have room for a multiple of 16.
    """
    padded = (size + 15) // 16 * 16
    for i in range(size, padded):
        put(logits, i, _NEVER)
    for k in range(count):
        put_long(tokens, k, get_long(ids, 0))
        put(scores, k, _NEVER)
    top = largest(logits, padded)
    if not (top > _NEVER and top < _ALWAYS):
        return
    place = types.intp(logits)
    total = top + np.float32(math.log(exponentials(place, types.intp(padded), top, _LOG2E, types.intp(spare))))
    for i in range(size):
        score = get(logits, i) - total
        if score > get(scores, count - 1):
            k = count - 1
            while k > 0 and score > get(scores, k - 1):
                put(scores, k, get(scores, k - 1))
                put_long(tokens, k, get_long(tokens, k - 1))
                k -= 1
            put(scores, k, score)
            put_long(tokens, k, get_long(ids, i))


@kernel
def corrected(  # type: ignore[no-untyped-def]
    corrector_table, table, parents, nodes, rows, before, after, place, base, count, tokens, scores, scratch
):
    """The best `count` tokens after every node of a frontier, whose guesses a Domino head corrects.

    parents, int32 [rows]: of the encoder's states `before` [.., width], to which it adds the tokens `nodes`, int64
    [rows], giving `after` [rows, width]. place [rank]: what the position's state adds to the left factor, 0
    where there is no correction; base [outputs]: the position's logits from `ranked`. scratch: see `corrected_scratch`.
    """
    corrector, vocabulary = read_record(corrector_table, Corrector), read_record(table, Vocabulary)
    width, rank, outputs = corrector.recurrent.inputs, corrector.mixed.outputs, vocabulary.matrix.outputs
    cold = _ONE / vocabulary.heat if vocabulary.heat > _ZERO else _ONE
    embedded, inputs = scratch, scratch + 4 * rows * corrector.inputs.inputs
    recurrent = inputs + 12 * rows * width
    factor = recurrent + 12 * rows * width
    logits = factor + 4 * rows * rank
    rest = logits + 4 * (rows + 1) * outputs
    for row in range(rows):
        token = embedded + 4 * row * corrector.inputs.inputs
        copy(corrector.embedding + 4 * get_long(nodes, row) * corrector.columns, corrector.columns, token)
        for i in range(corrector.columns, corrector.inputs.inputs):
            put(token, i, _ZERO)
        copy(before + 4 * get_int(parents, row) * width, width, after + 4 * row * width)
    linear(corrector.inputs, 0, 3 * width, embedded, 4 * corrector.inputs.inputs, rows, inputs, 12 * width, False, rest)
    linear(corrector.recurrent, 0, 3 * width, after, 4 * width, rows, recurrent, 12 * width, False, rest)
    for row in range(rows):
        state = after + 4 * row * width
        gru_cell(inputs + 12 * row * width, recurrent + 12 * row * width, state, width, state)
    if place != 0:
        linear(corrector.mixed, 0, rank, after, 4 * width, rows, factor, 4 * rank, False, rest)
        for row in range(rows):
            _finish_factor(factor + 4 * row * rank, place, rank)
        linear(corrector.factors, 0, outputs, factor, 4 * rank, rows, logits, 4 * outputs, False, rest)
    for row in range(rows):
        mine = logits + 4 * row * outputs
        for i in range(vocabulary.size):
            put(mine, i, get(base, i) + (get(mine, i) * cold if place != 0 else _ZERO))
        best_of(
            mine,
            vocabulary.size,
            vocabulary.ids,
            count,
            tokens + 8 * row * count,
            scores + 4 * row * count,
            logits + 4 * rows * outputs,
        )


def corrected_scratch(corrector: Corrector, vocabulary: Vocabulary, rows: int) -> int:
    """Bytes that `corrected` needs for a frontier of so many nodes."""
    inputs, width = corrector.inputs.inputs, corrector.recurrent.inputs
    rank, outputs = corrector.mixed.outputs, vocabulary.matrix.outputs
    tables = 4 * (rows * (inputs + 6 * width + rank) + (rows + 1) * outputs)
    return tables + linear_scratch(rows, max(inputs, width, rank))


@kernel
def _finish_factor(factor, place, rank):  # type: ignore[no-untyped-def]
    """silu of the sum of what the encoder's state and the position's say."""
    for i in range(rank):
        x = get(factor, i) + get(place, i)
        put(factor, i, x * sigmoid(x))


Floats = npt.NDArray[np.float32]


def best_reference(
    logits: Floats, noise: Floats, heat: float, count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Places and log-probabilities [rows, count] of the best of logits [rows, size]; noise: of T > 0, [rows, size]."""
    scores = logits.astype(np.float64) / heat + noise if heat else logits.astype(np.float64)
    scores = scores - scores.max(1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(1, keepdims=True))
    places = np.argsort(-scores, 1, kind="stable")[:, :count]
    return places, np.take_along_axis(scores, places, 1)
