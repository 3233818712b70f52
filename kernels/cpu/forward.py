"""The whole forward of an int8 model in one compiled call, which every thread of a team enters.

Threads take pieces of each phase and wait for each other between phases. Which thread does what changes nothing: an
output is computed by one of them, in an order of its own. The last phases are the LM head over the rows that are asked for,
heads for the tokens after a row's own, and the target's choice while the logits are still in the first cache.

Temperature 0 takes the first of the largest; above, argmax(logits / T + noise), the noise keyed by (seed, position,
token) as in `kernels.gpu.choice`. Few tokens can win: noise has an upper bound, and one 24-bit word tells nearly all of it,
so its logarithms are taken for hardly any.
"""

import math

import numpy as np
import numpy.typing as npt
from numba import types

from kernels.cpu.emit import get, get_byte, get_int, get_long, kernel, largest, put, put_long, read_record
from kernels.cpu.int8_products import prepare, products, release
from kernels.cpu.job import BLOCK, CHUNK, GROUP_ROWS, INNER, MATRICES, PHASES, STREAM, Job, Model
from kernels.cpu.phases import (
    adapted,
    attention,
    gate_products,
    last_rows,
    norm_of,
    qkv_products,
    quantized_blocks,
    rescaled,
    residual_product,
    stream_rows,
)
from kernels.cpu.quantize import quantize
from kernels.cpu.swiglu import exponentials
from kernels.cpu.threads import claim_own, meet

_GUMBEL_MAX = np.float32(17.3288)  # the noise of the largest word, rounded up
_SLACK = 1e-3  # above the fp32 rounding of logit + noise
_M0, _M1, _W0, _W1 = (np.uint64(word) for word in (0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85))
_LOW, _SHIFT, _TOP = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(8)
_ZERO, _NEVER, _LOG2E = np.float32(0.0), np.float32(-np.inf), np.float32(math.log2(math.e))


@kernel
def noise_word(seed, position, token):  # type: ignore[no-untyped-def]
    """The top 24 bits of Philox4x32-10's first word: counter (token, position), key seed; all uint64."""
    c0, c1, c2, c3 = token, position, np.uint64(0), np.uint64(0)
    k0, k1 = seed & _LOW, seed >> _SHIFT
    for _ in range(10):
        first, second = c0 * _M0, c2 * _M1
        c0, c1 = (second >> _SHIFT) ^ c1 ^ k0, second & _LOW
        c2, c3 = (first >> _SHIFT) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0 >> _TOP


@kernel
def choose(logits, count, first_token, heat, seed, position, best, tokens, index):  # type: ignore[no-untyped-def]
    """Hold `count` logits (room for a multiple of 16) of the tokens from `first_token` on against the best so far.

    best [index], fp32, and tokens [index], int64, begin with -inf and 0. heat: the temperature, 0 for the arg max; then
    the logits are overwritten. Addresses.
    """
    padded = (count + 15) // 16 * 16
    for i in range(count, padded):
        put(logits, i, _NEVER)
    if heat > _ZERO:
        for i in range(count):
            put(logits, i, get(logits, i) / heat)
    top, known = largest(logits, padded), get(best, index)
    if heat > _ZERO:
        if top + _GUMBEL_MAX >= known:
            _choose_with_noise(logits, count, first_token, seed, position, top, best, tokens, index)
    elif top >= known:
        for i in range(count):
            if get(logits, i) == top:
                _better(top, first_token + i, best, tokens, index)
                break


@kernel
def spread(logits, count, room, out):  # type: ignore[no-untyped-def]
    """out[0]: the largest of `count` logits (room for a multiple of 16); out[1]: the sum of exp(logit - largest).

    room: for as many floats. Addresses.
    """
    padded = (count + 15) // 16 * 16
    for i in range(count, padded):
        put(logits, i, _NEVER)
    top = largest(logits, padded)
    put(out, 0, top)
    put(out, 1, exponentials(types.intp(logits), padded, top, _LOG2E, types.intp(room)))


@kernel
def _choose_with_noise(logits, count, first_token, seed, position, top, best, tokens, index):  # type: ignore[no-untyped-def]
    """logits: over the temperature, `top` their largest."""
    needed = np.float64(get(best, index)) - np.float64(top) - _SLACK  # noise that could win at all
    least = math.exp(-math.exp(-needed)) * 2.0**24 - 2.0 if needed > -2.9 else 0.0
    for i in range(count):
        if get(logits, i) + _GUMBEL_MAX >= get(best, index):
            word = noise_word(np.uint64(seed), np.uint64(position), np.uint64(first_token + i))
            if np.float64(word) >= least:
                uniform = (np.float64(word) + 0.5) / 2.0**24
                _better(
                    get(logits, i) + np.float32(-math.log(-math.log(uniform))), first_token + i, best, tokens, index
                )


@kernel
def _better(score, token, best, tokens, index):  # type: ignore[no-untyped-def]
    """Keep the larger score, of equals the first token."""
    known = get(best, index)
    if score > known or (score == known and token < get_long(tokens, index)):
        put(best, index, score)
        put_long(tokens, index, token)


@kernel
def head_products(sync, phase, model, job, thread, scratch):  # type: ignore[no-untyped-def]
    """Logits of some tokens for all rows at a time: written where they are asked for, else only the best is kept."""
    best, tokens = job.best + 4 * thread * job.head_count, job.tokens + 8 * thread * job.head_count
    pieces = (model.vocab + CHUNK - 1) // CHUNK if job.asked else 0
    done, piece = 0, claim_own(sync, phase, pieces, thread)
    while piece < pieces:
        _head_chunk(model, job, piece * CHUNK, best, tokens, scratch)
        done, piece = done + 1, claim_own(sync, phase, pieces, thread)
    meet(sync, phase, done, pieces)


@kernel
def _head_chunk(model, job, first, best, tokens, scratch):  # type: ignore[no-untyped-def]
    count, matrix = min(CHUNK, model.vocab - first), MATRICES * model.layers
    outputs = (count + BLOCK - 1) // BLOCK * BLOCK
    weight, sums, out = (
        get_long(model.matrices, matrix) + first * model.hidden,
        scratch,
        scratch + 4 * GROUP_ROWS * CHUNK,
    )
    ahead, ready = weight + CHUNK * model.hidden, 0
    for start in range(0, job.asked, GROUP_ROWS):
        rows, x = min(GROUP_ROWS, job.asked - start), job.head_bytes + start * model.hidden
        ready = prepare(rows, ready)
        products(x, model.hidden, rows, weight, model.hidden // 4, outputs, sums, 4 * outputs, ahead)
        for head in range(start, start + rows):
            mine, scale = sums + 4 * (head - start) * outputs, get(job.head_scales, head)
            if job.logits:
                logits = job.logits + 4 * (head * model.vocab + first)
                rescaled(model, matrix, first, count, mine, scale, logits)
            else:
                rescaled(model, matrix, first, count, mine, scale, out)
                heat, seed = get(job.heats, head), get_long(job.seeds, head)
                if job.spreads and heat == _ZERO:
                    chunks = (model.vocab + CHUNK - 1) // CHUNK
                    spread(out, count, mine, job.spreads + 8 * (head * chunks + first // CHUNK))
                choose(out, count, first, heat, seed, get_long(job.positions, head), best, tokens, head)
    release()


@kernel
def elect(job):  # type: ignore[no-untyped-def]
    """The best of the threads' best, of equals the first token."""
    for head in range(job.asked):
        for other in range(1, job.threads):
            place = other * job.head_count + head
            score, token, known = get(job.best, place), get_long(job.tokens, place), get(job.best, head)
            if score > known or (score == known and token < get_long(job.tokens, head)):
                put(job.best, head, score)
                put_long(job.tokens, head, token)


def choose_reference(logits: npt.NDArray[np.float32], heat: float, seed: int, position: int) -> int:
    """Of a row [vocab], with all of its noise."""
    if not heat:
        return int(logits.argmax())
    c0 = np.arange(len(logits), dtype=np.uint64)
    c1, c2, c3 = np.full_like(c0, position), np.zeros_like(c0), np.zeros_like(c0)
    k0, k1 = np.uint64(seed) & _LOW, np.uint64(seed) >> _SHIFT
    for _ in range(10):
        first, second = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (second >> _SHIFT) ^ c1 ^ k0, second & _LOW, (first >> _SHIFT) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    uniform = ((c0 >> _TOP).astype(np.float64) + 0.5) / 2**24
    return int((logits / np.float32(heat) + (-np.log(-np.log(uniform))).astype(np.float32)).argmax())


@kernel
def forward(thread, sync, model_table, job_table):  # type: ignore[no-untyped-def]
    """Addresses of the numbers of a `Model` and a `Job` (see `table_of`); called by `kernels.cpu.threads.WorkerPool`."""
    model, job = read_record(model_table, Model), read_record(job_table, Job)
    scratch = job.scratch + thread * job.scratch_stride
    width = model.heads * model.dim
    for layer in range(job.layers):
        phase = layer * PHASES
        stream_rows(sync, phase, model, job, layer, scratch)
        quantized_blocks(sync, phase + 1, model, job, job.x, model.hidden, STREAM, thread)
        qkv_products(sync, phase + 2, model, job, layer, thread, scratch)
        attention(sync, phase + 3, model, job, layer, scratch)
        quantized_blocks(sync, phase + 4, model, job, job.mixed, width, INNER, thread)
        residual_product(sync, phase + 5, model, job, 4 * layer + 1, width, thread, scratch)
        quantized_blocks(sync, phase + 6, model, job, job.x, model.hidden, STREAM, thread)
        gate_products(sync, phase + 7, model, job, 4 * layer + 2, thread, scratch)
        quantized_blocks(sync, phase + 8, model, job, job.inner, model.inner, INNER, thread)
        residual_product(sync, phase + 9, model, job, 4 * layer + 3, model.inner, thread, scratch)
    phase = job.layers * PHASES
    if job.layers:
        last_rows(sync, phase, model, job)
    head_products(sync, phase + 1, model, job, thread, scratch)
    if thread == 0 and job.logits == 0:
        elect(job)


_MIDDLE = np.float32(128.0)


@kernel
def ahead_rows(model_table, rows, scales, heads, count, room):  # type: ignore[no-untyped-def]
    """Quantized rows [count, hidden] and their scales, in place: y becomes y + up @ silu(down @ y) and is normed.

    heads: int32 [count], a row's head among `Model.mask_layers`; below 0 the row stays what it is. Addresses.
    """
    model = read_record(model_table, Model)
    hidden, x, scratch = model.hidden, room, room + 4 * model.hidden
    for row in range(count):
        head, place, scale = get_int(heads, row), rows + row * model.hidden, get(scales, row)
        if head >= 0:
            for i in range(hidden):
                put(x, i, (np.float32(get_byte(place, i)) - _MIDDLE) * scale)
            adapted(model, head, x, scratch)
            step = quantize(x, hidden, place)
            put(scales, row, step * norm_of(model, x))
