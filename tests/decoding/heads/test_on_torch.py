"""What heads on torch's operators keep and compute once, so that a GPU is not fed by the host."""

import gc
import weakref
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from decoding.engine.draft import Draft
from decoding.engine.experience import AcceptanceStats, RowCosts
from decoding.engine.method import Context, LookupCorpus, run_together
from decoding.engine.sampler import Sampler
from decoding.heads.modules import layer
from decoding.heads.modules.block import BlockHead, DominoHead
from decoding.heads.modules.drafters import Eagle3Head
from decoding.heads.on_torch import block, drafters
from decoding.heads.on_torch.block import TorchBlock, TorchPaths
from decoding.heads.on_torch.context import TensorContext
from decoding.heads.on_torch.drafters import TorchEagle3
from decoding.methods.registry import load_method
from decoding.methods.trees import Bounds, Frontier, Guesses, beam, budgeted
from tests.decoding.models.random_heads import small_head
from tests.decoding.models.waits import Launches

WIDTH, VOCAB = 16, 60
TOKENS = [3, 9, 4, 21, 7]

pytestmark = pytest.mark.usefixtures("one_thread")


def context(sampler: Sampler = Sampler()) -> TensorContext:
    chance = torch.Generator().manual_seed(0)
    embedding, lm_head = (torch.randn(VOCAB, WIDTH, generator=chance) for _ in range(2))
    return TensorContext(sampler, embedding, lm_head, LookupCorpus())


def domino() -> DominoHead:
    head = small_head("path_tree", WIDTH, VOCAB)
    assert isinstance(head, DominoHead)
    return head


def begun(head: DominoHead, target: TensorContext) -> TorchPaths:
    runtime = TorchPaths(head, target, TOKENS)
    runtime.append(torch.randn(4, len(head.config.taps), WIDTH, generator=torch.Generator().manual_seed(1)))
    return runtime


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("bounds", [Bounds(12), Bounds(40, 0.001), Bounds(5)])
def test_a_beam_on_the_device_is_the_one_of_the_host(
    temperature: float, bounds: Bounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every level went to the host and back, and its operators were launched one by one (14 for each level)."""
    runtime = begun(domino(), context(Sampler(temperature, 3)))
    states = runtime.states(TOKENS[-1:], 4)
    below = runtime.expansion(states, TOKENS, 3)

    def expand(frontier: Frontier) -> Guesses:
        return below(frontier.depth, frontier.tokens, frontier.rows)

    want = beam(expand, 4, len(states), bounds, 3)
    with Launches(monkeypatch) as launches:
        found = runtime.searched(states, TOKENS, 4, 3)
    assert temperature or launches.count <= 20, "with noise, its 200 operators are added"
    got = budgeted(*bounds.above_floor(*found), bounds.budget)
    paths = [
        sorted(tuple(each.tokens[i] for i in each.path(node)) for node in range(len(each))) for each in (want, got)
    ]
    assert paths[0] == paths[1] and len(got) == len(want) > 2


def test_angles_are_computed_once_for_all_layers_and_sent_to_a_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three copies to the device for each layer and pass."""
    copies: list[Any] = []
    monkeypatch.setattr(layer, "sent", lambda *given: copies.append(given) or torch.from_numpy(given[0]))
    layer._frequencies.cache_clear()
    runtime = begun(domino(), context())
    for _ in range(3):
        runtime.states(TOKENS[-1:], 4)
    assert len(copies) == 1


def rounds(kind: str, captures: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[torch.Tensor], int]:
    """The states that two texts get in four rounds, some of which see a forced token, and what the last launched."""
    monkeypatch.setattr(block, "runs_kernels", lambda device: captures)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    head, target, chance = small_head(kind, WIDTH, VOCAB), context(), torch.Generator().manual_seed(2)
    assert isinstance(head, BlockHead)
    texts = [TorchBlock(head, target, TOKENS) for _ in range(2)]
    found, launches = [], Launches(monkeypatch)
    for new in ((45, 3), (2, 5), (1, 1), (4, 2)):
        for text, count in zip(texts, new, strict=True):
            text.append(torch.randn(count, len(head.config.taps), WIDTH, generator=chance))
        launches.count = 0
        with launches:
            found += texts[0].together([(texts[0], [7], 4), (texts[1], [9, 3][: new[0]], 4)])
    return found, launches.count


@pytest.mark.parametrize("kind", ["dflash", "jetspec", "domino", "path_tree"])
def test_a_captured_pass_gives_the_states_of_the_eager_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round concatenated all keys and values of the context and launched each operator of every layer."""
    (want, eager), (got, captured) = (rounds(kind, captures, monkeypatch) for captures in (False, True))
    assert len(got) == len(want) == 8
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert captured < eager / 3, (eager, captured)


def trees(captures: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[torch.Tensor], int]:
    """The states of three rounds' trees, and what the last launched."""
    monkeypatch.setattr(drafters, "runs_kernels", lambda device: captures)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    head, chance = small_head("eagle3", WIDTH, VOCAB), torch.Generator().manual_seed(2)
    assert isinstance(head, Eagle3Head)
    text, tokens = TorchEagle3(head, context(), TOKENS), [*range(3, 59), *range(3, 59)]
    found, launches = [], Launches(monkeypatch)
    for new in (70, 3, 1):
        launches.count = 0
        with launches:
            text.read(torch.randn(new, len(head.config.taps), WIDTH, generator=chance))
            ((states, _),) = text.paired([(text, tokens, 0)])
            for level in range(1, 4):
                parents = [0, 0] if level == 1 else [1, 0]
                asked = text, [level, level + 9], states, parents, text.pairs + level, 0
                ((states, _),) = text.grown([asked])
                found.append(states)
    return found, launches.count


def test_a_captured_level_of_eagle3_gives_the_states_of_the_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every level concatenated all keys and values of the text and launched each operator."""
    (want, eager), (got, captured) = (trees(captures, monkeypatch) for captures in (False, True))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert captured < eager / 4, (eager, captured)


DRAFTERS = ["medusa", "eagle3", "falcon", "draft_model"]


def drafts(name: str, texts: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Draft], int]:
    """The first draft of each text, all under way together, and what they launch."""
    methods, known = [], replace(context(), runtime="cuda")
    for place in range(texts):
        method = load_method(name, head=small_head(name, WIDTH, VOCAB, "loud"))  # type: ignore[arg-type]
        chance = torch.Generator().manual_seed(place)
        tokens = [*TOKENS, place]
        hidden = torch.randn(len(TOKENS), len(method.taps), WIDTH, generator=chance) if method.taps else None
        method.begin(tokens, hidden, known)
        methods.append((method, tokens))
    found: dict[int, Draft] = {}
    with Launches(monkeypatch) as launches:
        under_way = {place: method.drafting(tokens, 6) for place, (method, tokens) in enumerate(methods)}
        while under_way:
            passes = []
            for place, drafting in list(under_way.items()):
                try:
                    passes.append(next(drafting))
                except StopIteration as end:
                    found[place] = end.value
                    del under_way[place]
            run_together(passes)
    return [found[place] for place in range(texts)], launches.count


@pytest.mark.parametrize("name", DRAFTERS)
def test_sixteen_texts_launch_hardly_more_than_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text launched all of its drafter's passes by itself: sixteen times as many."""
    monkeypatch.setattr(drafters, "runs_kernels", lambda device: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    drafters._small_model.cache_clear()
    (_, one), (drafted, all_of_them) = (drafts(name, texts, monkeypatch) for texts in (1, 16))
    assert min(map(len, drafted)) > 0
    assert all_of_them < 6 * one, (one, all_of_them)
    drafters._small_model.cache_clear()


def test_the_rows_of_a_whole_vocabulary_are_made_once_for_a_head() -> None:
    head, target = domino(), context()
    first, second = TorchPaths(head, target, TOKENS), TorchPaths(head, target, TOKENS[:2])
    assert first._factor_rows is second._factor_rows
    assert TorchPaths(head, context(), TOKENS)._factor_rows is not first._factor_rows, "of another LM head"


@pytest.mark.parametrize("kind", ["path_tree", "eagle3"])
def test_graphs_and_tables_go_with_their_head(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were kept by a table whose values referred to its keys: gigabytes of every head stayed on a GPU."""
    small_head.cache_clear()
    rounds(kind, True, monkeypatch) if kind == "path_tree" else trees(True, monkeypatch)
    head = weakref.ref(small_head(kind, WIDTH, VOCAB))
    found = head()
    assert found is not None and "graphs" in found.kept
    del found
    small_head.cache_clear()
    gc.collect()
    assert head() is None


def test_a_context_on_torch_is_the_context() -> None:
    """Caches, costs, experience and further tokens were left out."""
    plain = Context(
        Sampler(),
        torch.eye(4).numpy(),
        torch.eye(4).numpy(),
        LookupCorpus(),
        prompts=3,
        row_costs=RowCosts.even(0.1),
        draft_caches={},
        experience=AcceptanceStats(),
        ahead=2,
    )
    found = TensorContext.of(plain)
    for each in fields(Context):
        if each.name not in ("embedding", "lm_head"):
            assert getattr(found, each.name) is getattr(plain, each.name)
