"""Phases of a forward that multiply with a matrix, a block of outputs at a time, and what is done to its sums at once."""

from numba import types

from kernels.cpu.blocks import added, gated
from kernels.cpu.emit import get, get_long, kernel
from kernels.cpu.job import BLOCK, CHUNK, GROUP_ROWS, INNER, MATRICES, SQUARES, STREAM
from kernels.cpu.products.int8_products import prepare, products, release
from kernels.cpu.quantize import rescale
from kernels.cpu.row_phases import peak, row_scales
from kernels.cpu.threads import claim_own, first_own, meet

_LEAST_SHARE = 4  # rows of a piece that is divided among threads


@kernel
def product(model, job, matrix, inputs, first, outputs, start, rows, sums, ahead):  # type: ignore[no-untyped-def]
    """sums [rows, outputs] of the rows from `start` on and the outputs from `first` on. ahead: see `weights_after`."""
    weight = get_long(model.matrices, matrix) + first * inputs
    x = job.bytes + start * job.byte_stride
    products(x, job.byte_stride, rows, weight, inputs // 4, outputs, sums, 4 * outputs, ahead)


@kernel
def _units_of(job, matrix, pieces):  # type: ignore[no-untyped-def]
    """How many units of work the pieces of a matrix are: where they do not go round evenly and there are enough rows, each of
    the last ones is divided among all threads by its rows. Not those of values: rows of a page share their bytes' words.
    """
    rest = pieces % job.threads
    is_divided = matrix % MATRICES != 0 and job.rows >= _LEAST_SHARE * job.threads
    return pieces - rest + rest * job.threads if is_divided else pieces


@kernel
def _unit_of(job, matrix, pieces, unit):  # type: ignore[no-untyped-def]
    """Piece, first row and end of the rows of a unit. A thread's own are pieces side by side, then its shares of others."""
    if _units_of(job, matrix, pieces) == pieces:
        return unit, 0, job.rows
    threads, whole = job.threads, pieces // job.threads
    each = whole + pieces % threads
    owner, place = unit // each, unit % each
    if place < whole:
        return owner * whole + place, 0, job.rows
    return whole * (threads - 1) + place, job.rows * owner // threads, job.rows * (owner + 1) // threads


@kernel
def weights_after(model, job, matrix, unit, pieces, thread):  # type: ignore[no-untyped-def]
    """Where a thread's next weights are, after a unit of a matrix: those of the next, or its first one of the next matrix.

    So memory is asked for them a whole piece before, and goes on reading while sums are rescaled and threads meet.
    """
    size, _ = _pieces_of(model, matrix)
    if unit + 1 != first_own(_units_of(job, matrix, pieces), thread + 1, job.threads):
        piece, _, _ = _unit_of(job, matrix, pieces, unit + 1)
        return get_long(model.matrices, matrix) + piece * size
    size, count = _pieces_of(model, matrix + 1)
    following = first_own(_units_of(job, matrix + 1, count), thread, job.threads)
    piece, _, _ = _unit_of(job, matrix + 1, count, following)
    return get_long(model.matrices, matrix + 1) + piece * size


@kernel
def _pieces_of(model, matrix):  # type: ignore[no-untyped-def]
    """Bytes of a piece of a matrix of a layer, and how many pieces it has. The LM head comes last."""
    kind = matrix % MATRICES
    if matrix == MATRICES * model.layers:
        return CHUNK * model.hidden, (model.vocab + CHUNK - 1) // CHUNK
    if kind == 0:
        return model.dim * model.hidden, model.heads + 2 * model.kv_heads
    if kind == 1:
        return BLOCK * model.heads * model.dim, model.hidden // BLOCK
    if kind == 2:
        return 2 * BLOCK * model.hidden, model.inner // BLOCK
    return BLOCK * model.inner, model.hidden // BLOCK


@kernel
def rescaled(model, matrix, first, outputs, sums, input_scale, out):  # type: ignore[no-untyped-def]
    bias = get_long(model.biases, matrix)
    offsets, scales = get_long(model.offsets, matrix) + 4 * first, get_long(model.scales, matrix) + 4 * first
    rescale(sums, outputs, offsets, scales, bias + 4 * first if bias else 0, input_scale, out)


@kernel
def residual_product(sync, phase, model, job, matrix, inputs, thread, scratch):  # type: ignore[no-untyped-def]
    """A product that is added to the stream, a block of outputs at a time."""
    pieces = model.hidden // BLOCK
    units, done, ready = _units_of(job, matrix, pieces), 0, 0
    unit = claim_own(sync, phase, units, thread)
    if unit < units:
        scales = row_scales(model, job, INNER, inputs, matrix % MATRICES == MATRICES - 1, thread)
    while unit < units:
        block, begin, end = _unit_of(job, matrix, pieces, unit)
        first, ahead = block * BLOCK, weights_after(model, job, matrix, unit, pieces, thread)
        for start in range(begin, end, GROUP_ROWS):
            rows = min(GROUP_ROWS, end - start)
            sums, out = scratch, scratch + 4 * GROUP_ROWS * BLOCK
            ready = prepare(rows, ready)
            product(model, job, matrix, inputs, first, BLOCK, start, rows, sums, ahead)
            for row in range(start, start + rows):
                rescaled(model, matrix, first, BLOCK, sums + 4 * (row - start) * BLOCK, get(scales, row), out)
                x, top = types.intp(job.x + 4 * (row * model.hidden + first)), types.intp(peak(job, STREAM, block, row))
                added(x, types.intp(out), top, types.intp(peak(job, SQUARES, block, row)))
        done, unit = done + 1, claim_own(sync, phase, units, thread)
    release()
    meet(sync, phase, done, units)


@kernel
def gate_products(sync, phase, model, job, matrix, thread, scratch):  # type: ignore[no-untyped-def]
    """The transform of silu(gate) * up, a block at a time: 64 outputs are gates, 64 are their ups."""
    pieces, outputs = model.inner // BLOCK, 2 * BLOCK
    units, done, ready = _units_of(job, matrix, pieces), 0, 0
    unit = claim_own(sync, phase, units, thread)
    if unit < units:
        scales = row_scales(model, job, STREAM, model.hidden, False, thread)
    while unit < units:
        block, begin, end = _unit_of(job, matrix, pieces, unit)
        first, ahead = block * outputs, weights_after(model, job, matrix, unit, pieces, thread)
        for start in range(begin, end, GROUP_ROWS):
            rows = min(GROUP_ROWS, end - start)
            sums, out = scratch, scratch + 4 * GROUP_ROWS * outputs
            ready = prepare(rows, ready)
            product(model, job, matrix, model.hidden, first, outputs, start, rows, sums, ahead)
            for row in range(start, start + rows):
                rescaled(model, matrix, first, outputs, sums + 4 * (row - start) * outputs, get(scales, row), out)
                inner, top = job.inner + 4 * (row * model.inner + block * BLOCK), peak(job, INNER, block, row)
                gated(types.intp(out), types.intp(out + 4 * BLOCK), types.intp(inner), types.intp(top))
        done, unit = done + 1, claim_own(sync, phase, units, thread)
    release()
    meet(sync, phase, done, units)
