"""Kernels that work on one row at a time: against numpy, to the bit where the order of the reference is the kernel's.

What happens to 64 columns in registers: against numpy, to the bit.

Kernels of draft heads against their numpy references: linear layers, recurrent cells, the best of a vocabulary.
"""

import numpy as np
import numpy.typing as npt
import pytest
from numba import types

from decoding.targets.int8 import mask_rows
from kernels.cpu import blocks, draft_tokens, head_linear, phases, quantize, swiglu
from kernels.cpu.emit import add_squares, kernel, largest, largest_magnitude
from kernels.cpu.head_linear import Matrix, linear, linear_reference, linear_scratch, pack_rows
from kernels.cpu.int8_products import unpack
from kernels.cpu.job import Model, aligned_copy, pack, table_of
from kernels.cpu.processor import variant
from kernels.cpu.weighted_sums import parts_times, rows_times, weighted_sums, weighted_sums_reference
from kernels.gumbel import gumbel

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
Floats = npt.NDArray[np.float32]


def random(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("columns", [16, 576])
def test_rows_become_bytes_with_a_scale_of_their_own(columns: int) -> None:
    x = random(5, columns) * np.logspace(-6, 6, 5, dtype=np.float32)[:, None]
    x[2] = 0
    found = np.zeros((5, columns), np.uint8)
    scales = [quantize.quantize(row.ctypes.data, columns, out.ctypes.data) for row, out in zip(x, found, strict=True)]
    want, want_scales = quantize.quantize_reference(x)
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(np.array(scales, np.float32), want_scales)
    error = (found.astype(float) - 128) * np.array(scales)[:, None] - x
    assert (np.abs(error).max(1) <= 0.51 * np.array(scales)).all()


def test_norms_sum_in_the_order_of_the_reference() -> None:
    x = random(4, 576)
    x[:, 570:] = 0
    found = [quantize.norm_factor(row.ctypes.data, 576, 570, 1e-5) for row in x]
    np.testing.assert_array_equal(np.array(found, np.float32), quantize.norm_factor_reference(x, 570, 1e-5))
    weight, want = random(576, seed=1), phases.norm_reference(x, 570, 1e-5, np.ones(576, np.float32))
    want *= weight
    for row in x:
        phases.norm(row.ctypes.data, 576, 570, 1e-5, weight.ctypes.data)
    np.testing.assert_allclose(x, want, rtol=1e-5)


def test_sums_and_maxima_go_lane_by_lane() -> None:
    @kernel
    def both(x, count):  # type: ignore[no-untyped-def]
        return add_squares(x, count), largest(x, count)

    x = random(160)
    lanes = np.zeros(16, np.float32)
    for part in x.reshape(-1, 16):
        lanes = (part.astype(np.float64) * part + lanes).astype(np.float32)
    total, top = both(x.ctypes.data, 160)
    assert (np.float32(total), np.float32(top)) == (quantize.halves(lanes), x.max())


@pytest.mark.parametrize("columns", [64, 192, 1536])
def test_the_transform_is_orthonormal_times_eight(columns: int) -> None:
    x = random(2, columns)
    want = quantize.hadamard_reference(x)
    for row in x:
        quantize.hadamard(row.ctypes.data, columns)
    np.testing.assert_allclose(x / 8, want, atol=3e-6)
    np.testing.assert_allclose(quantize.hadamard_reference(want), quantize.hadamard_reference(x / 8), atol=3e-6)
    np.testing.assert_allclose(np.square(want).sum(1), np.square(quantize.hadamard_reference(want)).sum(1), rtol=1e-5)


@pytest.mark.parametrize("columns", [64, 192, 512, 1536])
def test_the_transform_goes_stage_by_stage(columns: int) -> None:
    """To the bit, whether its columns fill vectors or not: each stage adds and subtracts in fp32."""
    row = random(1, columns)[0]
    want, stride = row.copy(), columns // quantize.POINTS
    while stride < columns:
        pairs = want.reshape(-1, 2, stride)
        want = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1).reshape(-1)
        stride *= 2
    quantize.hadamard(row.ctypes.data, columns)
    np.testing.assert_array_equal(row, want)


@pytest.mark.parametrize("count", [16, 48, 64, 112, 576])
def test_the_largest_of_any_count(count: int) -> None:
    @kernel
    def both(address, floats):  # type: ignore[no-untyped-def]
        return largest(address, floats), largest_magnitude(address, floats)

    for place in range(0, count, 7):
        row = random(1, count)[0]
        row[place] = -9.0
        assert both(row.ctypes.data, count)[1] == 9.0
        row[place] = 9.0
        assert both(row.ctypes.data, count) == (9.0, 9.0)


def test_gates_over_their_whole_range() -> None:
    gates = np.concatenate([np.linspace(-100, 100, 1005, dtype=np.float32), np.zeros(3, np.float32)])
    ups, out = random(1008), np.zeros(1008, np.float32)
    swiglu.swiglu(gates.ctypes.data, ups.ctypes.data, 1008, out.ctypes.data)
    np.testing.assert_allclose(out, swiglu.swiglu_reference(gates, ups), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("half", [32, 64])
def test_rotation(half: int) -> None:
    heads, angles = random(3, 2 * half), random(3, half, seed=1)
    cos, sin = np.cos(angles), np.sin(angles)
    want = phases.rotate_reference(heads, cos, sin, 0.3)
    for row in range(3):
        phases.rotate(heads[row].ctypes.data, half, cos[row].ctypes.data, sin[row].ctypes.data, np.float32(0.3))
    np.testing.assert_array_equal(heads, want)


@pytest.mark.parametrize("outputs", [1, 2, 3, 4, 5, 6, 7, 13, 48])
def test_weighted_sums_go_from_the_first_row_to_the_last(outputs: int) -> None:
    """To the bit, whether all at once or in two parts."""
    weights, rows, start = random(outputs, 70), random(70, 128, seed=1), random(outputs, 128, seed=2)
    found, parts = start.copy(), np.zeros_like(start)
    addresses = weights.ctypes.data, weights.strides[0], outputs
    weighted_sums(*addresses, rows.ctypes.data, 512, 70, found.ctypes.data, 512, 128, True, rows.ctypes.data)
    np.testing.assert_array_equal(found, weighted_sums_reference(weights, rows, start))
    for first, count in ((0, 33), (33, 37)):
        place = addresses[0] + 4 * first, *addresses[1:], rows[first:].ctypes.data
        weighted_sums(*place, 512, count, parts.ctypes.data, 512, 128, first > 0, rows.ctypes.data)
    np.testing.assert_array_equal(parts, weighted_sums_reference(weights, rows, np.zeros_like(start)))


@pytest.mark.parametrize("rows", [1, 3, 17])
def test_rows_times_a_matrix_have_the_order_of_weighted_sums(rows: int) -> None:
    x, matrix, found = random(rows, 70), random(70, 128, seed=1), np.full((rows, 128), np.nan, np.float32)
    rows_times(x.ctypes.data, rows, matrix.ctypes.data, 70, 128, found.ctypes.data)
    np.testing.assert_array_equal(found, weighted_sums_reference(x, matrix, np.zeros_like(found)))
    np.testing.assert_allclose(found, x @ matrix, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [24, 64, 100])
def test_what_a_mask_token_gets_is_a_low_rank_layer_behind_a_norm(rank: int) -> None:
    """Of the second of two layers, in eight bits."""
    room, layers = (rank + 63) // 64 * 64, []
    for layer in range(2):
        down, up = random(room, 576, seed=layer) / 24, random(576, room, seed=layer + 2) / 8
        down[rank:] = down[:, 570:] = up[:, rank:] = up[570:] = 0
        layers.append(mask_rows._mask_layer(down, up))
    kept, x = aligned_copy(np.concatenate(layers)), random(4, 576)
    x[:, 570:] = 0
    gates = x.astype(np.float64) @ down.T * quantize.norm_factor_reference(x, 570, 1e-5)[:, None]
    want = x + (gates / (1 + np.exp(-gates))) @ up.T
    model = Model(*[0] * len(Model._fields))._replace(hidden=576, true_hidden=570, mask_rank=room, eps=1e-5)
    model = model._replace(mask_layers=kept.ctypes.data)
    scratch = np.full(12 * (576 + room) + 64, 7, np.uint8)
    for row in x:
        phases.adapted(model, 1, row.ctypes.data, scratch.ctypes.data)
    assert np.sqrt(np.square(x - want).mean()) < 0.02 * (want - random(4, 576)).std()
    assert (x[:, 570:] == 0).all()
    assert (scratch[-64:] == 7).all(), "beyond its room nothing is written"


def test_parts_of_rows_times_their_own_matrices() -> None:
    x, matrices = random(3, 200), random(4, 40, 128)  # the last 40 of each row are nobody's
    found = np.full((3, 4, 128), np.nan, np.float32)
    parts_times(x.ctypes.data, 800, 3, matrices.ctypes.data, 4, 40, 128, found.ctypes.data)
    for part in range(4):
        want = weighted_sums_reference(x[:, 40 * part :][:, :40], matrices[part], np.zeros((3, 128), np.float32))
        np.testing.assert_array_equal(found[:, part], want)


def random_blocks(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@kernel
def measure(x, top, squares):  # type: ignore[no-untyped-def]
    blocks.measured(types.intp(x), types.intp(top), types.intp(squares))


@kernel
def add(x, more, top, squares):  # type: ignore[no-untyped-def]
    blocks.added(types.intp(x), types.intp(more), types.intp(top), types.intp(squares))


@kernel
def gate(gates, ups, out, top):  # type: ignore[no-untyped-def]
    blocks.gated(types.intp(gates), types.intp(ups), types.intp(out), types.intp(top))


@kernel
def to_bytes(x, step, out):  # type: ignore[no-untyped-def]
    blocks.quantized(types.intp(x), step, types.intp(out))


@kernel
def to_key(x, step, out):  # type: ignore[no-untyped-def]
    return blocks.key_bytes(types.intp(x), step, types.intp(out))


@kernel
def to_value(x, step, line, shift):  # type: ignore[no-untyped-def]
    blocks.value_bytes(types.intp(x), step, types.intp(line), types.intp(shift))


@kernel
def over(x, stride, count, out, is_sum):  # type: ignore[no-untyped-def]
    if is_sum:
        blocks.sums_of_blocks(types.intp(x), types.intp(stride), types.intp(count), types.intp(out))
    else:
        blocks.largest_of_blocks(types.intp(x), types.intp(stride), types.intp(count), types.intp(out))


def test_a_block_is_measured_as_it_is_and_after_more_is_added() -> None:
    x, more, found = random_blocks(64), random_blocks(64, seed=1), np.zeros(2, np.float32)
    measure(x.ctypes.data, found.ctypes.data, found.ctypes.data + 4)
    assert found.tolist() == [np.abs(x).max(), quantize._squares(x)]
    want = x + more
    add(x.ctypes.data, more.ctypes.data, found.ctypes.data, found.ctypes.data + 4)
    np.testing.assert_array_equal(x, want)
    assert found.tolist() == [np.abs(want).max(), quantize._squares(want)]


def test_gates_are_transformed_and_measured() -> None:
    gates, ups, out = 4 * random_blocks(64), random_blocks(64, seed=1), np.zeros(65, np.float32)
    gate(gates.ctypes.data, ups.ctypes.data, out.ctypes.data, out.ctypes.data + 4 * 64)
    want = np.zeros(64, np.float32)
    swiglu.swiglu(gates.ctypes.data, ups.ctypes.data, 64, want.ctypes.data)
    quantize.hadamard(want.ctypes.data, 64)
    np.testing.assert_array_equal(out[:64], want)
    assert out[64] == np.abs(want).max()


def test_bytes_of_a_block_are_those_of_its_row() -> None:
    x, found = random_blocks(1, 64), np.zeros(64, np.uint8)
    want, _scale = quantize.quantize_reference(x)
    top = np.abs(x).max()
    to_bytes(x.ctypes.data, np.float32(127) / top, found.ctypes.data)
    np.testing.assert_array_equal(found, want[0])


def test_bytes_of_keys_are_signed_and_summed() -> None:
    x, found = random_blocks(1, 64), np.zeros(64, np.int8)
    want = quantize.quantize_reference(x)[0][0].astype(int) - 128
    total = to_key(x.ctypes.data, np.float32(127) / np.abs(x).max(), found.ctypes.data)
    np.testing.assert_array_equal(found, want)
    assert total == want.sum()


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_bytes_of_values_leave_those_beside_them(place: int) -> None:
    x, line = random_blocks(1, 16), np.random.default_rng(1).integers(-128, 128, (16, 4), np.int8)
    want = line.copy()
    want[:, place] = quantize.quantize_reference(x)[0][0].astype(int) - 128
    to_value(x.ctypes.data, np.float32(127) / np.abs(x).max(), line.ctypes.data, 8 * place)
    np.testing.assert_array_equal(line, want)


def test_blocks_are_joined_in_their_order() -> None:
    x, out = np.abs(random_blocks(9, 32)), np.zeros(16, np.float32)
    over(x.ctypes.data + 64, x.strides[0], 9, out.ctypes.data, False)
    np.testing.assert_array_equal(out, x[:, 16:].max(0))
    over(x.ctypes.data + 64, x.strides[0], 9, out.ctypes.data, True)
    want = np.zeros(16, np.float32)
    for block in x:
        want += block[16:]
    np.testing.assert_array_equal(out, want)


def random_head_kernels(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def at(array: npt.NDArray[np.generic]) -> int:
    return int(array.ctypes.data)


class Weight:
    """A random weight [parts, outputs, inputs] and its matrix."""

    def __init__(self, parts: int, outputs: int, inputs: int, **more: float) -> None:
        steps = np.random.default_rng(inputs).integers(-127, 128, (parts, outputs, inputs), dtype=np.int8)
        self.packed = np.stack([pack(part) for part in steps])
        self.offsets = 128 * steps.sum(2, dtype=np.int32)
        self.scales = np.abs(random_head_kernels(parts, outputs, seed=3)) / np.float32(50)
        self.biases, self.norm = random_head_kernels(outputs, seed=4), random_head_kernels(inputs, seed=5)
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
    x = random_head_kernels(rows, parts, 128, seed=rows) * np.logspace(0, 3, parts, dtype=np.float32)[:, None]
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
    matrix, ids = random_head_kernels(40, 128), np.array([7, 0, 39, *range(10, 20), -1, -1, -1], np.int64)
    packed, scales = np.empty((1, 32, 16, 4), np.int8), np.empty(16, np.float32)
    offsets, scratch = np.empty(16, np.int32), np.empty(128, np.uint8)
    pack_rows(at(matrix), 128, at(ids), 16, at(packed), at(scales), at(offsets), at(scratch))
    steps = unpack(packed)
    np.testing.assert_allclose(steps[:13] * scales[:13, None], matrix[ids[:13]], atol=scales.max() * 0.51)
    assert np.abs(steps[:13]).max(1).min() == 127
    assert not steps[13:].any()
    np.testing.assert_array_equal(offsets, 128 * steps.sum(1, dtype=np.int32))


def test_recurrent_cells_are_torchs() -> None:
    inputs, states, cell = (
        random_head_kernels(5, 3, 64, seed=1) * 4,
        random_head_kernels(5, 64, seed=2),
        random_head_kernels(5, 64, seed=3),
    )
    recurrences, gates = random_head_kernels(5, 3, 64, seed=4), random_head_kernels(5, 4, 64, seed=5) * 4
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
    ids, states = (
        np.sort(np.random.default_rng(1).choice(5000, size, replace=False)),
        random_head_kernels(rows, 64, seed=8),
    )
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
