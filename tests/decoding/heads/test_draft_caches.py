"""What a head has computed from a prompt serves later texts that begin with it, and changes no draft.

Guards against rows that are read twice, against those of tokens that only an earlier text had, and against two heads that
write into the same pages.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import pytest

from decoding.engine.loop import Request, decode
from decoding.engine.method import Method
from decoding.engine.rounds import Round
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget
from decoding.heads.on_kernels.drafters import KernelReader
from decoding.heads.on_kernels.layers import HeadLayers, KeptRows
from decoding.methods.baselines import Cascade
from decoding.serving.load import load_text_decoder
from decoding.targets.int8.buffers import FloatLayout, Pages
from decoding.targets.prefix_cache import Entry, PrefixCache
from kernels.cpu.processor import variant
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.tiny_models import tiny_checkpoint

pytestmark = [
    pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better"),
    pytest.mark.usefixtures("one_thread"),
]
KEEPING = pytest.mark.parametrize("name", ["dflash", "jetspec", "domino", "path_tree", "adaptive", "draft_model"])
PROMPT = tuple(Random(3).choices(range(3, 300), k=150))
ENDS = [tuple(Random(n).choices(range(3, 300), k=20)) for n in range(2)]


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(Path(mkdtemp()) / "tiny", seed=3, max_position_embeddings=512)


def target_in(folder: Path, cache_mb: int = 64) -> AnyTarget:
    return load_text_decoder(str(folder), dtype="int8", device="cpu", prefix_cache_mb=cache_mb).target


def rounds_of(target: AnyTarget, method: Method, prompt: tuple[int, ...] = PROMPT, new: int = 24) -> list[Round]:
    return list(decode(target, [Request(prompt, method, new, Sampler())]))


def drafts(rounds: list[Round]) -> list[Any]:
    return [(r.draft_tokens, r.draft_parents, r.committed) for r in rounds]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of states or tokens of a text that heads take in, for each pass."""
    counts, original, read = list[int](), HeadLayers.context, KernelReader.read

    def counted(self: KernelReader, tokens: Sequence[int], keep: bool) -> Any:
        counts.extend([len(tokens)] if keep else [])
        return read(self, tokens, keep)

    monkeypatch.setattr(HeadLayers, "context", lambda *given: (counts.append(len(given[1])), original(*given))[1])
    monkeypatch.setattr(KernelReader, "read", counted)
    return counts


@KEEPING
def test_a_second_text_reads_only_what_is_new_and_drafts_as_a_first(name: str, folder: Path, rows: list[int]) -> None:
    target = target_in(folder)
    method = partial(ready_method, name, target)
    answer = [token for r in rounds_of(target, method()) for token in r.text_tokens]
    assert sum(rows) >= len(PROMPT)
    for prompt in ((*PROMPT, *answer[:-2], *ENDS[0]), (*PROMPT[:100], *ENDS[1]), PROMPT):
        rows.clear()
        found = drafts(rounds_of(target, method(), prompt))
        assert sum(rows) < 24 + 2 * len(ENDS[0]), "the shared tokens were read once more"
        assert found == drafts(rounds_of(target_in(folder, 0), method(), prompt))


@KEEPING
def test_what_a_covered_text_has_computed_is_kept_with_the_longer_one(name: str, folder: Path, rows: list[int]) -> None:
    target = target_in(folder)
    answer = [token for r in rounds_of(target, ready_method("plain", target)) for token in r.text_tokens]
    rounds_of(target, ready_method("path_tree", target), (*PROMPT, *answer, *ENDS[0]), new=1)
    assert not rows, "no head drafts in a text's first round"
    for _ in range(2):
        rows.clear()
        rounds_of(target, ready_method(name, target), new=8)
    assert sum(rows) < 10


def test_open_texts_lend_their_rows(folder: Path, rows: list[int]) -> None:
    target = target_in(folder, 0)
    first = decode(target, [Request(PROMPT, ready_method("path_tree", target), 24, Sampler())])
    begun = [next(first) for _ in range(3)]
    read = sum(rows)
    second = drafts(rounds_of(target, ready_method("path_tree", target), (*PROMPT[:-1], 5)))
    assert sum(rows) - read < 40
    whole = drafts([*begun, *first])
    for prompt, found in ((PROMPT, whole), ((*PROMPT[:-1], 5), second)):
        assert found == drafts(rounds_of(target_in(folder, 0), ready_method("path_tree", target), prompt))


def test_two_methods_with_one_head_do_not_write_into_the_same_pages(folder: Path) -> None:
    target = target_in(folder)
    for _ in range(2):
        both = Cascade(*(ready_method(name, target) for name in ("path_tree", "adaptive")), together=True)
        found = drafts(rounds_of(target, both))
    fresh = Cascade(*(ready_method(name, target) for name in ("path_tree", "adaptive")), together=True)
    assert found == drafts(rounds_of(target_in(folder, 0), fresh))


def test_the_first_rows_are_a_copy_where_another_text_may_write() -> None:
    pages = Pages(FloatLayout(2, 64))
    pages.reserve(200)
    kept = KeptRows(pages, 150, is_taken=True)
    for wanted, count, shared in ((200, 150, 2), (64, 64, 1), (70, 70, 1), (0, 0, 0)):
        part = kept.first(wanted)
        assert (part.count, part.is_taken) == (count, False)
        assert [mine is theirs for mine, theirs in zip(part.pages.pages, pages.pages, strict=False)].count(
            True
        ) == shared
        assert part.size_bytes == -(-count // 64) * pages.pages[0].nbytes


def test_what_heads_have_computed_counts_as_memory_of_its_prefix() -> None:
    pages = Pages(FloatLayout(2, 64))
    pages.reserve(64)
    size = pages.size_bytes
    cache = PrefixCache[str](3 * size)
    for token in range(2):
        cache.add(Entry((token, 5), (), "", size))
    assert cache.covers((0, 5), (), {"head": KeptRows(pages, 2)}) and cache.size_bytes == 3 * size
    assert cache.covers((0,), (), {"head": KeptRows(Pages(FloatLayout(2, 64)), 1)}) and cache.size_bytes == 3 * size, (
        "it is shorter"
    )
    assert cache.covers((0,), (), {"other": KeptRows(pages, 1)})
    assert [entry.tokens for entry in cache.entries] == [(0, 5)], "the least recently used went"
