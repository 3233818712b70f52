"""Recurrent cells of draft heads: Domino's GRU and Falcon's LSTM, after their products. torch's definitions."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.cpu.emit import get, kernel, put, read_record
from kernels.cpu.heads.linear import Matrix, linear
from kernels.cpu.row_phases import copy
from kernels.cpu.swiglu import exp2

_LOG2E = np.float32(1.4426950408889634)
_ZERO, _ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)


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
    return (_ONE if x >= _ZERO else power) / (_ONE + power)


@kernel(inline="always")
def tanh(x):  # type: ignore[no-untyped-def]
    return _TWO * sigmoid(_TWO * x) - _ONE


@kernel
def gru_cell(inputs, recurrent, state, size, out):  # type: ignore[no-untyped-def]
    """out [size] from the products of the input and of the state, [3, size] each (reset, update, new); addresses.

    h' = (1 - z) n + z h with n = tanh(i_n + r h_n). `out` may be `state`.
    """
    for i in range(size):
        reset = sigmoid(get(inputs, i) + get(recurrent, i))
        update = sigmoid(get(inputs, size + i) + get(recurrent, size + i))
        new = tanh(get(inputs, 2 * size + i) + reset * get(recurrent, 2 * size + i))
        put(out, i, (_ONE - update) * new + update * get(state, i))


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


Floats = npt.NDArray[np.float32]


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
