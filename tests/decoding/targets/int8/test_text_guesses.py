"""What masks say, corrected and ranked by a kernel, compared with the same in numpy.

The int8 target's cache: bounded, and full pages shared without a copy.

Loading the int8 target: packed and compiled once, kept on disk, and made again where what is kept is damaged.

A thread that comes when a forward is over finds nothing to do, and looks at nothing that may be gone by then.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from decoding.checkpoints.bigrams import FITTED, TokenPairs
from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import Draft
from decoding.engine.sampler import Floats, Sampler
from decoding.engine.target import ForwardInput, Ranked, TextScores, TokenSet
from decoding.errors import UnsupportedModel
from decoding.methods.mask_guesses import ranked
from decoding.serving import load
from decoding.serving.load import load_text_decoder
from decoding.targets.int8 import buffers
from decoding.targets.int8.compiled import compiled
from decoding.targets.int8.cpu_target import CpuSequence, CpuTarget
from decoding.targets.int8.mask_rows import KernelPairs
from decoding.targets.int8.packed_model import damaged_models
from decoding.targets.int8.packing import packed_model
from kernels.cpu.job import MOST_FOLLOWERS, plane_bytes
from kernels.cpu.processor import variant
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.targets.test_cpu_target import LONG, PROMPT, TREE, checkpoint, fed, fresh

RANDOM = np.random.default_rng(5)
FREQUENT = np.arange(10, 130, 3)  # some tokens have scores of pairs
TOKENS = TokenSet(np.arange(4, 150, 2))  # what masks are asked about
TEXT = RANDOM.integers(0, 160, 900).tolist()


def pairs(weights: Floats | None = FITTED) -> TokenPairs:
    before, after = RANDOM.normal(0, 1, (2, len(FREQUENT), 8)).astype(np.float32)
    return TokenPairs(FREQUENT, before, after, weights)


def numpy_best(
    scores: TextScores, logits: Floats, row: int, tail: tuple[int, int], tokens: TokenSet, count: int
) -> Ranked:
    places, found = ranked(scores.corrected(logits[row], tail, tokens.ids), count)
    return tokens.ids[places].tolist(), found.tolist()


def assert_alike(slow_pairs: TokenPairs, text: list[int], tails: list[tuple[int, int]], count: int = 16) -> None:
    """The same tokens with the same scores, before and after the text has grown."""
    slow, fast = slow_pairs.in_text(text[:700]), KernelPairs(slow_pairs).in_text(text[:700])
    logits = RANDOM.normal(0, 3, (len(TOKENS), 5)).astype(np.float32).T  # a row need not lie in one piece
    for length in (700, 702, len(text)):
        slow.grow(text[:length])
        fast.grow(text[:length])
        for row, tail in enumerate(tails):
            asked = logits, row % 5, tail, TOKENS, count
            want, found = numpy_best(slow, *asked), fast.best(*asked)
            assert found[0] == want[0]
            assert found[1] == pytest.approx(want[1], abs=1e-4)
            assert fast.corrected(logits[0], tail, TOKENS.ids) == pytest.approx(
                slow.corrected(logits[0], tail, TOKENS.ids)
            )


def test_the_kernel_says_what_numpy_says() -> None:
    places = RANDOM.integers(1, 699, 40)
    assert_alike(pairs(), TEXT, [(TEXT[place - 1], TEXT[place]) for place in places])


def test_tokens_that_nothing_is_known_of_are_ranked_as_they_are() -> None:
    text = [token % 100 for token in TEXT]
    assert_alike(pairs(), text, [(3, 155), (1, 159), (155, text[4])])


def test_without_weights_of_followers_only_pairs_count() -> None:
    assert_alike(pairs(None), TEXT, [(TEXT[3], TEXT[4]), (7, 10), (7, 11)])


@pytest.mark.parametrize("distinct", [MOST_FOLLOWERS, MOST_FOLLOWERS + 1])
def test_a_token_with_too_many_followers_gives_them_no_score(distinct: int) -> None:
    text = [token for other in range(distinct) for token in (1, 10 + other)]
    assert_alike(pairs(), text + [2] * 700, [(73, 1), (2, 1)])


def test_an_empty_text_has_no_followers_and_never_gets_any() -> None:
    known = pairs()
    slow, fast = known.in_text(()), KernelPairs(known).in_text(())
    logits = RANDOM.normal(0, 3, (1, len(TOKENS))).astype(np.float32)
    for each in (slow, fast):
        each.grow(TEXT)
    assert fast.best(logits, 0, (3, 10), TOKENS, 4)[0] == numpy_best(slow, logits, 0, (3, 10), TOKENS, 4)[0]


def test_fewer_tokens_than_are_wanted_are_all_ranked() -> None:
    few = TokenSet(np.array([10, 12, 13]))
    known = pairs()
    slow, fast = known.in_text(TEXT), KernelPairs(known).in_text(TEXT)
    logits = np.array([[0.5, 2.0, -1.0]], np.float32)
    want, found = numpy_best(slow, logits, 0, (3, 10), few, 8), fast.best(logits, 0, (3, 10), few, 8)
    assert found[0] == want[0] and len(found[0]) == 3
    assert found[1] == pytest.approx(want[1], abs=1e-4)


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_the_cache_is_bounded_and_can_be_off() -> None:
    off = fresh(cache_bytes=0)
    off.close(_committed(off, LONG))
    assert off.open(LONG, Sampler()).cached == 0
    page = 2 * 2 * plane_bytes(64)  # layers, heads, padded head
    small = fresh(cache_bytes=3 * page)
    small.close(_committed(small, LONG))
    small.close(_committed(small, PROMPT))
    assert small.open(LONG, Sampler()).cached == len(LONG) - 1
    small.close(_committed(small, (9, 9, 9)))
    assert small.open(PROMPT, Sampler()).cached == 0, "the least recently used went"


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
@pytest.mark.parametrize("layout", [buffers.FloatLayout(2, 64), buffers.ByteLayout(2, 64)])
def test_what_scores_are_made_of_begins_as_zeros(layout: buffers.Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are taken of whole pages; what memory held before may be no number, or one that slows every product a
    hundredfold.
    """

    def used(shape: tuple[int, ...], dtype: type) -> npt.NDArray[Any]:
        return np.full(shape, 255, dtype)

    monkeypatch.setattr(buffers, "aligned", used)
    cache = buffers.Pages(layout)
    cache.reserve(100)
    for page in cache.pages:
        floats = layout.at(page, 7)[0 if page.dtype == np.float32 else 2]
        assert np.count_nonzero(page) and not np.count_nonzero(floats)


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
@pytest.mark.parametrize("layout", [buffers.FloatLayout(2, 64), buffers.ByteLayout(2, 64)])
def test_a_position_is_moved_whole(layout: buffers.Layout) -> None:
    cache, random = buffers.Pages(layout), np.random.default_rng(0)
    cache.reserve(128)
    for page in cache.pages:
        page[...] = random.integers(0, 100, page.shape)
    before = [page.copy() for page in cache.pages]
    cache.compact(60, [0, 2, 9])
    for index, row in enumerate((0, 2, 9)):
        (old_page, old), (new_page, new) = (divmod(60 + each, 64) for each in (row, index))
        pairs = zip(layout.at(before[old_page], old), layout.at(cache.pages[new_page], new), strict=True)
        assert all(np.array_equal(*pair) for pair in pairs)
        for was, moved in zip(before, cache.pages, strict=True):
            assert (was != moved).sum() <= 2 * sum(part.size for part in layout.at(was, 0)), "and nothing else"


def _committed(target: CpuTarget, tokens: tuple[int, ...]) -> CpuSequence:
    sequence, _ = fed(target, tokens)
    target.commit(sequence, [])
    return sequence


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_full_pages_are_shared_and_a_chain_moves_nothing() -> None:
    target = fresh()
    first = _committed(target, LONG)
    second = target.open((*LONG[:80], 4, 4), Sampler())
    assert second.cached == 80
    assert second.cache.pages[0] is first.cache.pages[0]
    assert second.cache.pages[1] is not first.cache.pages[1]
    before = first.cache.pages[1].copy()
    target.score([ForwardInput(second, (4, 4), Draft.chain((1, 2)))])
    staged = second.cache.pages[1].tobytes()
    target.commit(second, [0, 1])
    assert (second.cached, second.cache.pages[1].tobytes() == staged) == (84, True)
    assert first.cache.pages[1].tobytes() == before.tobytes()
    third = target.fork(second, Sampler(1.0, 3))
    assert (third.cached, third.cache.pages[0] is second.cache.pages[0]) == (84, True)


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_loading_packs_once_and_says_where_kernels_do_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path))
    folder = str(checkpoint("llama"))
    _, want = fed(fresh(cache_bytes=0), LONG, TREE)
    for _ in range(2):
        target = load_text_decoder(folder, dtype="int8").target
        assert isinstance(target, CpuTarget)
        assert torch.equal(torch.as_tensor(fed(target, LONG, TREE)[1].logits), torch.as_tensor(want.logits))
        assert target.model.embedding.shape == (320, 32)
    (packed,) = (tmp_path / "packed").iterdir()
    whole = (packed / "matrices.npy").read_bytes()
    flipped = whole[:-100] + bytes([whole[-100] ^ 64]) + whole[-99:]
    for damaged in (flipped, b"damaged"):
        (packed / "matrices.npy").unlink()
        (packed / "matrices.npy").write_bytes(damaged)
        again = load_text_decoder(folder, dtype="int8").target
        assert isinstance(again, CpuTarget)
        assert torch.equal(torch.as_tensor(fed(again, LONG, TREE)[1].logits), torch.as_tensor(want.logits))
        assert (packed / "matrices.npy").read_bytes() == whole
    monkeypatch.setattr(load, "runs_cpu_kernels", lambda: False)
    with pytest.raises(UnsupportedModel, match="need a processor with AVX2: give --dtype fp32 or bf16"):
        load_text_decoder(folder, dtype="int8")


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_a_damage_that_no_size_shows_is_found_by_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path))
    load_text_decoder(str(checkpoint("llama")), dtype="int8")
    assert damaged_models() == []
    (packed,) = (tmp_path / "packed").iterdir()
    file = packed / "matrices.npy"
    whole, times = file.read_bytes(), file.stat()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert damaged_models() == [packed]


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_damaged_object_code_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path))
    place = "phases:copy"
    compiled.__wrapped__(place)  # type: ignore[attr-defined]
    (file,) = (tmp_path / "kernels").glob("*/*.o")
    whole = file.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:40], b""):
        file.write_bytes(damaged)
        compiled.__wrapped__(place)  # type: ignore[attr-defined]
        assert len(file.read_bytes()) > 40 and file.read_bytes() != damaged


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_weights_that_do_not_fit_are_refused_in_a_line() -> None:
    weights, config = dict(read_weights(checkpoint("llama"))), load_config(checkpoint("llama"))
    norm = "model.layers.0.input_layernorm.weight"
    for wrong in (weights | {norm: torch.ones(31)}, {name: tensor for name, tensor in weights.items() if name != norm}):
        with pytest.raises(UnsupportedModel, match=r"config.json and weights do not match"):
            packed_model(config, wrong.items())


LATE = """
import sys
from pathlib import Path
import numpy as np
from tests.decoding.targets.test_cpu_target import LONG, TREE, CpuTarget, fed

target = CpuTarget.load(Path(sys.argv[1]))
fed(target, LONG, TREE)
function, first, (model, _), ((job, _), sync) = target.model._team._job
gone = job.copy()
gone[gone > 2**20] = 0  # every address; to read there is a segmentation fault
before = sync.copy()
function(1, first, model, gone.ctypes.data)
done, taken, *own = (sync - before)[2:].reshape(2 + before[1], -1)
assert set(taken) == {0, 1}, "it has asked for work in every phase where anyone takes the next piece"
assert not done.any() and not np.any(own), "and has done none"
print("nothing touched")
"""


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_a_late_thread_touches_nothing(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "llama")
    late = subprocess.run([sys.executable, "-c", LATE, str(folder)], capture_output=True, text=True)
    assert (late.returncode, late.stdout) == (0, "nothing touched\n"), late.stderr[-2000:]
