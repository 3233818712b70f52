"""The GPU's target against `fast_target`: with the kernels' references, and once with the kernels themselves, interpreted.

On a CPU nothing is captured; buckets, padding and buffers are those of the graphs. Where there is a GPU, all of it runs there.
"""

import random
from pathlib import Path

import pytest
import torch

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.engine.tensor_choice import chosen_together
from decoding.methods.registry import load_method
from decoding.targets.cuda import CudaModel, bucket_of
from decoding.targets.fast_target import FastTarget
from kernels.gpu import choice, tree_attention
from tests.decoding.models.doubles import Fuzz
from tests.decoding.models.tiny_models import FAMILIES, Family, tiny_checkpoint

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
