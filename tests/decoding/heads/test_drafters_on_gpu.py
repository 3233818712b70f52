"""Drafters on a GPU: what they run on, and how often they wait for it. On a machine without one, doubles stand for it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.loop import Request, decode
from decoding.engine.method import Drafting
from decoding.engine.sampler import Sampler
from decoding.heads.on_torch import block, drafters
from decoding.heads.on_torch.drafters import TorchReader
from decoding.targets import cuda
from decoding.targets.cuda import CudaModel
from decoding.targets.fast_target import FastTarget
from kernels.gpu import choice, compaction, tree_attention
from tests.decoding.heads.test_on_kernels import TEXT, contexts, head_of
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.models.waits import Waits, as_kernels


@pytest.fixture(autouse=True)
def references(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choice.choose is not None, "imported before: what is imported without the interpreter is compiled for a GPU"
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def reads(monkeypatch: pytest.MonkeyPatch, on_gpu: bool) -> tuple[list[torch.Tensor], type[Any]]:
    """A drafter's states after several readings, some of which are taken back, and its model's class."""
    drafters._small_model.cache_clear()
    monkeypatch.setattr(drafters, "runs_kernels", lambda device: on_gpu)
    (context, _), head = contexts(64), head_of("draft_model", 64, layers=2)
    reader = TorchReader(head, drafters.TensorContext.of(context), TEXT)  # type: ignore[arg-type]
    parts: list[tuple[Sequence[int], bool]] = [(TEXT[:9], True), ([3, 4], False), ([5], False), (TEXT[9:12], True)]
    return [reader.after([(reader, tokens, keep, 0, 0)])[0][0] for tokens, keep in parts], type(reader.head)


def test_a_draft_model_runs_on_captured_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager, the launches of its layers take longer than what they compute. A later reading leaves earlier states alone."""
    (want, plain), (got, captured) = (reads(monkeypatch, on_gpu) for on_gpu in (False, True))
    assert plain.__name__ == "FastModel" and captured is CudaModel
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=3e-5)
    drafters._small_model.cache_clear()


@pytest.mark.parametrize(
    ("name", "most"),
    [("medusa", 1), ("dflash", 1), ("ddtree", 1), ("jetspec", 1), ("path_tree", 8), ("eagle3", 8), ("falcon", 8)],
)
def test_a_drafter_waits_once_per_level(name: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens and log-probabilities of a level come together; nothing that goes in is waited for."""
    path = tiny_checkpoint(tmp_path, "llama", seed=3)
    target = FastTarget(CudaModel(load_config(path), read_weights(path), torch.float32, "cpu"))
    method, waits, counts = ready_method(name, target, "loud"), Waits(monkeypatch), list[list[str]]()
    as_kernels(waits, monkeypatch, (cuda, "rotate_and_store"), (cuda, "tree_attention"))
    drafting = method.drafting

    def counted(tokens: Sequence[int], room: int) -> Drafting:
        before = len(waits.seen)
        draft = yield from drafting(tokens, room)
        counts.append(waits.seen[before:])
        return draft

    monkeypatch.setattr(method, "drafting", counted)
    with waits:
        list(decode(target, [Request(tuple(range(3, 12)), method, 12, Sampler())]))
    assert counts
    for seen in counts:
        assert set(seen) <= {"cpu"}, "nothing but guesses that come out"
        assert len(seen) <= most


@pytest.mark.parametrize(
    ("name", "most"),
    [("dflash", 2), ("ddtree", 2), ("jetspec", 2), ("medusa", 2), ("falcon", 4), ("eagle3", 5), ("draft_model", 5)],
)
def test_a_round_of_sixteen_texts_waits_once_for_each_level(
    name: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the guesses of all texts, and for what the model chooses; each text once fetched its own guesses (17 waits with one
    level, 65 with four, which is the most that five tokens have).
    """
    for module in (block, drafters):
        monkeypatch.setattr(module, "runs_kernels", lambda device: True)
    drafters._small_model.cache_clear()
    path = tiny_checkpoint(tmp_path, "llama", seed=3)
    target = FastTarget(CudaModel(load_config(path), read_weights(path), torch.float32, "cpu"))

    def requests() -> list[Request]:
        return [Request(tuple(range(3, 9 + at)), ready_method(name, target, "loud"), 5) for at in range(16)]

    list(decode(target, requests()))  # captures the graphs
    waits = Waits(monkeypatch)
    kernels = [(cuda, "rotate_and_store"), (cuda, "tree_attention"), (compaction, "compact_reference")]
    kernels += [(tree_attention, "rotate_and_store"), (tree_attention, "tree_attention")]
    as_kernels(waits, monkeypatch, *kernels, (choice, "choose"))
    with waits:
        rounds = list(decode(target, requests()))
    forwards = 1 + max(each.index for each in rounds)
    assert len({each.sequence for each in rounds}) == 16 and forwards > 2
    assert len(waits.seen) <= most * forwards, waits.seen
    drafters._small_model.cache_clear()
