"""Kernels that work on one row at a time: against numpy, to the bit where the order of the reference is the kernel's."""

import numpy as np
import numpy.typing as npt
import pytest

from decoding.targets.int8 import mask_rows
from kernels.cpu import phases, quantize, swiglu
from kernels.cpu.emit import add_floats, kernel, largest, largest_magnitude
from kernels.cpu.job import Model, aligned_copy
from kernels.cpu.processor import variant
from kernels.cpu.weighted_sums import parts_times, rows_times, weighted_sums, weighted_sums_reference

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
        return add_floats(x, count), largest(x, count)

    x = random(160)
    lanes = np.zeros(16, np.float32)
    for part in x.reshape(-1, 16):
        lanes += part
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
