"""Kernels of draft heads against their numpy references: linear layers, recurrent cells, the best of a vocabulary."""

import numpy as np
import numpy.typing as npt
import pytest

from kernels.cpu import draft_tokens, head_linear
from kernels.cpu.head_linear import Matrix, linear, linear_reference, linear_scratch, pack_rows
from kernels.cpu.int8_products import unpack
from kernels.cpu.job import pack, table_of
from kernels.cpu.processor import variant
from kernels.gumbel import gumbel

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
Floats = npt.NDArray[np.float32]


def random(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def at(array: npt.NDArray[np.generic]) -> int:
    return int(array.ctypes.data)


class Weight:
    """A random weight [parts, outputs, inputs] and its matrix."""

    def __init__(self, parts: int, outputs: int, inputs: int, **more: float) -> None:
        steps = np.random.default_rng(inputs).integers(-127, 128, (parts, outputs, inputs), dtype=np.int8)
        self.packed = np.stack([pack(part) for part in steps])
        self.offsets = 128 * steps.sum(2, dtype=np.int32)
        self.scales = np.abs(random(parts, outputs, seed=3)) / np.float32(50)
        self.biases, self.norm = random(outputs, seed=4), random(inputs, seed=5)
        known = {
            "parts": parts,
            "inputs": inputs,
            "outputs": outputs,
            "size": inputs,
            "turns": 0,
            "norm": 0,
            "eps": 1e-5,
        }
        addresses = {"weight": at(self.packed), "scales": at(self.scales), "offsets": at(self.offsets), "biases": 0}
        self.matrix = Matrix(**(known | addresses | more))  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [1, 7, 25, 60])
@pytest.mark.parametrize(
    ("parts", "norms", "turns"), [(1, False, False), (3, False, True), (2, True, False), (1, True, True)]
)
def test_linear_layers_norm_turn_and_quantize_each_part_of_a_row(
    rows: int, parts: int, norms: bool, turns: bool
) -> None:
    made = Weight(parts, 192, 128, turns=int(turns))
    matrix = made.matrix._replace(biases=at(made.biases), norm=at(made.norm) if norms else 0)
    x = random(rows, parts, 128, seed=rows) * np.logspace(0, 3, parts, dtype=np.float32)[:, None]
    out, scratch = np.full((rows, 192), np.nan, np.float32), np.empty(linear_scratch(rows, 128), np.uint8)
    kept = x.copy()
    linear(matrix, 0, 192, at(x), x.strides[0], rows, at(out), out.strides[0], False, at(scratch))
    options = {"norm_weight": made.norm if norms else None, "eps": 1e-5, "turns": turns}
    want = linear_reference(x, made.packed, made.scales, made.biases, **options)  # type: ignore[arg-type]
    tolerance = 2e-2 if norms or turns else 1e-5  # a byte may be rounded the other way where the norm's sums differ
    np.testing.assert_allclose(out, want, atol=tolerance * np.abs(want).max(), rtol=1e-5)
    np.testing.assert_array_equal(x, kept)
    part, before = np.zeros((rows, 64), np.float32), out.copy()
    linear(matrix, 128, 64, at(x), x.strides[0], rows, at(part), part.strides[0], False, at(scratch))
    np.testing.assert_array_equal(part, out[:, 128:])
    linear(matrix, 0, 192, at(x), x.strides[0], rows, at(out), out.strides[0], True, at(scratch))
    np.testing.assert_allclose(out, 2 * before, atol=1e-4 * np.abs(want).max())


def test_rows_of_a_matrix_are_quantized_and_packed() -> None:
    matrix, ids = random(40, 128), np.array([7, 0, 39, *range(10, 20), -1, -1, -1], np.int64)
    packed, scales = np.empty((1, 32, 16, 4), np.int8), np.empty(16, np.float32)
    offsets, scratch = np.empty(16, np.int32), np.empty(128, np.uint8)
    pack_rows(at(matrix), 128, at(ids), 16, at(packed), at(scales), at(offsets), at(scratch))
    steps = unpack(packed)
    np.testing.assert_allclose(steps[:13] * scales[:13, None], matrix[ids[:13]], atol=scales.max() * 0.51)
    assert np.abs(steps[:13]).max(1).min() == 127
    assert not steps[13:].any()
    np.testing.assert_array_equal(offsets, 128 * steps.sum(1, dtype=np.int32))


def test_recurrent_cells_are_torchs() -> None:
    inputs, states, cell = random(5, 3, 64, seed=1) * 4, random(5, 64, seed=2), random(5, 64, seed=3)
    recurrences, gates = random(5, 3, 64, seed=4), random(5, 4, 64, seed=5) * 4
    out = np.empty((5, 64), np.float32)
    for row in range(5):
        head_linear.gru_cell(at(inputs[row]), at(recurrences[row]), at(states[row]), 64, at(out[row]))
    np.testing.assert_allclose(out, head_linear.gru_cell_reference(inputs, recurrences, states), atol=2e-6)
    want, want_cell = head_linear.lstm_cell_reference(gates, cell)
    for row in range(5):
        head_linear.lstm_cell(at(gates[row]), at(cell[row]), 64, at(out[row]))
    np.testing.assert_allclose(out, want, atol=2e-6)
    np.testing.assert_allclose(cell, want_cell, atol=2e-6)


@pytest.mark.parametrize("heat", [0.0, 0.7])
def test_the_best_tokens_come_with_their_log_probabilities_and_the_targets_noise(heat: float) -> None:
    made, size, rows = Weight(1, 128, 64), 101, 3
    ids, states = np.sort(np.random.default_rng(1).choice(5000, size, replace=False)), random(rows, 64, seed=8)
    vocabulary = table_of(draft_tokens.Vocabulary(made.matrix, at(ids), size, heat, 5))
    tokens, scores = np.zeros((rows, 6), np.int64), np.zeros((rows, 6), np.float32)
    logits, scratch = np.empty((rows + 1, 128), np.float32), np.empty(linear_scratch(rows, 64), np.uint8)
    for step in (1, 0):  # of a block, of a frontier
        draft_tokens.best(
            at(vocabulary), at(states), 256, rows, 40, step, 6, at(tokens), at(scores), at(logits), at(scratch)
        )
        plain = linear_reference(states[:, None], made.packed, made.scales)[:, :size]
        noise = gumbel(5, 40 + step * np.arange(rows)[:, None], ids[None])
        places, want = draft_tokens.best_reference(plain, noise, heat, 6)
        np.testing.assert_array_equal(tokens, ids[places])
        np.testing.assert_allclose(scores, want, atol=1e-4)


def test_numbers_that_are_none_are_never_the_best() -> None:
    ids, spare = np.arange(20, dtype=np.int64), np.empty(32, np.float32)
    tokens, scores = np.zeros(2, np.int64), np.zeros(2, np.float32)

    def found(*values: float) -> list[int]:
        logits = np.full(32, np.nan, np.float32)
        logits[: len(values)] = values
        draft_tokens.best_of(at(logits), 20, at(ids), 2, at(tokens), at(scores), at(spare))
        return tokens.tolist()

    assert found(np.nan, 3, np.nan, 5) == [3, 1]
    assert found(1, 2, 2, 0) == [1, 2], "of equals the first"
    for broken in (np.nan, np.inf, -np.inf):
        found(broken, broken)
        assert np.isneginf(scores).all() and 0 <= tokens.min() <= tokens.max() < 20
