"""Guesses and masks are drafted where they are expected to pay."""

import subprocess
import sys
from collections.abc import Sequence
from itertools import product

import pytest
import torch

from decoding.engine.draft import ROOT
from decoding.engine.experience import AcceptanceStats, RowCosts
from decoding.engine.method import Context, LookupCorpus
from decoding.engine.rounds import text_tokens
from decoding.engine.sampler import Sampler
from decoding.methods.adaptive import KEPT, Adaptive
from decoding.methods.planned import LONGEST_ASKING, RoundCosts
from decoding.methods.registry import load_method
from tests.decoding.methods.test_jacobi_forcing import PROMPT, Alternating, OneOfTwo, counting, rounds_of
from tests.decoding.methods.test_mask_tokens import MASK, trained
from tests.decoding.models.doubles import NoAscent
from tests.decoding.models.random_heads import small_head
from tests.decoding.models.toy import VOCAB, ToyTarget

pytestmark = pytest.mark.usefixtures("still_clock")


def test_masks_alone_look_ahead_where_the_target_is_sure() -> None:
    count = (MASK - len(PROMPT)) % VOCAB  # tokens before the text says what the mask says
    first, second, *_ = rounds_of(Adaptive(masks=3, copies=0, row_cost=0.01), trained(), max_new_tokens=count)
    assert (first.draft_tokens, first.draft_parents) == ((MASK,) * 3, (ROOT, 0, 1))
    assert len(second.committed) == 4


def test_masks_are_left_out_where_rows_are_dear() -> None:
    cheap, expensive = (
        rounds_of(Adaptive(copies=0, row_cost=cost), trained(), max_new_tokens=30) for cost in (0.01, 0.5)
    )
    assert sum(len(each.draft_tokens) for each in expensive) == 0
    assert len(cheap) < len(expensive)


@pytest.mark.parametrize("draft_cost", [0.0, 0.4])
@pytest.mark.parametrize(("draft_ms", "target_ms"), [(90.0, 1.0), (0.1, 1.0), (1.0, 90.0)])
def test_costs_that_are_given_are_not_overruled_by_measured_times(
    draft_cost: float, draft_ms: float, target_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the invented clock every forward takes the same time, whatever its rows, and drafts take long, or none to speak of."""
    head = small_head("path_tree", VOCAB, VOCAB) if draft_cost else "none"

    def drafts() -> list[tuple[int, ...]]:
        experience = AcceptanceStats()
        return [
            each.draft_tokens
            for _ in range(8)
            for each in rounds_of(Adaptive(head, 0.3, draft_cost), trained(), experience=experience)
        ]

    untimed, took = drafts(), Adaptive.took
    monkeypatch.setattr(Adaptive, "took", lambda self, *_: took(self, draft_ms, target_ms))
    assert drafts() == untimed and any(untimed)


def test_a_row_keeps_the_cost_that_is_given_while_drafts_are_timed() -> None:
    target, experience = ToyTarget(), AcceptanceStats()
    context = Context(Sampler(), target.embedding, target.lm_head, LookupCorpus(), experience=experience)
    told, found = (RoundCosts(context, row_cost, 0.0, has_head=True) for row_cost in (0.5, 0.0))
    for number in range(200):
        for costs in (told, found):
            costs.took(5.0, 10.0)
            costs.count(1, number % 20, 2, is_by_head=True)
    again, corrected = (RoundCosts(context, row_cost, 0.0, has_head=True) for row_cost in (0.5, 0.0))
    assert again.prices(1).costs == RowCosts.even(0.5)
    assert corrected.prices(1).costs.at(9) < found.prices(1).costs.at(9), "rows are free by the clock"
    assert again.rate < 1.5, "and a draft takes half of a forward"


def test_masks_cost_what_asking_them_takes() -> None:
    target, experience = ToyTarget(), AcceptanceStats()
    context = Context(Sampler(), target.embedding, target.lm_head, LookupCorpus(), experience=experience)
    told, found = (RoundCosts(context, row_cost, 0.0, has_head=False) for row_cost in (0.5, 0.0))
    before = found.mask_steps
    assert before > 0.0
    for _ in range(100):
        for costs, asked_ms in ((told, None), (told, 2.0), (found, None), (found, 2.0)):
            costs.took(1.0, 10.0)
            costs.count(1, 0, 2, is_by_head=False, asked_ms=asked_ms)
    assert before < 0.17 < found.mask_steps < 0.2, "asking took 0.2 steps, where there was something to ask"
    for _ in range(100):
        found.took(1.0, 10.0)
        found.count(1, 0, 2, is_by_head=False, asked_ms=900.0)
    assert found.mask_steps < LONGEST_ASKING, "the first time takes long, and tells nothing"
    assert told.mask_steps == 0.0, "no clock counts where costs are given"


def test_masks_that_never_help_are_given_up() -> None:
    """The target's guesses at masks are wrong: it knows a token only from the one before."""
    target = ToyTarget(lambda tokens: 20.0 * torch.eye(VOCAB)[(tokens[-1] + 5) % VOCAB])
    rounds = rounds_of(Adaptive(copies=0, row_cost=0.06), target, max_new_tokens=60)
    masks = [each.draft_tokens.count(MASK) for each in rounds]
    assert masks[0] > 0 and max(masks[-5:]) < masks[0]


def test_masks_that_were_given_up_are_tried_again() -> None:
    """They are wrong in the first part of the text: what other texts taught of them is not forgotten for that."""
    bad = len(PROMPT) + 24

    def logits(tokens: Sequence[int]) -> torch.Tensor:
        is_wrong = tokens[-1] >= VOCAB and len(tokens) < bad
        return 20.0 * torch.eye(VOCAB)[(len(tokens) + 7 * is_wrong) % VOCAB]

    target = ToyTarget(logits)
    target.mask_tokens = range(VOCAB, VOCAB + 4)
    rounds = rounds_of(Adaptive(copies=0, row_cost=0.1), target, max_new_tokens=80)
    masked = [max(each.draft_tokens, default=0) >= VOCAB for each in rounds]
    given_up = masked.index(False)
    assert any(masked[given_up:]), "or a text would never know that it has become easier"
    assert len(rounds) < 60


def test_trees_that_bring_less_than_expected_get_fewer_rows_and_not_none() -> None:
    """Of what is found again, the fourth token is never right."""
    recall = LookupCorpus()
    recall.add(tuple(range(VOCAB)) * 3)

    def logits(tokens: Sequence[int]) -> torch.Tensor:
        return 20.0 * torch.eye(VOCAB)[(tokens[-1] + 1 + (len(tokens) % 4 == 0)) % VOCAB]

    def rows(experience: AcceptanceStats) -> int:
        method = Adaptive(masks=0, row_cost=0.1)
        rounds = rounds_of(method, ToyTarget(logits), max_new_tokens=60, recall=recall, experience=experience)
        return sum(len(each.draft_tokens) for each in rounds)

    expected, disappointed, surprised = AcceptanceStats(), AcceptanceStats(), AcceptanceStats()
    for experience, got in ((disappointed, 0.0), (surprised, 12.0)):
        method = Adaptive(masks=0, row_cost=0.1)
        rounds_of(method, ToyTarget(logits), max_new_tokens=4, recall=recall, experience=experience)
        for _ in range(400):
            method._policy.got.saw(0, got)
            method._policy.got.saw(1, 3.0)
        assert method._policy.kept_share() == KEPT[got > 3.0]
    assert 0 < rows(disappointed) < rows(expected) < rows(surprised)


def test_a_copy_that_is_right_grows() -> None:
    recall = LookupCorpus()
    recall.add(tuple(range(VOCAB)) * 3)
    rounds = rounds_of(Adaptive(masks=0), counting(), max_new_tokens=60, recall=recall)
    assert len(rounds[0].draft_tokens) < max(len(each.draft_tokens) for each in rounds)


def test_drafting_without_a_head_needs_no_torch() -> None:
    """Importing it takes longer than a question."""
    code = """import sys
from decoding.methods.registry import load_method
load_method("adaptive")
print("torch" in sys.modules)"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize("options", [{}, {"masks": 0}, {"copies": 0}, {"row_cost": 0.01, "budget": 64}])
def test_lossless_at_all_temperatures_under_a_constraint_and_beside_other_drafts(options: dict[str, float]) -> None:
    for (temperature, seed), bound in product(((0.0, 0), (0.8, 0), (0.8, 1)), (False, True)):
        sampler = Sampler(temperature, seed)
        bounds = {"constraint": NoAscent(), "stop": frozenset({NoAscent.STOP})} if bound else {}
        want = text_tokens(rounds_of(load_method("plain"), sampler=sampler, max_new_tokens=30, **bounds))
        for method in (load_method("adaptive", **options), Alternating(load_method("adaptive", **options), seed)):
            assert text_tokens(rounds_of(method, sampler=sampler, max_new_tokens=30, **bounds)) == want


def test_guesses_keep_their_position_when_tokens_are_forced() -> None:
    free = rounds_of(Adaptive(copies=0), counting())
    forced = rounds_of(Adaptive(copies=0), counting(), constraint=OneOfTwo(forces=True))
    assert text_tokens(forced) == text_tokens(free)
    assert any(r.forced for r in forced) and len(forced) <= len(free)
