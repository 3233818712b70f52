"""What a round on a GPU costs beside its kernels: waits for the device, launches of compaction, rows of the LM head, graphs."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.targets import cuda as cuda_model
from decoding.targets import cuda as cuda_table
from decoding.targets.cuda import CudaModel
from decoding.targets.fast_target import FastTarget
from kernels.gpu import choice, compaction, tables
from kernels.gpu.tables import Graph, RecentGraphs
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.models.waits import Waits, as_kernels
from tests.decoding.targets.cuda.test_cuda_target import PATH, TREE, tokens

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
