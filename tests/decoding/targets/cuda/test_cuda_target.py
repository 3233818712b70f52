"""The GPU's target against `fast_target`: with the kernels' references, and once with the kernels themselves, interpreted.

On a CPU nothing is captured; buckets, padding and buffers are those of the graphs. Where there is a GPU, all of it runs there.

Mask tokens on the GPU's target: what they say is what they say on `fast_target`, and no other row sees them.

What a round on a GPU costs besides its kernels: waits for the device, launches of compaction, rows of the LM head, graphs.
"""

import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from decoding.checkpoints.mask_adapter import Ahead
from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import ROOT, Draft
from decoding.engine.loop import Request, decode
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.engine.tensor_choice import chosen_together
from decoding.methods.registry import load_method
from decoding.targets import cuda as cuda_model
from decoding.targets import cuda as cuda_table
from decoding.targets.cuda import CudaModel, bucket_of
from decoding.targets.fast_target import FastModel, FastTarget
from kernels.gpu import choice, compaction, tree_attention
from kernels.gpu import ragged as tables
from kernels.gpu.ragged import Graph, RecentGraphs
from tests.decoding.models.doubles import Fuzz
from tests.decoding.models.random_heads import random_masks
from tests.decoding.models.tiny_models import FAMILIES, Family, tiny_checkpoint
from tests.decoding.models.waits import Waits, as_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TREE = Draft((5, 9, 7, 6, 8), (-1, -1, 1, 1, 3))
PATH = (1, 3, 4)


@pytest.fixture
def references(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choice.choose is not None, "imported before: what is imported without the interpreter is compiled for a GPU"
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def both(folder: Path, family: Family) -> tuple[FastTarget, FastTarget]:
    path = tiny_checkpoint(folder, family, seed=3)
    config = load_config(path)
    return FastTarget.load(path), FastTarget(CudaModel(config, read_weights(path), torch.float32, DEVICE))


def tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 300), k=count)


def walked(target: FastTarget, long: int) -> list[torch.Tensor]:
    """Logits and hidden states of two sequences that are prompted together, and of the first one's next round alone."""
    one, two = (target.open([], Sampler(), taps) for taps in ((0, 1, 2), (2,)))
    scores = target.score(
        [ForwardInput(one, tokens(long, 1), TREE), ForwardInput(two, tokens(4, 2), Draft.chain(tokens(3, 4)))]
    )
    target.commit(one, PATH)
    target.commit(two, (0,))
    scores += target.score([ForwardInput(one, tokens(2, 3), TREE)])
    assert one.hidden is not None
    parts = [torch.as_tensor(part) for each in scores for part in (each.logits, each.hidden) if part is not None]
    return [part.cpu() for part in (*parts, torch.as_tensor(one.hidden))]


def same(folder: Path, family: Family, long: int) -> None:
    want, got = (walked(target, long) for target in both(folder, family))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=6e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("references")
def test_trees_batches_commits_and_taps(family: Family, tmp_path: Path) -> None:
    """600 tokens go without a bucket, in pieces that see the pieces before them."""
    same(tmp_path / "short", family, 11)
    same(tmp_path / "long", family, 300)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows that belong to no sequence hold anything
def test_with_the_kernels_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_attention, "_PROGRAMS", 8)  # the interpreter runs one after another
    same(tmp_path, "qwen3", 4)


@pytest.mark.usefixtures("references")
def test_what_methods_with_heads_need_is_captured_before_their_first_round(tmp_path: Path) -> None:
    """Guards against seconds of capturing in the rounds that a benchmark counts."""
    _, target = both(tmp_path, "llama")
    model = target.model
    assert isinstance(model, CudaModel)
    target.open(tokens(5, 1), Sampler())
    assert not len(model._graphs)
    target.open(tokens(5, 1), Sampler(), (1, 2))
    assert len(model._graphs) == len(cuda_model.CAPTURED_AT_START)
    target.open(tokens(5, 1), Sampler(), (1, 2))
    assert len(model._graphs) == len(cuda_model.CAPTURED_AT_START)


@pytest.mark.usefixtures("references")
def test_every_draft_gives_plain_text(tmp_path: Path) -> None:
    """Buffers are used again round after round, by drafts of every size."""
    fast, cuda = both(tmp_path, "llama")

    def text(target: FastTarget, method: object, sampler: Sampler) -> list[int]:
        request = Request(tuple(tokens(20, 1)), method, 24, sampler)  # type: ignore[arg-type]
        return [token for each in decode(target, [request]) for token in each.committed]

    for sampler in (Sampler(), Sampler(0.8, 1)):
        want = text(fast, load_method("plain"), sampler)
        assert len(set(want)) > 3
        for method in (load_method("plain"), load_method("jacobi"), Fuzz(1, vocab=300), Fuzz(2, vocab=300)):
            assert text(cuda, method, sampler) == want


@pytest.mark.parametrize(
    ("counts", "heads", "bucket"),
    [
        ([1], 1, (1, 1, 1, 1)),
        ([2], 2, (1, 8, 8, 8)),
        ([65], 1, (1, 72, 72, 1)),
        ([520], 0, (1, 520, 520, 0)),
        ([521], 1, None),
        ([1, 1], 2, (2, 8, 1, 8)),
        ([9, 1, 1], 9, (4, 16, 16, 16)),
        ([260, 261], 2, None),
    ],
)
def test_sizes_are_rounded_up(counts: list[int], heads: int, bucket: tuple[int, int, int, int] | None) -> None:
    assert bucket_of(counts, heads) == bucket


def test_the_choice_is_the_samplers() -> None:
    """Seeds of 64 bits, as requests and votes have them."""
    torch.manual_seed(0)
    logits = torch.randn(4, 1500)
    for sampler in (Sampler(0.9, 7).derive("vote", 2), Sampler(1.0, -1), Sampler(1.0, 2**64 - 5)):
        want = [sampler.pick(row.float().cpu().numpy(), 40 + place) for place, row in enumerate(logits)]
        best = int(logits[3].argmax())
        assert chosen_together([sampler, Sampler()], logits.to(DEVICE), [range(40, 43), [43]]) == [want[:3], [best]]
        assert chosen_together([sampler], logits.to(DEVICE), [range(40, 44)]) == [want]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows that belong to no sequence hold anything
def test_a_path_out_of_place_where_nothing_is_tapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under the default method: the table of hidden states has no planes."""
    monkeypatch.setattr(tree_attention, "_PROGRAMS", 8)
    outcomes = []
    for target in both(tmp_path, "llama"):
        one = target.open([], Sampler())
        target.score([ForwardInput(one, tokens(4, 1), TREE)])
        target.commit(one, PATH)
        (scores,) = target.score([ForwardInput(one, tokens(1, 3), Draft())])
        outcomes.append(torch.as_tensor(scores.logits))
    torch.testing.assert_close(*outcomes, rtol=0, atol=6e-5)


__all__ = ["references"]
DEPTHS = 3


def both_cuda_masks(folder: Path) -> tuple[FastTarget, FastTarget]:
    path = tiny_checkpoint(folder, "llama", seed=3)
    config, masks = load_config(path), random_masks(load_config(path), DEPTHS)
    heads = np.random.default_rng(1).standard_normal((2, 2, 2, 6, config.hidden_size), dtype=np.float32)
    masks = replace(masks, ahead=Ahead(*heads))
    models = (
        FastModel(config, read_weights(path), masks=masks),
        CudaModel(config, read_weights(path), torch.float32, DEVICE, masks),
    )
    fast, cuda = (FastTarget(model) for model in models)
    return fast, cuda


def said(target: FastTarget, masked: bool) -> torch.Tensor:
    """Logits after a root, three guesses and, where `masked`, three masks after the root and after the second guess; then what
    some of those say of later tokens.
    """
    first, second, third = target.mask_tokens[:3]
    tree = Draft((5, 9, 7, first, second, third, first, second, third), (-1, 0, 0, -1, 3, 4, 1, 6, 7))
    draft = tree if masked else Draft((5, 9, 7), (-1, 0, 0))
    sequence = target.open([], Sampler(), (1, 2))
    (scores,) = target.score([ForwardInput(sequence, tokens(6, 1), draft)])
    logits = torch.as_tensor(scores.logits).cpu().clone()
    assert target.ahead == 2 and scores.ahead
    if masked:
        ahead = torch.from_numpy(scores.ahead([(3, 1), (8, 2), (ROOT, 1), (1, 2)], None))
        logits = torch.cat([logits, ahead])
    target.close(sequence)
    return logits


def check(folder: Path, error: float = 0.0) -> None:
    """error: by which a row may differ with masks in the same forward, where torch sums in another order for more rows."""
    fast, cuda = both_cuda_masks(folder)
    with_masks, without = said(cuda, True), said(cuda, False)
    torch.testing.assert_close(with_masks, said(fast, True), rtol=0, atol=6e-5)
    torch.testing.assert_close(with_masks[:4], without, rtol=0, atol=error)
    assert not torch.allclose(with_masks[4], with_masks[5], atol=0.1)


@pytest.mark.usefixtures("references")
def test_masks_say_what_they_say_elsewhere(tmp_path: Path) -> None:
    check(tmp_path, error=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows that belong to no sequence hold anything
def test_with_the_kernels_themselves_cuda_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_attention, "_PROGRAMS", 8)
    check(tmp_path)


@pytest.mark.usefixtures("references")
@pytest.mark.parametrize("name", ["mask_tokens", "adaptive", "jacobi_forcing"])
def test_methods_that_ask_masks_give_plain_text(tmp_path: Path, name: str) -> None:
    _, cuda = both_cuda_masks(tmp_path)
    for sampler in (Sampler(), Sampler(0.8, 1)):
        texts = []
        for method in ("plain", name):
            request = Request(tuple(tokens(20, 1)), load_method(method), 24, sampler)
            rounds = list(decode(cuda, [request]))
            texts.append([token for each in rounds for token in each.committed])
        assert texts[1] == texts[0] and len(set(texts[0])) > 3


BATCH = 16


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FastTarget:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    path = tiny_checkpoint(tmp_path, "llama", seed=3)
    return FastTarget(CudaModel(load_config(path), read_weights(path), torch.float32, "cpu"))


def one_round(target: FastTarget, sequences: list[Any]) -> list[list[int]]:
    """Score a tree below one token each, take the choices, and keep a path that is out of place."""
    scores = target.score([ForwardInput(each, tokens(1, at), TREE) for at, each in enumerate(sequences)])
    chosen = [[each.choice(node) for node in range(-1, len(TREE))] for each in scores]
    for each in sequences:
        target.commit(each, PATH)
    return chosen


def test_the_double_counts_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    device, far = torch.device("cpu"), torch.ones(3)
    with Waits(monkeypatch) as waits:
        near = torch.tensor([1, 2])
        near.tolist()
        near.to(device, non_blocking=True)
        far[:2].copy_(near, non_blocking=True)
        assert waits.seen == []
        near.to(device).tolist()
        torch.tensor([1], device=device)
        far[[0, 1]].sum()
        far[:2].copy_(near)
    assert waits.seen == ["to", "tolist", "tensor", "__getitem__", "copy_"]


@pytest.mark.parametrize("taps", [(), (1, 2)])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_round_of_sixteen_waits_once(
    target: FastTarget, temperature: float, taps: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once per sequence, for numbers that go in, choices that come out, or rows that are moved."""
    sequences = [target.open([], Sampler(temperature, seed), taps) for seed in range(BATCH)]
    one_round(target, sequences)
    with Waits(monkeypatch) as waits:
        kernels = ((cuda_model, "rotate_and_store"), (cuda_model, "tree_attention"), (compaction, "compact_reference"))
        as_kernels(waits, monkeypatch, *kernels, (choice, "choose"))
        one_round(target, sequences)
        target.score([ForwardInput(sequences[0], [5], Draft())])  # makes the moves
    assert waits.seen == ["tolist", "tolist"], "one per forward"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA itself counts")
def test_cuda_counts_the_same(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, "llama", seed=3)
    target = FastTarget(CudaModel(load_config(path), read_weights(path), torch.float32, "cuda"))
    sequences = [target.open([], Sampler(0.7, seed)) for seed in range(BATCH)]
    one_round(target, sequences)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            one_round(target, sequences)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len([each for each in seen if "called a synchronizing" in str(each.message)]) == 1


def test_the_moves_of_a_round_are_made_together(target: FastTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    compact = cuda_table.compact
    monkeypatch.setattr(cuda_table, "compact", lambda moves: (made.append(len(moves)), compact(moves)))
    sequences = [target.open([], Sampler()) for _ in range(BATCH)]
    one_round(target, sequences)
    assert made == []
    one_round(target, sequences)
    assert made == [2 * BATCH], "keys and values, and hidden states"


def heads_of(target: FastTarget, run: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows that the LM head sees, call by call."""
    rows: list[int] = []
    head = target.model.head
    monkeypatch.setattr(target.model, "head", lambda x: (rows.append(len(x)), head(x))[1])
    run()
    return rows


def test_the_lm_head_sees_only_rows_that_are_asked_for(target: FastTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt's last row; not its others, and not the rows that fill a bucket up."""
    monkeypatch.setattr(cuda_model.CudaModel, "forward_rows", 64)
    work = [ForwardInput(target.open([], Sampler()), tokens(200, 1), Draft())]
    assert heads_of(target, partial(target.score, work), monkeypatch) == [1]


def test_prompts_go_in_large_chunks(target: FastTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every forward reads all weights: 1,000 rows at once, not 128 or 512."""
    rows: list[int] = []
    forward = target.model.forward
    monkeypatch.setattr(
        target.model, "forward", lambda parts, *rest: (rows.append(sum(map(len, parts))), forward(parts, *rest))[1]
    )
    work = ForwardInput(target.open([], Sampler()), tokens(1000, 1), Draft())
    monkeypatch.setattr(target.model, "config", replace(target.model.config, max_positions=2000))
    target.score([work])
    assert rows == [1000]


def test_a_prepared_model_captures_nothing_in_plain_rounds(target: FastTarget) -> None:
    model = target.model
    assert isinstance(model, CudaModel)
    model.prepare()
    captured = len(model._graphs)
    assert captured == len(cuda_model.CAPTURED_AT_START)
    sequence = target.open([], Sampler())
    for draft in (Draft(), Draft.chain([5, 6]), TREE):
        target.score([ForwardInput(sequence, [7], draft)])
        target.commit(sequence, ())
    assert len(model._graphs) == captured


def test_graphs_are_bounded_and_the_unused_go_first() -> None:
    recent = RecentGraphs[str](2)
    assert [recent.get(key, lambda key=key: f"{key}!") for key in "abac"] == ["a!", "b!", "a!", "c!"]
    assert len(recent) == 2
    assert recent.get("a", lambda: "again") == "a!"
    assert recent.get("b", lambda: "again") == "again"


def test_sizes_of_all_kinds_leave_a_bounded_number_of_graphs(
    target: FastTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_model, "MOST_GRAPHS", 3)
    sequences = [target.open([], Sampler()) for _ in range(9)]
    for count in range(1, 9):
        target.score(
            [ForwardInput(each, tokens(count, 1), Draft.chain(tokens(count, 2))) for each in sequences[:count]]
        )
    assert isinstance(target.model, CudaModel)
    assert len(target.model._graphs) <= 3


class FakeCuda:
    """`torch.cuda` as `Graph` uses it; it records how graphs are captured."""

    CUDAGraph = partial(SimpleNamespace, replay=lambda: None)

    def __init__(self) -> None:
        self.captures: list[dict[str, Any]] = []

    def current_stream(self, device: object) -> Any:
        return SimpleNamespace(wait_stream=lambda other: None)

    Stream = current_stream

    def stream(self, stream: object) -> Any:
        return torch.no_grad()

    def graph(self, graph: object, **options: Any) -> Any:
        self.captures.append(options)
        return torch.no_grad()


def test_other_threads_cannot_break_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the mode "global" an allocation by any other thread of the process ends the capture with an error."""
    cuda = FakeCuda()
    monkeypatch.setattr(tables.torch, "cuda", cuda)
    assert Graph(lambda: 7, torch.device("cuda"))() == 7
    (options,) = cuda.captures
    assert options["capture_error_mode"] == "thread_local"
