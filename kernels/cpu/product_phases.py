"""Phases of a forward that multiply with a matrix, a block of outputs at a time, and what is done to its sums at once."""

from numba import types

from kernels.cpu.blocks import added, gated
from kernels.cpu.emit import get, get_long, kernel
from kernels.cpu.job import BLOCK, CHUNK, GROUP_ROWS, INNER, MATRICES, SQUARES, STREAM
from kernels.cpu.products.int8_products import prepare, products, release
from kernels.cpu.quantize import rescale
from kernels.cpu.row_phases import peak, row_scales
from kernels.cpu.threads import claim_own, first_own, meet


@kernel
def product(model, job, matrix, inputs, first, outputs, start, rows, sums, ahead):  # type: ignore[no-untyped-def]
    """sums [rows, outputs] of the rows from `start` on and the outputs from `first` on. ahead: see `weights_after`."""
    weight = get_long(model.matrices, matrix) + first * inputs
    x = job.bytes + start * job.byte_stride
    products(x, job.byte_stride, rows, weight, inputs // 4, outputs, sums, 4 * outputs, ahead)


@kernel
def weights_after(model, job, matrix, piece, pieces, thread):  # type: ignore[no-untyped-def]
    """Where a thread's next weights are, after a piece of a matrix: the next piece, or its first one of the next matrix.

    So memory is asked for them a whole piece before, and goes on reading while sums are rescaled and threads meet.
    """
    if piece + 1 != first_own(pieces, thread + 1, job.threads):
        size, _ = _pieces_of(model, matrix)
        return get_long(model.matrices, matrix) + (piece + 1) * size
    size, count = _pieces_of(model, matrix + 1)
    return get_long(model.matrices, matrix + 1) + first_own(count, thread, job.threads) * size


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
    done, ready, block = 0, 0, claim_own(sync, phase, pieces, thread)
    if block < pieces:
        scales = row_scales(model, job, INNER, inputs, matrix % MATRICES == MATRICES - 1, thread)
    while block < pieces:
        first, ahead = block * BLOCK, weights_after(model, job, matrix, block, pieces, thread)
        for start in range(0, job.rows, GROUP_ROWS):
            rows = min(GROUP_ROWS, job.rows - start)
            sums, out = scratch, scratch + 4 * GROUP_ROWS * BLOCK
            ready = prepare(rows, ready)
            product(model, job, matrix, inputs, first, BLOCK, start, rows, sums, ahead)
            for row in range(start, start + rows):
                rescaled(model, matrix, first, BLOCK, sums + 4 * (row - start) * BLOCK, get(scales, row), out)
                x, top = types.intp(job.x + 4 * (row * model.hidden + first)), types.intp(peak(job, STREAM, block, row))
                added(x, types.intp(out), top, types.intp(peak(job, SQUARES, block, row)))
        done, block = done + 1, claim_own(sync, phase, pieces, thread)
    release()
    meet(sync, phase, done, pieces)


@kernel
def gate_products(sync, phase, model, job, matrix, thread, scratch):  # type: ignore[no-untyped-def]
    """The transform of silu(gate) * up, a block at a time: 64 outputs are gates, 64 are their ups."""
    pieces, outputs = model.inner // BLOCK, 2 * BLOCK
    done, ready, block = 0, 0, claim_own(sync, phase, pieces, thread)
    if block < pieces:
        scales = row_scales(model, job, STREAM, model.hidden, False, thread)
    while block < pieces:
        first, ahead = block * outputs, weights_after(model, job, matrix, block, pieces, thread)
        for start in range(0, job.rows, GROUP_ROWS):
            rows = min(GROUP_ROWS, job.rows - start)
            sums, out = scratch, scratch + 4 * GROUP_ROWS * outputs
            ready = prepare(rows, ready)
            product(model, job, matrix, model.hidden, first, outputs, start, rows, sums, ahead)
            for row in range(start, start + rows):
                rescaled(model, matrix, first, outputs, sums + 4 * (row - start) * outputs, get(scales, row), out)
                inner, top = job.inner + 4 * (row * model.inner + block * BLOCK), peak(job, INNER, block, row)
                gated(types.intp(out), types.intp(out + 4 * BLOCK), types.intp(inner), types.intp(top))
        done, block = done + 1, claim_own(sync, phase, pieces, thread)
    release()
    meet(sync, phase, done, pieces)
