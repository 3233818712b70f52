"""What the fast target remembers, where it copies, and what it forgets: `prefix_cache` by itself and in use.

Keys and values of prompts on disk: to the bit those that are computed, whole or not there, and never another model's.
"""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch

from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.targets.fast_target import FastSequence, FastTarget
from decoding.targets.int8.cpu_target import CpuTarget, kept_prompts
from decoding.targets.llama_model import TensorTable
from decoding.targets.prefix_cache import (
    WORTH_PAGES,
    DiskPrefixCache,
    Entry,
    PrefixCache,
    common_length,
    longest_prefix,
)
from kernels.cpu.job import PAGE
from kernels.cpu.processor import variant
from tests.decoding.models.tiny_models import tiny_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("llama"))


def rows(*values: int) -> TensorTable:
    table = TensorTable(2, (1,), torch.float32, torch.device("cpu"))
    table.copy_from(torch.tensor([values, values], dtype=torch.float32)[..., None])
    return table


def feed(target: FastTarget, *tokens: int, taps: tuple[int, ...] = ()) -> FastSequence:
    """An open sequence with all but the last of `tokens` cached."""
    sequence = target.open(tokens, Sampler(), taps)
    if pending := tokens[sequence.cached : -1]:
        target.score([ForwardInput(sequence, pending, Draft())])
        target.commit(sequence, [])
    return sequence


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ([], [0, 1, 2, 3, 4, 5, 6]),
        ([0, 1, 2], [0, 1, 2, 3, 4, 5, 6]),
        ([0, 2], [0, 1, 2, 4, 4, 5, 6]),
        ([1, 2, 4], [0, 1, 3, 4, 6, 5, 6]),
        ([4], [0, 1, 6, 3, 4, 5, 6]),
    ],
)
def test_only_accepted_rows_that_lie_out_of_place_move(path: list[int], want: list[int]) -> None:
    table = rows(0, 1, 2, 3, 4, 5, 6)
    table.compact(2, path)
    assert table.data[1, :7, 0].tolist() == want


def test_a_table_doubles_and_keeps_what_it_is_told_to() -> None:
    table = rows(0, 1, 2)
    first = table.data
    assert first.shape == (2, 512, 1), "a copied prefix leaves room"
    table.reserve(512, 3)
    assert table.data is first, "no copy while there is room"
    table.reserve(513, 3)
    assert table.data.shape == (2, 1024, 1)
    assert table.data[0, :3, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("length", [0, 1, 2, 7, 100])
def test_common_length_of_any_two_texts(length: int) -> None:
    text = list(range(100))
    assert common_length(text, [*text[:length], -1, *text[length + 1 :]]) == length
    assert common_length(text, tuple(text[:length])) == length


def entry(*tokens: int, taps: tuple[int, ...] = (), size: int = 10) -> Entry[str]:
    return Entry(tokens, taps, "", size)


def test_the_least_recently_used_entry_goes_first() -> None:
    cache = PrefixCache[str](30)
    one, two, three, four = (entry(i, i + 1) for i in range(4))
    for each in (one, two, three):
        cache.add(each)
    cache.used(one)
    cache.add(four)
    assert list(cache.entries) == [three, one, four]
    cache.add(entry(9, size=31))
    assert list(cache.entries) == [three, one, four], "what does not fit pushes nobody out"
    cache.add(entry(8, size=25))
    assert cache.size_bytes == 25


def test_an_entry_replaces_those_that_it_covers() -> None:
    cache = PrefixCache[str](100)
    for each in (entry(1, 2), entry(1, 2, taps=(3,)), entry(1, 5)):
        cache.add(each)
    cache.add(entry(1, 2, 4))
    assert [e.tokens for e in cache.entries] == [(1, 2), (1, 5), (1, 2, 4)], "the one with a tap stays: it has more"
    assert cache.covers([1, 2], (3,), {})
    assert not cache.covers([1, 2, 4], (3,), {})
    cache.add(entry(1, 2, 4, 4, taps=(3, 4)))
    assert [e.tokens for e in cache.entries] == [(1, 5), (1, 2, 4, 4)]


def test_the_longest_prefix_with_the_taps_wins() -> None:
    entries = [entry(1, 2, 3), entry(1, 2, taps=(0, 5)), entry(7)]
    assert longest_prefix(entries, [1, 2, 3, 4], ()) == (entries[0], 3)
    assert longest_prefix(entries, [1, 2, 3, 4], (5,)) == (entries[1], 2)
    assert longest_prefix(entries, [1, 2, 3, 4], (6,)) is None
    assert longest_prefix(entries, [], ()) is None


def test_never_the_whole_prompt(checkpoint: Path) -> None:
    """The last token's logits are what the next round needs: a hit on all of it would leave nothing to feed."""
    target = FastTarget.load(checkpoint)
    target.close(feed(target, 1, 2, 3, 4))
    assert target.open([1, 2, 3], Sampler()).cached == 2
    assert target.open([1], Sampler()).cached == 0


def test_prefixes_of_open_sequences_are_reused_and_stay_their_own(checkpoint: Path) -> None:
    target = FastTarget.load(checkpoint)
    first = feed(target, 1, 2, 3, 4, 5)
    second = target.open([1, 2, 3, 9, 9], Sampler())
    assert (first.cached, second.cached) == (4, 3)
    before = first.cache.own.data[:, :4].clone()
    target.score([ForwardInput(second, [9, 9], Draft((1,), (-1,)))])
    target.commit(second, [0])
    assert torch.equal(first.cache.own.data[:, :4], before)


def test_a_chain_is_committed_and_a_draft_dropped_without_copying(checkpoint: Path) -> None:
    target = FastTarget.load(checkpoint)
    sequence = feed(target, 1, 2, 3)
    target.score([ForwardInput(sequence, [3], Draft.chain([4, 5, 6]))])
    staged, buffer = sequence.cache.own.data[:, :6].clone(), sequence.cache.own.data
    target.commit(sequence, [0, 1])
    assert sequence.cached == 5
    assert sequence.cache.own.data is buffer
    assert torch.equal(buffer[:, :6], staged)


def test_buffers_of_closed_sequences_serve_new_ones(checkpoint: Path) -> None:
    target = FastTarget.load(checkpoint)
    first = feed(target, 1, 2, 3)
    buffer = first.cache.own.data
    target.close(first)
    target.close(first)  # a second time does nothing
    second, third = target.open([8, 8], Sampler()), target.open([8, 8], Sampler())
    assert second.cache.own.data is buffer
    assert third.cache.own.data is not buffer


def test_a_cached_prefix_does_not_change_when_its_buffer_is_used_again(checkpoint: Path) -> None:
    target = FastTarget.load(checkpoint)
    first = feed(target, 1, 2, 3, 4)
    want = first.cache.own.data[:, :3].clone()
    target.close(first)
    feed(target, 9, 9, 9, 9, 9)
    assert torch.equal(target.open([1, 2, 3, 7], Sampler()).cache.own.data[:, :3], want)


def test_the_cache_is_bounded_and_can_be_off(checkpoint: Path) -> None:
    off = FastTarget.load(checkpoint, cache_bytes=0)
    off.close(feed(off, 1, 2, 3))
    assert off.open([1, 2, 3], Sampler()).cached == 0
    per_token = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, head_dim, bytes
    small = FastTarget.load(checkpoint, cache_bytes=per_token * 5)
    small.close(feed(small, 1, 2, 3))
    small.close(feed(small, 4, 5, 6, 7))
    assert small.open([1, 2, 3], Sampler()).cached == 2
    small.close(feed(small, 8, 9))
    assert small.open([4, 5, 6, 7], Sampler()).cached == 0, "the least recently used went"


def test_taps_decide_what_is_a_hit(checkpoint: Path) -> None:
    target = FastTarget.load(checkpoint)
    target.close(feed(target, 1, 2, 3, 4, taps=(0, 2)))
    one = target.open([1, 2, 3, 4], Sampler(), taps=(2,))
    assert one.cached == 3
    assert one.hidden is not None
    assert one.hidden.shape == (3, 1, 32)
    assert target.open([1, 2, 3, 4], Sampler(), taps=(1,)).cached == 0
    assert target.open([1, 2, 3, 4], Sampler()).hidden is None


SCHEMA = tuple(random.Random(1).choices(range(3, 300), k=5 * PAGE + 10))
QUESTIONS = [(*SCHEMA, *random.Random(seed).choices(range(3, 300), k=20)) for seed in (2, 3)]


@cache
def one() -> CpuTarget:
    return CpuTarget.load(tiny_checkpoint(Path(mkdtemp()) / "llama", "llama", seed=3))


@pytest.fixture
def kept(tmp_path: Path) -> DiskPrefixCache:
    return replace(kept_prompts(one().model, "one"), folder=tmp_path / "prompts")


def process(kept: DiskPrefixCache | None) -> CpuTarget:
    """A target as a fresh process has it."""
    return CpuTarget(one().model, kept=kept)


def answer(target: CpuTarget, prompt: Sequence[int], taps: tuple[int, ...] = ()) -> tuple[int, np.ndarray]:
    """How many tokens were known, and the logits after the prompt."""
    sequence = target.open(prompt, Sampler(), taps)
    known = sequence.cached
    (scores,) = target.score([ForwardInput(sequence, prompt[known:], Draft())])
    logits = np.array(scores.logits)
    target.commit(sequence, [])
    target.close(sequence)
    return known, logits


def files(kept: DiskPrefixCache) -> list[Path]:
    return sorted(kept.folder.glob("*"))


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_a_later_process_computes_the_same_bits_from_what_is_kept(kept: DiskPrefixCache) -> None:
    answer(process(kept), QUESTIONS[0])
    known, logits = answer(process(kept), QUESTIONS[1])
    none, want = answer(process(None), QUESTIONS[1])
    assert (known, none) == (5 * PAGE, 0)
    assert np.array_equal(logits, want)


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_the_process_that_knows_as_much_reads_nothing(kept: DiskPrefixCache, monkeypatch: pytest.MonkeyPatch) -> None:
    target = process(kept)
    answer(target, QUESTIONS[0])
    monkeypatch.setattr(np, "memmap", lambda *_: pytest.fail("read again"))
    assert answer(target, QUESTIONS[1])[0] == len(SCHEMA)


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_questions_about_what_is_kept_add_nothing_and_short_prompts_are_not_kept(kept: DiskPrefixCache) -> None:
    answer(process(kept), SCHEMA[: WORTH_PAGES * PAGE - 1])
    assert not files(kept)
    answer(process(kept), QUESTIONS[0])
    before = files(kept)
    assert len(before) == 5
    answer(process(kept), (*QUESTIONS[1], *SCHEMA[:PAGE]))
    assert files(kept) == before


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_hidden_states_are_not_kept_so_those_who_want_them_compute(kept: DiskPrefixCache) -> None:
    answer(process(kept), QUESTIONS[0])
    assert answer(process(kept), QUESTIONS[0], taps=(1,))[0] == 0


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
@pytest.mark.parametrize(
    "harm", [lambda file: os.truncate(file, 1000), Path.unlink, lambda file: file.write_bytes(b"")]
)
def test_nothing_is_taken_from_a_broken_page_on(kept: DiskPrefixCache, harm: Callable[[Path], object]) -> None:
    answer(process(kept), QUESTIONS[0])
    third = list(kept._files(SCHEMA))[2]
    harm(third)
    known, logits = answer(process(kept), QUESTIONS[0])
    assert known == 2 * PAGE
    assert np.array_equal(logits, answer(process(None), QUESTIONS[0])[1])


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_another_model_and_another_text_have_other_pages(kept: DiskPrefixCache) -> None:
    answer(process(kept), QUESTIONS[0])
    assert not replace(kept, model="two").read(QUESTIONS[0])
    assert not kept.read((4, *QUESTIONS[0][1:]))
    assert len(kept.read((*QUESTIONS[0][: 3 * PAGE], 1, *QUESTIONS[0][3 * PAGE + 1 :]))) == 3


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_a_sequence_changes_no_kept_page(kept: DiskPrefixCache) -> None:
    answer(process(kept), QUESTIONS[0])
    before = [file.read_bytes() for file in files(kept)]
    answer(process(kept), QUESTIONS[1])
    assert [file.read_bytes() for file in files(kept)] == before


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_the_pages_used_last_stay_and_only_their_user_reads_them(kept: DiskPrefixCache) -> None:
    size = int(np.prod(kept.shape)) * kept.dtype.itemsize
    small = replace(kept, most_bytes=6 * size)
    answer(process(small), QUESTIONS[0])
    for age, file in enumerate(files(small)):
        os.utime(file, (age, age))
    other = tuple(reversed(QUESTIONS[0]))
    answer(process(small), other)
    assert len(files(small)) == 6 and len(small.read(other)) == 5
    assert {file.stat().st_mode & 0o777 for file in files(small)} == {0o600}


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_a_folder_that_cannot_be_written_is_no_trouble(kept: DiskPrefixCache) -> None:
    kept.folder.write_text("a file")
    assert answer(process(kept), QUESTIONS[0])[0] == 0
