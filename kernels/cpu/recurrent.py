"""Recurrent cells of draft heads: Domino's GRU and Falcon's LSTM, after their products. torch's definitions."""

import numpy as np
import numpy.typing as npt

from kernels.cpu.emit import get, kernel, put
from kernels.cpu.swiglu import exp2

_LOG2E = np.float32(1.4426950408889634)
_ZERO, _ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)


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
