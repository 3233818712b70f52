"""Products of bytes: every processor's kernels give the integers that numpy gives, for any number of rows."""

import re
from typing import Any, get_args

import numpy as np
import pytest
from llvmlite import binding, ir

from kernels.cpu.emitters import EMITTERS
from kernels.cpu.int8_products import Products, products_of, products_reference, unpack
from kernels.cpu.job import pack
from kernels.cpu.processor import Variant, variant
from kernels.cpu.quantize import rescale
from kernels.cpu.word_products import word_scores, word_totals

BEST = variant()
pytestmark = pytest.mark.skipif(BEST is None, reason="the processor has neither AVX2 nor better")
RUNS: dict[Variant | None, tuple[Variant, ...]] = {
    "amx_int8": ("amx_int8", "avx512_vnni", "avx_vnni", "avx2", "generic"),
    "avx512_vnni": ("avx512_vnni", "avx_vnni", "avx2", "generic"),  # which has the narrower products, too
    "avx_vnni": ("avx_vnni", "avx2", "generic"),
    "avx2": ("avx2", "generic"),
    "neon_i8mm": ("neon_i8mm", "neon_dot", "generic"),
    "neon_dot": ("neon_dot", "generic"),
    "generic": ("generic",),
    None: (),
}
ROWS = (1, 2, 3, 4, 5, 6, 7, 11, 13, 16, 17, 24, 25, 32)


@pytest.mark.parametrize("kind", get_args(Variant))
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (192, 576), (128, 1536), (64, 96), (64, 3328)])
def test_products_are_exact(kind: Variant, outputs: int, inputs: int) -> None:
    random, of = np.random.default_rng(inputs), _kernels(kind)
    weight = random.integers(-127, 128, (outputs, inputs), dtype=np.int8)
    weight[0], packed = 127, pack(weight)
    place, step = packed.ctypes.data, inputs // 4
    for rows in ROWS:
        x = random.integers(0, 256, (rows, inputs + 64), dtype=np.uint8)
        x[0] = 255  # where 8-bit products would saturate
        sums = np.full((rows, outputs + 16), -1, np.int32)
        of.prepare(rows, 0)
        of.products(x.ctypes.data, x.strides[0], rows, place, step, outputs, sums.ctypes.data, sums.strides[0], place)
        of.release()
        np.testing.assert_array_equal(sums[:, :outputs], products_reference(x[:, :inputs], packed))
        assert (sums[:, outputs:] == -1).all(), "nothing else is written"


@pytest.mark.parametrize("kind", get_args(Variant))
@pytest.mark.parametrize(("outputs", "pages"), [(64, 1), (64, 5), (128, 3), (64, 50)])
def test_products_of_pages_are_exact(kind: Variant, outputs: int, pages: int) -> None:
    """Each page has the weights of 64 inputs, behind something else."""
    random, of, plane = np.random.default_rng(pages), _kernels(kind), 256
    weight = random.integers(-127, 128, (outputs, 64 * pages), dtype=np.int8)
    parts = [pack(weight[:, first : first + 64]).view(np.uint8).reshape(-1) for first in range(0, 64 * pages, 64)]
    kept = [np.concatenate([np.zeros(plane, np.uint8), part]) for part in parts]
    places = np.array([page.ctypes.data for page in kept], np.int64)
    for rows in ROWS:
        x = random.integers(0, 256, (rows, 64 * pages), dtype=np.uint8)
        sums = np.full((rows, outputs + 16), -1, np.int32)
        to, stride = sums.ctypes.data, sums.strides[0]
        of.prepare(rows, 0)
        of.sums_of_pages(x.ctypes.data, x.strides[0], rows, places.ctypes.data, pages, plane, outputs, to, stride)
        of.release()
        np.testing.assert_array_equal(sums[:, :outputs], x.astype(np.int32) @ weight.T.astype(np.int32))
        assert (sums[:, outputs:] == -1).all(), "nothing else is written"


@pytest.mark.skipif("avx2" not in RUNS[BEST], reason="the processor has no AVX2")
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 17])
def test_products_of_words_are_exact(rows: int) -> None:
    """With the largest numbers that there are, for longer than sums of 32 bits would hold them."""
    random, pages, plane = np.random.default_rng(rows), 13, 128
    words = random.integers(-(2**15), 2**15, (rows, 64 * pages + 32), dtype=np.int16)
    words[0] = -(2**15)
    weight = random.integers(-127, 128, (64, 64 * pages), dtype=np.int8)
    weight[:3] = [[127], [-127], [-128]]
    parts = [pack(weight[:, first : first + 64]).view(np.uint8).reshape(-1) for first in range(0, 64 * pages, 64)]
    kept = [np.concatenate([np.zeros(plane, np.uint8), part]) for part in parts]
    places, totals = np.array([page.ctypes.data for page in kept], np.int64), np.full((rows, 64), np.nan)
    word_totals(words.ctypes.data, words.strides[0], rows, places.ctypes.data, pages, plane, 64, totals.ctypes.data)
    np.testing.assert_array_equal(totals, words[:, : 64 * pages].astype(np.int64) @ weight.T.astype(np.int64))
    scales = random.uniform(0.1, 1.0, 64).astype(np.float32)
    scores, keys = np.full((rows, 80), np.nan, np.float32), kept[0][plane:].copy()
    word_scores(
        words.ctypes.data, words.strides[0], rows, keys.ctypes.data, 16, scales.ctypes.data, scores.ctypes.data,
        scores.strides[0], keys.ctypes.data,
    )  # fmt: skip
    want = words[:, :64].astype(np.int32) @ weight[:, :64].T.astype(np.int32)
    np.testing.assert_array_equal(scores[:, :64], want.astype(np.float32) * scales)
    assert np.isnan(scores[:, 64:]).all(), "nothing else is written"


def _kernels(kind: Variant) -> Products:
    if kind not in RUNS[BEST]:
        pytest.skip(f"the processor does not run {kind}")
    return products_of(kind)


@pytest.mark.parametrize(
    ("kind", "features", "wanted"), [("neon_i8mm", "+i8mm", "usdot"), ("neon_dot", "+dotprod", "sdot")]
)
def test_arm_kernels_compile_to_its_dot_products(kind: Variant, features: str, wanted: str) -> None:
    """What an ARM processor would be given: the code of one step, which nothing here can run."""
    emit: Any = EMITTERS[kind](kind)
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(emit.sums, [emit.sums, ir.IntType(32), ir.IntType(64)]), "step")
    builder = ir.IRBuilder(function.append_basic_block())
    total, four, address = function.args
    for weights in emit.weights(builder, address):
        total = emit.add(builder, total, emit.inputs(builder, four), weights)
    builder.ret(total)
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(features=features)
    code = machine.emit_assembly(binding.parse_assembly(str(module)))
    assert re.findall(rf"\t({wanted})\tv\d+.4s, v\d+.16b, v\d+.16b", code)
    assert "bl" not in re.findall(r"\n\t(\w+)\t", code), "no call of anything"


def test_signed_dot_products_give_the_same_integers() -> None:
    """`_SignedDots` in numpy: (x - 128) w, less -128 w."""
    random = np.random.default_rng(3)
    x, w = random.integers(0, 256, (16, 64)), random.integers(-127, 128, (16, 64))
    turned = (x.astype(np.uint8) ^ np.uint8(0x80)).view(np.int8).astype(int)
    assert ((turned * w).sum(1) - (-128 * w).sum(1) == (x * w).sum(1)).all()


def test_what_is_packed_can_be_unpacked() -> None:
    weight = np.random.default_rng(0).integers(-127, 128, (64, 32), dtype=np.int8)
    np.testing.assert_array_equal(unpack(pack(weight)), weight)


@pytest.mark.parametrize("biased", [False, True])
def test_sums_are_scaled_back(biased: bool) -> None:
    """Inputs that were stored plus 128 give the product of the inputs themselves."""
    random = np.random.default_rng(1)
    weight, x = random.integers(-127, 128, (64, 64)).astype(np.int8), random.integers(-127, 128, (1, 64))
    sums = products_reference((x + 128).astype(np.uint8), pack(weight))
    offsets = 128 * weight.astype(np.int32).sum(1, dtype=np.int32)
    scales, biases = random.random((2, 64), dtype=np.float32)
    out = np.zeros(64, np.float32)
    addresses = [array.ctypes.data for array in (sums, offsets, scales, biases, out)]
    rescale(addresses[0], 64, *addresses[1:3], addresses[3] if biased else 0, np.float32(0.5), addresses[4])
    want = (x @ weight.T.astype(int))[0] * 0.5 * scales + (biases if biased else 0)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
