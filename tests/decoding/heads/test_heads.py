"""Head files: what is written can be read again, and what does not fit gives a one-line error.

What a head has computed from a prompt serves later texts that begin with it, and changes no draft.

Guards against rows that are read twice, against those of tokens that only an earlier text had, and against two heads that
write into the same pages.

A frozen target's name never changes its meaning; the shipped target is frozen, and its heads were trained on it.
"""

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

import decoding.heads.head
from decoding.checkpoints.adapter import read_adapter
from decoding.checkpoints.catalog import SHIPPED_ADAPTER
from decoding.checkpoints.identity import TargetIdentity, target_identity
from decoding.checkpoints.quantisation import packed, quantised, restored, unpacked
from decoding.engine.loop import Request, decode
from decoding.engine.method import Context, LookupCorpus, Method
from decoding.engine.rounds import Round
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget
from decoding.errors import ModelUnavailable
from decoding.heads.head import (
    SHIPPED,
    HeadMismatch,
    HeadUnavailable,
    OtherTarget,
    Storage,
    find_head,
    head_of,
    load_head,
    save_head,
)
from decoding.heads.kinds import KINDS, NameTaken, freeze, frozen_name, frozen_targets
from decoding.heads.on_kernels.drafters import KernelReader
from decoding.heads.on_kernels.layers import HeadLayers, KeptRows
from decoding.heads.on_torch.context import to_target
from decoding.methods.registry import METHODS, ready_methods
from decoding.serving.load import load_text_decoder
from decoding.targets.int8.buffers import FloatLayout, Pages
from decoding.targets.prefix_cache import Entry, PrefixCache
from kernels.cpu.processor import variant
from tests.decoding.models.random_heads import ready_method, small_head
from tests.decoding.models.tiny_models import tiny_checkpoint

TARGET = TargetIdentity("b" * 64, "a" * 64, "p" * 8)


@pytest.mark.parametrize("storage", ["fp32", "bf16", "int4"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_read_as_it_was_written(kind: str, storage: Storage, tmp_path: Path) -> None:
    """Guards against sizes that the file leaves out, and against nibbles, groups or rows that change places."""
    head = small_head(kind, hidden=32, vocab=20)
    head.config = replace(head.config, frequent=(3, 5))
    size = save_head(head, tmp_path, TARGET, storage)
    again = load_head(tmp_path)
    assert size == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert (again.config, again.identity) == (head.config, TARGET)
    for name, tensor in head.state_dict().items():
        error = {"fp32": 0.0, "bf16": 0.005, "int4": 0.13}[storage] * tensor.abs().max()
        torch.testing.assert_close(again.state_dict()[name], tensor, atol=float(error), rtol=0)


def test_int4_takes_four_and_a_half_bits_and_little_accuracy() -> None:
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    weight[3, :32] = 0.0
    codes, scale = quantised(weight)
    assert codes.numel() + 2 * scale.numel() == weight.numel() * 4.5 / 8
    error = (torch.from_numpy(restored(codes.numpy(), scale.numpy())) - weight).square().mean()
    plain = (weight.view(64, 3, 32).abs().amax(2) / 7).repeat_interleave(32, 1)
    rounded = ((weight / plain.clamp_min(1e-9)).round() * plain - weight).square().mean()
    assert error < 0.85 * rounded, "the scale is searched for"
    odd = {"a": torch.randn(5, 33), "b.scale": torch.ones(3)}
    assert all(torch.allclose(value, odd[name], atol=2e-3) for name, value in unpacked(packed(odd)).items())


def test_another_target_is_told(tmp_path: Path) -> None:
    save_head(small_head("dflash", 32, 20), tmp_path, TARGET)
    head, other = find_head("dflash", str(tmp_path)), replace(TARGET, adapter_sha256=None)

    def on(width: int, identity: TargetIdentity | None) -> Context:
        matrix = torch.zeros(20, width)
        return Context(Sampler(), matrix, matrix, LookupCorpus(), (lambda: identity) if identity else None)

    with pytest.warns(OtherTarget, match="another target: adapter aaaaaaaaaaaa and not none"):
        to_target(head, on(32, other))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for known in (None, TARGET, replace(TARGET, prompt_hash=None)):
            to_target(head, on(32, known))
        with pytest.raises(HeadMismatch, match="another target"):
            to_target(head, on(32, other))
    with pytest.raises(HeadMismatch, match="20 tokens of width 32; the model has 20 of width 64"):
        to_target(head, on(64, None))


def test_a_missing_or_damaged_head_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(HeadUnavailable, match=r"nowhere holds none: train one \(sqlagent train head --method dflash\)"):
        find_head("dflash", str(tmp_path / "nowhere"))
    save_head(small_head("domino", 32, 20), tmp_path, TARGET)
    told = json.loads((tmp_path / "config.json").read_text())
    for change, words in (
        ({"format": 9}, "format 9"),
        ({"kind": "oracle"}, "no head of kind 'oracle'"),
        ({"sizes": {"layers": 2}}, "damaged"),
        ({"sizes": {"storeys": 2}}, "no size storeys"),
        ({"target": {}}, "damaged"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(told | change))
        with pytest.raises(ModelUnavailable, match=words) as error:
            load_head(tmp_path)
        assert "\n" not in str(error.value)


def test_a_rewritten_folder_is_read_anew_and_else_read_once(tmp_path: Path) -> None:
    save_head(small_head("dflash", 32, 20), tmp_path, TARGET)
    once = find_head("dflash", str(tmp_path))
    assert find_head("dflash", str(tmp_path)) is once
    (tmp_path / "config.json").touch()
    assert find_head("dflash", str(tmp_path)) is not once


def test_the_head_of_a_target_is_the_shipped_one_that_was_trained_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding.heads.head, "SHIPPED", tmp_path)
    base = replace(TARGET, adapter_sha256=None, prompt_hash=None)
    save_head(small_head("dflash", 32, 20), tmp_path / "dflash", TARGET)
    assert head_of(TARGET, "dflash") is find_head("dflash")
    assert head_of(replace(TARGET, prompt_hash=None), "dflash") is find_head("dflash"), "a decoder has no prompts"
    assert head_of(base, "dflash") is None
    assert head_of(TARGET, "domino") is None, "none is shipped"


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


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
@pytest.mark.usefixtures("one_thread")
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


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
@pytest.mark.usefixtures("one_thread")
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


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
@pytest.mark.usefixtures("one_thread")
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


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
@pytest.mark.usefixtures("one_thread")
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


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
@pytest.mark.usefixtures("one_thread")
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


ONE, OTHER = TargetIdentity("base", "adapter", "prompts"), TargetIdentity("base", "retrained", "prompts")


def test_a_name_is_given_once(tmp_path: Path) -> None:
    listed = tmp_path / "targets.json"
    assert frozen_name(ONE, listed) is None
    freeze("target-v1", ONE, listed)
    freeze("target-v1", ONE, listed)
    with pytest.raises(NameTaken, match=r"adapter adapter and not retrained.*target-v2"):
        freeze("target-v1", OTHER, listed)
    freeze("target-v2", OTHER, listed)
    assert [frozen_name(each, listed) for each in (ONE, OTHER)] == ["target-v1", "target-v2"]
    assert list(frozen_targets(listed)) == ["target-v1", "target-v2"]


@pytest.mark.parametrize("change", ["base_sha256", "adapter_sha256", "prompt_hash"])
def test_another_base_adapter_or_prompt_is_another_target(tmp_path: Path, change: str) -> None:
    freeze("target-v1", ONE, tmp_path / "targets.json")
    told = {name: getattr(ONE, name) for name in ("base_sha256", "adapter_sha256", "prompt_hash")}
    assert frozen_name(TargetIdentity(**told | {change: "another"}), tmp_path / "targets.json") is None


def test_what_ships_is_frozen_with_heads_of_its_own() -> None:
    adapter = read_adapter(SHIPPED_ADAPTER)
    shipped = target_identity(adapter.about.base_sha256, adapter, adapter.about.prompt_version)
    assert frozen_name(shipped) == list(frozen_targets())[-1]
    for kind in KINDS:
        assert load_head(SHIPPED / kind).identity == shipped, kind
    assert set(ready_methods(shipped)) == set(METHODS)
    another = ready_methods(replace(shipped, adapter_sha256="another"))
    assert {"plain", "jacobi_forcing"} <= set(another) and not {"path_tree", "ddtree"} & set(another)


def test_all_that_ships_is_small() -> None:
    """At most 35 MiB of weights, and 3.1 MB a head, 4.7 for one of two layers; what is in training stays in the repository."""
    files = [path for path in SHIPPED.parent.rglob("*") if path.is_file() and path.parent.name != "next"]
    sizes = {path: path.stat().st_size for path in files}
    assert sum(sizes.values()) < 35 << 20
    for folder in {path.parent for path in files if path.name == "head.safetensors"}:
        most = 4_700_000 if folder == SHIPPED / "path_tree" else 3_100_000
        assert sum(size for path, size in sizes.items() if path.parent == folder) <= most, folder
