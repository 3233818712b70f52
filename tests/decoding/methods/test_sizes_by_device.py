"""Drafts have the sizes of a processor on a processor, and the published ones where rows hardly cost anything."""

from math import log

import pytest
import torch

from decoding.engine.draft import Draft
from decoding.engine.experience import default_costs
from decoding.engine.loop import LEAST_DRAFT, Request, decode, shared
from decoding.engine.method import DeviceFloat, DeviceInt, on_device
from decoding.engine.rounds import text_tokens
from decoding.methods.adaptive import Adaptive
from decoding.methods.registry import METHODS, UnknownMethod, load_method, method_options
from decoding.methods.trees import Bounds, Level, best_first
from decoding.timing import measured_rows
from tests.decoding.methods.test_jacobi_forcing import PROMPT, rounds_of
from tests.decoding.models.random_heads import small_head
from tests.decoding.models.toy import VOCAB, ToyTarget

pytestmark = pytest.mark.usefixtures("one_thread", "still_clock")


def on_gpu() -> ToyTarget:
    """A toy that says it is computed on a GPU, without masks."""
    target = ToyTarget(lambda tokens: toy_rows(tokens[-1]))
    target.runtime, target.prompt_mask = "cuda", False
    return target


def toy_rows(last: int) -> torch.Tensor:
    return 3.0 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(last))


def test_rows_are_cheap_on_a_gpu_before_they_were_measured() -> None:
    """0.06 of a step for a row made `adaptive` 27 times too stingy there: 64 rows take 1.14 steps."""
    assert default_costs("cuda").at(64) == pytest.approx(1.14)
    assert default_costs("cuda").at(256) == pytest.approx(1.47)
    assert default_costs("cpu").at(2) == pytest.approx(1.06)


def test_tables_of_a_gpu_go_to_256_rows() -> None:
    assert measured_rows("cuda")[-1] == 256 and measured_rows("cuda")[0] == 1
    assert measured_rows("kernels") == measured_rows("cpu") == (1, 4, 8, 16, 24, 32, 48)


BUDGETS = {"medusa": 63, "eagle3": 59, "falcon": 106, "ddtree": 256, "jetspec": 256, "path_tree": 64}


@pytest.mark.parametrize("name", BUDGETS)
def test_trees_are_as_published_on_a_gpu_and_pruned_by_their_budget_alone(name: str) -> None:
    given = {
        key: (int(value), value.gpu) for key, value in method_options(name).items() if isinstance(value, DeviceInt)
    }
    assert given["budget"][1] == BUDGETS[name] and given["budget"][0] <= 24
    assert on_device(method_options(name)["least"], "cuda") == 0.0 and method_options(name)["least"] == 0.05
    kind = "dflash" if name == "ddtree" else name
    sizes, texts = [], []
    for target in (on_gpu(), on_gpu()):
        target.runtime = target.runtime if sizes else "cpu"
        rounds = rounds_of(load_method(name, head=small_head(kind, VOCAB, VOCAB)), target, max_new_tokens=30)
        sizes.append(max(len(each.draft_tokens) for each in rounds))
        texts.append(text_tokens(rounds))
    assert sizes[0] < sizes[1] <= BUDGETS[name] and texts[0] == texts[1]


def test_jacobi_forcing_on_a_gpu_has_the_authors_blocks_for_a_model_without_masks() -> None:
    first, *_ = rounds_of(load_method("jacobi_forcing", candidates=0), on_gpu(), max_new_tokens=200)
    assert len(first.draft_tokens) == 64 and set(first.draft_tokens) <= set(PROMPT)
    target = ToyTarget(lambda tokens: toy_rows(tokens[-1] % VOCAB))
    target.runtime, target.mask_tokens = "cuda", range(VOCAB, VOCAB + 4)
    first, *_ = rounds_of(load_method("jacobi_forcing", candidates=0), target, max_new_tokens=200)
    assert len(first.draft_tokens) <= 4, "masks speak for a few positions"


def test_masks_stand_for_as_many_positions_as_rows_allow_on_a_gpu() -> None:
    """Without heads that let one mask speak for several positions: rows are cheap enough for all masks."""
    target = ToyTarget(lambda tokens: toy_rows(tokens[-1] % VOCAB))
    target.runtime, target.mask_tokens = "cuda", range(VOCAB, VOCAB + 12)
    first, *_ = rounds_of(Adaptive(copies=0), target, max_new_tokens=60)
    assert sum(token >= VOCAB for token in first.draft_tokens) == 12


def test_a_large_draft_gets_the_rows_that_small_ones_leave() -> None:
    """Sixteen texts had 16 rows each, whatever they drafted."""
    methods = [load_method("plain") for _ in range(15)] + [load_method("jacobi_forcing", candidates=0)]
    requests = [Request(PROMPT, method, 40) for method in methods]
    last = [each for each in decode(on_gpu(), requests) if each.sequence == 15]
    assert len(last[0].draft_tokens) == 39
    many = [Request(PROMPT, load_method("jacobi_forcing", candidates=0), 40) for _ in range(16)]
    assert {len(each.draft_tokens) for each in decode(on_gpu(), many) if each.index == 0} == {16}


def test_a_size_that_is_given_holds_everywhere() -> None:
    first, *_ = rounds_of(load_method("jacobi_forcing", candidates=0, block_size=8), on_gpu(), max_new_tokens=200)
    assert len(first.draft_tokens) == 8
    assert on_device(DeviceFloat(0.3, gpu=0.4), "cuda") == 0.4 and on_device(0.3, "cuda") == 0.3
    with pytest.raises(UnknownMethod, match="a whole number"):
        load_method("adaptive", budget=1.5)


def test_adaptive_drafts_more_where_rows_are_cheap() -> None:
    """By the toy's own texts, which repeat themselves."""
    counts = []
    for runtime in ("cpu", "cuda"):
        target = on_gpu()
        target.runtime = runtime
        rounds = rounds_of(Adaptive(), target, max_new_tokens=60)
        counts.append(sum(len(each.draft_tokens) for each in rounds))
    assert counts[0] < counts[1]


@pytest.mark.parametrize("name", METHODS)
def test_defaults_by_device_are_numbers_like_others(name: str) -> None:
    for value in method_options(name).values():
        assert type(value) in (int, float, bool, str, DeviceInt, DeviceFloat)


def level(first: float) -> Level:
    """Twenty tokens, the best of which has this chance and each other one half of that of the one before it."""
    return Level(range(20), [log(first / 2**place) for place in range(20)])


def test_a_batch_keeps_the_likeliest_nodes_of_all_texts() -> None:
    """Each text once kept the same share of its first nodes, whatever their chances were."""
    trees = [best_first([level(first)] * 6, Bounds(200)) for first in (0.5, 0.2)]
    chances = [
        {tuple(tree.tokens[i] for i in tree.path(node)): tree.chances[node] for node in range(200)} for tree in trees
    ]
    kept = shared(trees, 100)
    found = [
        known[tuple(draft.tokens[i] for i in draft.path(node))]
        for draft, known in zip(kept, chances, strict=True)
        for node in range(len(draft))
    ]
    every = sorted([*chances[0].values(), *chances[1].values()], reverse=True)
    assert sorted(found, reverse=True) == every[:100] and len(kept[0]) > 2 * len(kept[1]) > 2 * LEAST_DRAFT
    plain = [Draft.chain(range(200)), Draft.chain(range(40))]
    assert [len(each) for each in shared(plain, 100)] == [60, 40], "nothing is known of their chances"
