"""Products of bytes: every processor's kernels give the integers that numpy gives, for any number of rows.

Arrays for kernels: numpy's own begin anywhere, which halves the speed of wide loads.

The choice among logits in parts: the sampler's own, at any temperature and in any order of the parts.

Which kernels an ARM processor gets: those for what it has, on Linux alone unless asked for.

Units of work that the pieces of a matrix become: every row of every piece is one thread's, and threads get as much.
"""

import ctypes
import re
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch
from llvmlite import binding, ir

from kernels.cpu import phases, processor
from kernels.cpu.emitters import EMITTERS
from kernels.cpu.forward import choose, choose_reference, spread
from kernels.cpu.int8_products import Products, products_of, products_reference, unpack
from kernels.cpu.job import CHUNK, LINE, aligned, aligned_copy, pack
from kernels.cpu.processor import Variant, variant
from kernels.cpu.quantize import rescale
from kernels.cpu.threads import first_own
from kernels.cpu.word_products import word_scores, word_totals
from kernels.gpu.choice import choose_reference as of_tensors

BEST = variant()

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


@pytest.mark.skipif(BEST is None, reason="the processor has neither AVX2 nor better")
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


@pytest.mark.skipif(BEST is None, reason="the processor has neither AVX2 nor better")
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


@pytest.mark.skipif(BEST is None, reason="the processor has neither AVX2 nor better")
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
    ("words", "features", "kind"),
    [
        ({16: 1 << 20, 26: 1 << 13}, "+dotprod,+i8mm,+neon,+sve,-sve", "neon_i8mm"),
        ({16: 1 << 20}, "+dotprod,+neon,+sve,-sve", "neon_dot"),
        ({}, "+neon,+sve,-sve", "generic"),
    ],
)
def test_an_arm_processors_dot_products_are_found_though_llvm_does_not_name_them(
    words: dict[int, int], features: str, kind: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM 22 says "+aes,+crc,+fp-armv8,+lse,+neon,-rand,+sha2,-sve" of a Neoverse N1: it would get the slowest kernels."""
    for name in ("NUMBA_CPU_FEATURES", "SQLAGENT_ARM_KERNELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(processor, "IS_ARM", True)
    monkeypatch.setattr(processor, "features_text", processor.features_text.__wrapped__)  # not the kept answer
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: SimpleNamespace(flatten=lambda: "+neon,+sve"))
    library = SimpleNamespace(getauxval=lambda word: words.get(word, 0))
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    assert processor.features_text() == features
    assert variant.__wrapped__() == kind
    monkeypatch.setenv("SQLAGENT_ARM_KERNELS", "off")
    assert variant.__wrapped__() is None


def test_no_arm_kernels_are_taken_unasked_where_they_were_never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "+dotprod")
    monkeypatch.delenv("SQLAGENT_ARM_KERNELS", raising=False)
    monkeypatch.setattr(processor, "IS_ARM", True)
    monkeypatch.setattr(processor, "features_text", processor.features_text.__wrapped__)  # not the kept answer
    monkeypatch.setattr(sys, "platform", "darwin")
    assert variant.__wrapped__() is None
    monkeypatch.setenv("SQLAGENT_ARM_KERNELS", "on")
    assert variant.__wrapped__() == "neon_dot"


@pytest.mark.skipif(BEST is None, reason="the processor has neither AVX2 nor better")
@pytest.mark.parametrize(
    ("kind", "features", "wanted"), [("neon_i8mm", "+i8mm", "usdot"), ("neon_dot", "+dotprod", "sdot")]
)
def test_arm_kernels_compile_to_its_dot_products(kind: Variant, features: str, wanted: str) -> None:
    """The code of one step; `arm/check.sh` runs whole forwards."""
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


@pytest.mark.skipif(BEST is None, reason="the processor has neither AVX2 nor better")
def test_signed_dot_products_give_the_same_integers() -> None:
    """`_SignedDots` in numpy: (x - 128) w, less -128 w."""
    random = np.random.default_rng(3)
    x, w = random.integers(0, 256, (16, 64)), random.integers(-127, 128, (16, 64))
    turned = (x.astype(np.uint8) ^ np.uint8(0x80)).view(np.int8).astype(int)
    assert ((turned * w).sum(1) - (-128 * w).sum(1) == (x * w).sum(1)).all()


@pytest.mark.skipif(BEST is None, reason="the processor has neither AVX2 nor better")
def test_what_is_packed_can_be_unpacked() -> None:
    weight = np.random.default_rng(0).integers(-127, 128, (64, 32), dtype=np.int8)
    np.testing.assert_array_equal(unpack(pack(weight)), weight)


@pytest.mark.skipif(BEST is None, reason="the processor has neither AVX2 nor better")
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


@pytest.mark.parametrize(
    ("shape", "dtype"), [(1, np.uint8), ((3, 5), np.float32), ((2, 7, 9), np.int64), ((0, 4), np.int8)]
)
def test_arrays_begin_at_a_line(shape: int | tuple[int, ...], dtype: type[np.generic]) -> None:
    for _ in range(8):
        array = aligned(shape, dtype)
        assert array.ctypes.data % LINE == 0 or not array.size
        assert array.shape == np.empty(shape, dtype).shape and array.dtype == dtype
        array[...] = 1  # is ours to write


def test_a_copy_has_the_numbers() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, 1:]
    copy = aligned_copy(array)
    np.testing.assert_array_equal(copy, array)
    copy[...] = 0
    assert array.any(), "what is copied stays"


def signed(seed: int) -> int:
    """The same 64 bits."""
    return (seed + 2**63) % 2**64 - 2**63


def chosen(logits: npt.NDArray[np.float32], heat: float, seed: int, position: int, order: list[int]) -> int:
    best, tokens = np.array([-np.inf], np.float32), np.zeros(1, np.int64)
    for first in order:
        part = np.full(CHUNK, 99, np.float32)  # what lies behind the last logit does not count
        count = min(CHUNK, len(logits) - first)
        part[:count] = logits[first : first + count]
        key = np.float32(heat), signed(seed), position
        choose(part.ctypes.data, count, first, *key, best.ctypes.data, tokens.ctypes.data, 0)
    return int(tokens[0])


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
@pytest.mark.parametrize("heat", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_the_choice_is_the_samplers(heat: float, spread: float) -> None:
    for seed, position in ((0, 0), (1, 5), (2**64 - 3, 700), (12345678901234567890, 8)):
        random = np.random.default_rng(position)
        logits = (spread * random.standard_normal(1000)).astype(np.float32)
        order = random.permutation(np.arange(0, 1000, CHUNK)).tolist()
        want = choose_reference(logits, heat, seed, position)
        assert chosen(logits, heat, seed, position, order) == want
        keys = torch.tensor([heat]), torch.tensor([signed(seed)]), torch.tensor([position])
        assert int(of_tensors(torch.from_numpy(logits)[None], *keys)) == want


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_the_first_of_equals_wins_in_any_order() -> None:
    logits = np.zeros(2 * CHUNK + 5, np.float32)
    logits[[7, 9, CHUNK + 1, 2 * CHUNK + 4]] = 3
    for order in ([0, CHUNK, 2 * CHUNK], [2 * CHUNK, CHUNK, 0]):
        assert chosen(logits, 0.0, 0, 0, order) == 7


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_the_spread_of_logits_gives_their_likelihood() -> None:
    random = np.random.default_rng(3)
    for count in (1, 15, 16, 200, CHUNK):
        logits = np.full(CHUNK, np.nan, np.float32)
        logits[:count] = 5 * random.standard_normal(count)
        room, out = np.full(CHUNK, np.nan, np.float32), np.zeros(2, np.float32)
        spread(logits.ctypes.data, count, room.ctypes.data, out.ctypes.data)
        mine = logits[:count].astype(np.float64)
        assert out[0] == logits[:count].max()
        assert out[1] == pytest.approx(np.exp(mine - mine.max()).sum(), rel=1e-5)


QKV, OTHER = 4, 5  # numbers of matrices
units_of, unit_of = phases._units_of.py_func, phases._unit_of.py_func


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("pieces", [1, 9, 15, 24])
@pytest.mark.parametrize("rows", [1, 7, 8, 17, 130])
def test_every_row_of_every_piece_is_in_one_unit(
    threads: int, pieces: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "_units_of", units_of)
    job = SimpleNamespace(rows=rows, threads=threads)
    for matrix in (QKV, OTHER):
        units, done, work = units_of(job, matrix, pieces), Counter[tuple[int, int]](), Counter[int]()
        for thread in range(threads):
            for unit in range(first_own.py_func(units, thread, threads), first_own.py_func(units, thread + 1, threads)):
                piece, begin, end = unit_of(job, matrix, pieces, unit)
                done.update((piece, row) for row in range(begin, end))
                work[thread] += end - begin
        assert done == Counter((piece, row) for piece in range(pieces) for row in range(rows))
        if matrix == OTHER and rows >= 4 * threads:
            assert max(work.values()) - min(work[thread] for thread in range(threads)) <= pieces % threads
        else:
            assert units == pieces
