"""Linear layers of draft heads, and their recurrent cells: Domino's GRU and Falcon's LSTM, by torch's definitions.

Inputs are normed, turned and quantized row by row; products are of eight bits, sums in fp32. A head's rows are few and go
through one thread, so a layer is one call without the phases of `kernels.cpu.forward`.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.cpu.emit import get, get_byte, get_int, get_long, kernel, put, put_byte, put_int, read_record
from kernels.cpu.int8_products import prepare, products, products_reference, release
from kernels.cpu.job import BLOCK, GROUP_ROWS, LINE
from kernels.cpu.phases import copy, norm, norm_reference
from kernels.cpu.quantize import hadamard, hadamard_reference, quantize, quantize_reference, rescale
from kernels.cpu.swiglu import exp2

_EIGHTH, _ONE = np.float32(0.125), np.float32(1.0)
_STEP, _LANES = 4, 16  # inputs and outputs of 64 packed bytes
_SIGNS = np.int32(-0x7F7F7F80)  # the highest bit of each of four bytes


class Matrix(NamedTuple):
    """A weight [outputs, parts * inputs], packed part by part: each part of an input row has a scale of its own."""

    weight: int  # int8 [parts, outputs / 16, inputs / 4, 16, 4]
    scales: int  # fp32 [parts, outputs]
    offsets: int  # int32 [parts, outputs]: 128 times the sum of a row
    biases: int  # fp32 [outputs], or 0
    inputs: int  # of a part, a multiple of 64
    outputs: int  # a multiple of 64
    parts: int
    turns: int  # whether inputs get a Hadamard transform, which the weight undoes
    norm: int  # fp32 [inputs]: weight of an RMS norm of the inputs, or 0
    size: int  # inputs without what they are padded with
    eps: float  # of the norm


@kernel
def linear_of(table, first, outputs, x, x_stride, rows, out, out_stride, add, scratch):  # type: ignore[no-untyped-def]
    """`linear` of the matrix of a table."""
    linear(read_record(table, Matrix), first, outputs, x, x_stride, rows, out, out_stride, add, scratch)


@kernel
def linear(matrix, first, outputs, x, x_stride, rows, out, out_stride, add, scratch):  # type: ignore[no-untyped-def]
    """out [rows, outputs] = the outputs from `first` on, in multiples of 64, for x [rows, parts * inputs], fp32.

    add: to what is in `out`. Addresses, strides in bytes; scratch: see `linear_scratch`.
    """
    inputs = matrix.inputs
    turned, sums = scratch, scratch + 4 * inputs
    one = sums + 4 * GROUP_ROWS * BLOCK
    scales = one + 4 * BLOCK
    quantized, ready = (scales + 4 * rows + LINE - 1) // LINE * LINE, 0
    for part in range(matrix.parts):
        for row in range(rows):
            source = x + row * x_stride + 4 * part * inputs
            put(scales, row, _quantized(matrix, source, turned, quantized + row * inputs))
        place = part * matrix.outputs + first
        biases = matrix.biases + 4 * first if matrix.biases != 0 and part == 0 else 0
        for block in range(0, outputs, BLOCK):
            offset = 4 * (place + block)
            weight, bias = matrix.weight + (place + block) * inputs, biases + 4 * block if biases != 0 else 0
            for start in range(0, rows, GROUP_ROWS):
                some, source = min(GROUP_ROWS, rows - start), quantized + start * inputs
                ready = prepare(some, ready)
                products(source, inputs, some, weight, inputs // _STEP, BLOCK, sums, 4 * BLOCK, weight + BLOCK * inputs)
                for row in range(start, start + some):
                    mine, target = sums + 4 * (row - start) * BLOCK, out + row * out_stride + 4 * block
                    adds = add or part > 0
                    to = one if adds else target
                    rescale(mine, BLOCK, matrix.offsets + offset, matrix.scales + offset, bias, get(scales, row), to)
                    if adds:
                        for i in range(BLOCK):
                            put(target, i, get(target, i) + get(one, i))
    release()


@kernel
def _quantized(matrix, x, turned, out):  # type: ignore[no-untyped-def]
    """A part of a row as bytes; returns its scale."""
    if matrix.norm == 0 and matrix.turns == 0:
        return quantize(x, matrix.inputs, out)
    copy(x, matrix.inputs, turned)
    if matrix.norm != 0:
        norm(turned, matrix.inputs, matrix.size, matrix.eps, matrix.norm)
    if matrix.turns != 0:
        hadamard(turned, matrix.inputs)
    return quantize(turned, matrix.inputs, out) * (_EIGHTH if matrix.turns != 0 else _ONE)


def linear_scratch(rows: int, inputs: int) -> int:
    """Bytes that `linear` needs for so many rows of so many inputs."""
    return 4 * (inputs + (GROUP_ROWS + 1) * BLOCK + rows) + LINE + rows * inputs


@kernel
def pack_rows(matrix, columns, ids, count, packed, scales, offsets, scratch):  # type: ignore[no-untyped-def]
    """Quantize and pack the rows `ids` [count], int64, of an fp32 matrix [.., columns]; addresses.

    columns: a multiple of 64. Writes int8 [count / 16, columns / 4, 16, 4], count being a multiple of 16, fp32 scales
    and int32 offsets [count]. An id below 0 makes a row of zeros. scratch: columns bytes.
    """
    for place in range(count):
        token = get_long(ids, place)
        lane = packed + place // _LANES * _LANES * columns + _STEP * (place % _LANES)
        if token >= 0:
            put(scales, place, quantize(matrix + 4 * token * columns, columns, scratch))
        else:
            put(scales, place, _ONE)
            for i in range(columns):
                put_byte(scratch, i, np.uint8(128))
        total = np.int32(0)
        for i in range(columns):
            total += np.int32(get_byte(scratch, i))
        put_int(offsets, place, np.int32(128 * (total - 128 * columns)))
        for step in range(columns // _STEP):  # four bytes at a time, each minus 128
            put_int(lane, _LANES * step, np.int32(get_int(scratch, step) ^ _SIGNS))


Floats = npt.NDArray[np.float32]


def linear_reference(
    x: Floats,
    packed: npt.NDArray[np.int8],
    scales: Floats,
    biases: Floats | float = 0.0,
    norm_weight: Floats | None = None,
    eps: float = 0.0,
    turns: bool = False,
) -> Floats:
    """x [rows, parts, inputs] and a weight [parts, outputs / 16, inputs / 4, 16, 4] -> [rows, outputs], without padding."""
    out = np.zeros((len(x), scales.shape[1]), np.float32) + np.float32(biases)
    for part, weight in enumerate(packed):
        given = x[:, part]
        given = given if norm_weight is None else norm_reference(given, given.shape[1], eps, norm_weight)
        given = hadamard_reference(given) if turns else given
        steps, sizes = quantize_reference(given)
        sums = products_reference(steps, weight) - products_reference(np.full_like(steps, 128), weight)
        out += sums.astype(np.float32) * sizes[:, None] * scales[part]
    return out


_LOG2E = np.float32(1.4426950408889634)
_ZERO, _RECURRENT_ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)


class Lstm(NamedTuple):
    """Two layers; gates [4, width] of each: from its input, and from its state."""

    inputs: Matrix
    recurrent: Matrix
    next_inputs: Matrix
    next_recurrent: Matrix


@kernel(inline="always")
def sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + e^-x) in fp32."""
    power = exp2(-abs(x) * _LOG2E)
    return (_RECURRENT_ONE if x >= _ZERO else power) / (_RECURRENT_ONE + power)


@kernel(inline="always")
def tanh(x):  # type: ignore[no-untyped-def]
    return _TWO * sigmoid(_TWO * x) - _RECURRENT_ONE


@kernel
def gru_cell(inputs, recurrent, state, size, out):  # type: ignore[no-untyped-def]
    """out [size] from the products of the input and of the state, [3, size] each (reset, update, new); addresses.

    h' = (1 - z) n + z h with n = tanh(i_n + r h_n). `out` may be `state`.
    """
    for i in range(size):
        reset = sigmoid(get(inputs, i) + get(recurrent, i))
        update = sigmoid(get(inputs, size + i) + get(recurrent, size + i))
        new = tanh(get(inputs, 2 * size + i) + reset * get(recurrent, 2 * size + i))
        put(out, i, (_RECURRENT_ONE - update) * new + update * get(state, i))


@kernel
def lstm_cell(gates, cell, size, out):  # type: ignore[no-untyped-def]
    """out [size] from the sum of both products [4, size] (input, forget, cell, output); `cell` [size] moves on in place."""
    for i in range(size):
        kept = sigmoid(get(gates, size + i)) * get(cell, i)
        moved = kept + sigmoid(get(gates, i)) * tanh(get(gates, 2 * size + i))
        put(cell, i, moved)
        put(out, i, sigmoid(get(gates, 3 * size + i)) * tanh(moved))


@kernel
def lstm_windows(table, gates, lines, length, memory, out, scratch):  # type: ignore[no-untyped-def]
    """The second layer's output [lines * windows, width] after every window of `memory` rows of each line, from zeros.

    gates [lines, length, 4, width]: the first layer's, from its inputs; a line has length - memory + 1 windows. scratch:
    11 * width floats for each window, and what `linear` needs for them. table: of an `Lstm`.
    """
    lstm = read_record(table, Lstm)
    width, windows = lstm.recurrent.inputs, length - memory + 1
    rows = lines * windows
    size = 4 * width
    first, cell = scratch, scratch + rows * size
    next_cell, mine = cell + rows * size, cell + 2 * rows * size
    own = mine + 4 * rows * size
    rest = own + 4 * rows * size
    for i in range(rows * width):
        for table in (first, cell, next_cell, out):
            put(table, i, np.float32(0.0))
    for step in range(memory):
        for row in range(rows):
            source = gates + (row // windows * length + row % windows + step) * 4 * size
            copy(source, 4 * width, mine + 4 * row * size)
        linear(lstm.recurrent, 0, 4 * width, first, size, rows, mine, 4 * size, True, rest)
        for row in range(rows):
            lstm_cell(mine + 4 * row * size, cell + row * size, width, first + row * size)
        linear(lstm.next_inputs, 0, 4 * width, first, size, rows, own, 4 * size, False, rest)
        linear(lstm.next_recurrent, 0, 4 * width, out, size, rows, own, 4 * size, True, rest)
        for row in range(rows):
            lstm_cell(own + 4 * row * size, next_cell + row * size, width, out + row * size)


def _sigmoid(x: Floats) -> npt.NDArray[np.float64]:
    out: npt.NDArray[np.float64] = 1 / (1 + np.exp(-x.astype(np.float64)))
    return out


def gru_cell_reference(inputs: Floats, recurrent: Floats, state: Floats) -> Floats:
    """inputs, recurrent [rows, 3, size]; state [rows, size]; in fp64."""
    reset, update = (_sigmoid(inputs[:, gate] + recurrent[:, gate]) for gate in (0, 1))
    new = np.tanh(inputs[:, 2] + reset * recurrent[:, 2])
    out: Floats = ((1 - update) * new + update * state).astype(np.float32)
    return out


def lstm_cell_reference(gates: Floats, cell: Floats) -> tuple[Floats, Floats]:
    """gates [rows, 4, size], cell [rows, size] -> the output and the new cell; in fp64."""
    moved = _sigmoid(gates[:, 1]) * cell + _sigmoid(gates[:, 0]) * np.tanh(gates[:, 2].astype(np.float64))
    out: Floats = (_sigmoid(gates[:, 3]) * np.tanh(moved)).astype(np.float32)
    return out, moved.astype(np.float32)
