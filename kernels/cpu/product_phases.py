"""Phases of a forward that multiply with a matrix, a block of outputs at a time, and what is done to its sums at once."""

from kernels.cpu.emit import get, get_long, kernel, put
from kernels.cpu.int8_products import products
from kernels.cpu.job import BLOCK, GROUP_ROWS, HALF_BLOCK
from kernels.cpu.quantize import rescale
from kernels.cpu.swiglu import swiglu
from kernels.cpu.threads import claim, finish, wait


@kernel
def product(model, job, matrix, inputs, first, outputs, start, rows, sums):  # type: ignore[no-untyped-def]
    """sums [rows, outputs] of the rows from `start` on and the outputs from `first` on."""
    weight = get_long(model.matrices, matrix) + first * inputs
    x = job.bytes + start * job.byte_stride
    products(x, job.byte_stride, rows, weight, inputs // 4, outputs, sums, 4 * outputs)


@kernel
def rescaled(model, matrix, first, outputs, sums, input_scale, out):  # type: ignore[no-untyped-def]
    bias = get_long(model.biases, matrix)
    offsets, scales = get_long(model.offsets, matrix) + 4 * first, get_long(model.scales, matrix) + 4 * first
    rescale(sums, outputs, offsets, scales, bias + 4 * first if bias else 0, input_scale, out)


@kernel
def residual_product(sync, phase, model, job, matrix, inputs, scratch):  # type: ignore[no-untyped-def]
    """A product that is added to the stream, a block of outputs at a time."""
    pieces = model.hidden // BLOCK
    block = claim(sync, phase)
    while block < pieces:
        first = block * BLOCK
        for start in range(0, job.rows, GROUP_ROWS):
            rows = min(GROUP_ROWS, job.rows - start)
            sums, out = scratch, scratch + 4 * GROUP_ROWS * BLOCK
            product(model, job, matrix, inputs, first, BLOCK, start, rows, sums)
            for row in range(start, start + rows):
                mine = sums + 4 * (row - start) * BLOCK
                rescaled(model, matrix, first, BLOCK, mine, get(job.row_scales, row), out)
                x = job.x + 4 * (row * model.hidden + first)
                for i in range(BLOCK):
                    put(x, i, get(x, i) + get(out, i))
        block = finish(sync, phase)
    wait(sync, phase, pieces)


@kernel
def gate_products(sync, phase, model, job, matrix, scratch):  # type: ignore[no-untyped-def]
    """silu(gate) * up, a block of outputs at a time, which holds as many gates as ups."""
    pieces = model.inner // HALF_BLOCK
    block = claim(sync, phase)
    while block < pieces:
        for start in range(0, job.rows, GROUP_ROWS):
            rows = min(GROUP_ROWS, job.rows - start)
            sums, out = scratch, scratch + 4 * GROUP_ROWS * BLOCK
            product(model, job, matrix, model.hidden, block * BLOCK, BLOCK, start, rows, sums)
            for row in range(start, start + rows):
                mine = sums + 4 * (row - start) * BLOCK
                rescaled(model, matrix, block * BLOCK, BLOCK, mine, get(job.row_scales, row), out)
                swiglu(out, out + 4 * HALF_BLOCK, HALF_BLOCK, job.inner + 4 * (row * model.inner + block * HALF_BLOCK))
        block = finish(sync, phase)
    wait(sync, phase, pieces)
