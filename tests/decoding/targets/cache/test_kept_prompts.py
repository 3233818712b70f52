"""Keys and values of prompts on disk: to the bit those that are computed, whole or not there, and never another model's."""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.targets.int8.cpu_target import CpuTarget, kept_prompts
from decoding.targets.prefix_cache import WORTH_PAGES, DiskPrefixCache
from kernels.cpu.job import PAGE
from kernels.cpu.processor import variant
from tests.decoding.models.tiny_models import tiny_checkpoint

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
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


def test_a_later_process_computes_the_same_bits_from_what_is_kept(kept: DiskPrefixCache) -> None:
    answer(process(kept), QUESTIONS[0])
    known, logits = answer(process(kept), QUESTIONS[1])
    none, want = answer(process(None), QUESTIONS[1])
    assert (known, none) == (5 * PAGE, 0)
    assert np.array_equal(logits, want)


def test_the_process_that_knows_as_much_reads_nothing(kept: DiskPrefixCache, monkeypatch: pytest.MonkeyPatch) -> None:
    target = process(kept)
    answer(target, QUESTIONS[0])
    monkeypatch.setattr(np, "memmap", lambda *_: pytest.fail("read again"))
    assert answer(target, QUESTIONS[1])[0] == len(SCHEMA)


def test_questions_about_what_is_kept_add_nothing_and_short_prompts_are_not_kept(kept: DiskPrefixCache) -> None:
    answer(process(kept), SCHEMA[: WORTH_PAGES * PAGE - 1])
    assert not files(kept)
    answer(process(kept), QUESTIONS[0])
    before = files(kept)
    assert len(before) == 5
    answer(process(kept), (*QUESTIONS[1], *SCHEMA[:PAGE]))
    assert files(kept) == before


def test_hidden_states_are_not_kept_so_those_who_want_them_compute(kept: DiskPrefixCache) -> None:
    answer(process(kept), QUESTIONS[0])
    assert answer(process(kept), QUESTIONS[0], taps=(1,))[0] == 0


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


def test_another_model_and_another_text_have_other_pages(kept: DiskPrefixCache) -> None:
    answer(process(kept), QUESTIONS[0])
    assert not replace(kept, model="two").read(QUESTIONS[0])
    assert not kept.read((4, *QUESTIONS[0][1:]))
    assert len(kept.read((*QUESTIONS[0][: 3 * PAGE], 1, *QUESTIONS[0][3 * PAGE + 1 :]))) == 3


def test_a_sequence_changes_no_kept_page(kept: DiskPrefixCache) -> None:
    answer(process(kept), QUESTIONS[0])
    before = [file.read_bytes() for file in files(kept)]
    answer(process(kept), QUESTIONS[1])
    assert [file.read_bytes() for file in files(kept)] == before


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


def test_a_folder_that_cannot_be_written_is_no_trouble(kept: DiskPrefixCache) -> None:
    kept.folder.write_text("a file")
    assert answer(process(kept), QUESTIONS[0])[0] == 0
