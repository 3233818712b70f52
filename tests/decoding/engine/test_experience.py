"""What earlier texts taught is where the next one begins, and is kept apart by kind of text.

What rows cost: between and beyond what was measured, and by the kernels where nothing was.
"""

from random import Random

import pytest
import torch

import kernels.cpu.processor as processor
from decoding.engine.draft import Draft
from decoding.engine.experience import (
    DEFAULT_COSTS,
    GPU_COSTS,
    LIMIT,
    VARIANT_COSTS,
    AcceptanceStats,
    Rate,
    RowCosts,
    RowTimes,
    RunningMeans,
    default_costs,
)
from decoding.engine.method import LookupCorpus
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardOutput
from decoding.engine.verify import Verdict
from decoding.methods.adaptive import Adaptive
from decoding.methods.head_runtimes import HeadGuesses
from tests.decoding.methods.test_jacobi_forcing import PROMPT, rounds_of
from tests.decoding.models.random_heads import small_head
from tests.decoding.models.toy import VOCAB, ToyTarget


@pytest.mark.usefixtures("still_clock")
def test_means_and_rate_begin_at_the_prior_and_follow_what_is_seen() -> None:
    means, rate = RunningMeans((0.5, 0.9), weight=2.0), Rate(prior=2.0, steps=1.0)
    for _ in range(98):
        means.saw(0, False)
        rate.saw(3, 1.0)
    assert (means[0], means[1], means[5]) == (pytest.approx(0.01), 0.9, 0.9)
    assert rate.tokens_per_step == pytest.approx(2.99, abs=0.01)


@pytest.mark.usefixtures("still_clock")
def test_old_observations_fade() -> None:
    means, rate = RunningMeans((0.5,)), Rate()
    for _ in range(int(3 * LIMIT)):
        means.saw(0, 1.0)
        rate.saw(4, 1.0)
    for _ in range(int(LIMIT)):
        means.saw(0, 0.0)
        rate.saw(1, 1.0)
    assert means[0] < 0.5 and rate.tokens_per_step < 2.5, "a quarter of all, but the newest"


@pytest.mark.usefixtures("still_clock")
def test_what_would_not_be_seen_again_is_forgotten_from_text_to_text() -> None:
    experience = AcceptanceStats()
    for _ in range(200):
        experience.means("worth", (0.5,)).saw(0, 0.0)
    assert experience.means("worth", (0.5,))[0] < 0.1
    for _ in range(60):
        last = experience.means("worth", (0.5,), forgotten=0.05)
    assert 0.4 < last[0] < 0.5


@pytest.mark.usefixtures("still_clock")
def test_a_text_begins_with_what_others_of_its_kind_have_taught() -> None:
    experience = AcceptanceStats()
    for _ in range(60):
        text = experience.of("adaptive", "plan")
        text.means("right", (0.2, 0.7)).saw(0, 1.0)
        text.rate().saw(6, 1.0)
    plan, other = experience.of("adaptive", "plan"), experience.of("adaptive", "sql")
    assert plan.means("right", (0.2, 0.7))[0] == pytest.approx((0.2 * 40 + 60) / 100)
    assert plan.rate().tokens_per_step == pytest.approx((2.5 * 40 + 360) / 100)
    assert (other.means("right", (0.2, 0.7))[0], other.rate().tokens_per_step) == (0.2, 2.5)


@pytest.mark.usefixtures("still_clock")
def test_one_text_does_not_see_what_another_counts_beside_it() -> None:
    experience = AcceptanceStats()
    first, second = (experience.means("right", (0.5,)) for _ in range(2))
    first.saw(0, 1.0)
    assert (second[0], experience.means("right", (0.5,))[0] > 0.5) == (0.5, True)


@pytest.mark.usefixtures("still_clock")
def test_masks_that_never_helped_are_not_tried_again() -> None:
    """The target's guesses at masks are wrong: it knows a token only from the one before."""
    experience, drafted = AcceptanceStats(), []
    for _ in range(30):
        target = ToyTarget(lambda tokens: 20.0 * torch.eye(VOCAB)[(tokens[-1] + 5) % VOCAB])
        rounds = rounds_of(Adaptive(copies=0), target, max_new_tokens=12, experience=experience)
        drafted.append(sum(len(each.draft_tokens) for each in rounds))
    assert drafted[-1] < drafted[0] / 2


@pytest.mark.usefixtures("still_clock")
def test_copies_that_were_right_are_believed_sooner() -> None:
    recall, experience, forwards = LookupCorpus(), AcceptanceStats(), []
    recall.add((*PROMPT[-2:], *((PROMPT[-1] + ahead) % VOCAB for ahead in range(1, 30))))
    for _ in range(30):
        target = ToyTarget(lambda tokens: 20.0 * torch.eye(VOCAB)[(tokens[-1] + 1) % VOCAB])
        method = Adaptive(masks=0, row_cost=0.2)
        forwards.append(len(rounds_of(method, target, max_new_tokens=24, recall=recall, experience=experience)))
    assert forwards[-1] < forwards[0]


@pytest.mark.usefixtures("still_clock")
@pytest.mark.parametrize(("draft_ms", "is_used"), [(0.1, True), (900.0, False)])
def test_a_head_whose_draft_takes_long_is_left_out(
    draft_ms: float, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times are told by the loop; here they are invented, so that the test does not depend on the machine. Rows are cheap, so
    that it is the draft's time that decides.
    """
    head = small_head("path_tree", VOCAB, VOCAB)
    experience, drafted, rounds = AcceptanceStats(), list[int](), 0
    draft, took = HeadGuesses.drafting, Adaptive.took
    monkeypatch.setattr(HeadGuesses, "drafting", lambda *args: (drafted.append(1), draft(*args))[1])
    monkeypatch.setattr(Adaptive, "took", lambda self, *_: took(self, draft_ms if self._head.drafted else 0.1, 10.0))
    for text in range(30):
        if text == 10:  # by now it is known
            rounds = 0
            drafted.clear()
        rounds += len(rounds_of(Adaptive(head, copies=0, row_cost=0.01), experience=experience))
    assert rounds / 2 < len(drafted) if is_used else len(drafted) < rounds / 10


@pytest.mark.usefixtures("still_clock")
@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_times_tell_how_dear_rows_are(scale: float) -> None:
    times, chance = RowTimes(), Random(3)
    assert times.scale == 1.0
    for _ in range(400):
        further = chance.choice((0.1, 0.3, 0.6))
        times.saw(further, chance.gauss(1.0, 0.05) * 7.0 * (1.0 + scale * further))
    assert times.scale == pytest.approx(scale, rel=0.25)


@pytest.mark.usefixtures("still_clock")
def test_times_without_a_spread_of_rows_tell_nothing() -> None:
    times = RowTimes()
    for _ in range(100):
        times.saw(0.25, 7.0)
    assert times.scale == 1.0


@pytest.mark.usefixtures("still_clock")
@pytest.mark.parametrize("place", [0, 10, 150])
def test_a_pause_of_the_machine_does_not_make_rows_dear_or_cheap(place: int) -> None:
    """Guards against one forward that turns what thousands have told."""
    for where in (0.1, 0.6):
        times = RowTimes()
        for count in range(200):
            if count == place:
                times.saw(where, 2000.0)
            further = (0.1, 0.3, 0.6)[count % 3]
            times.saw(further, 7.0 * (1.0 + 1.5 * further))
        assert times.scale == pytest.approx(1.4, abs=0.25)


@pytest.mark.usefixtures("still_clock")
def test_a_machine_that_has_become_slower_is_believed() -> None:
    """Guards against a bound on what a forward may take that never moves."""
    times = RowTimes()
    for count in range(8000):
        further, slower, scale = (0.1, 0.3, 0.6)[count % 3], *((1.0, 1.0) if count < 1000 else (20.0, 3.0))
        times.saw(further, slower * (1.0 + scale * further))
    assert times.scale == pytest.approx(3.0, rel=0.1)


@pytest.mark.usefixtures("still_clock")
@pytest.mark.parametrize("extra", [0.0, 8.0])
def test_rows_that_turn_out_expensive_are_saved(extra: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are invented here, too. The table says 0.06 plain steps a row."""
    experience, drafted = AcceptanceStats(), list[int]()
    observe = Adaptive.observe

    def timed(self: Adaptive, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        self.took(0.1, 5.0 * (1.0 + extra * 0.06 * len(draft)))
        observe(self, draft, scores, verdict)

    monkeypatch.setattr(Adaptive, "observe", timed)
    for seed in range(40):
        rounds = rounds_of(Adaptive(masks=2), ToyTarget(), Sampler(0.5, seed), experience=experience, max_new_tokens=40)
        drafted.append(sum(len(each.draft_tokens) for each in rounds))
    first, last = sum(drafted[:5]), sum(drafted[-5:])
    assert last > first / 2 if extra == 0.0 else last < first / 2


def test_between_and_beyond_the_entries() -> None:
    costs = RowCosts((1, 16, 32), (1.0, 1.3, 2.1))
    assert [costs.at(rows) for rows in (1, 16, 32)] == [1.0, 1.3, 2.1]
    assert costs.at(24) == pytest.approx(1.7) and costs.at(48) == pytest.approx(2.9)
    assert RowCosts.even(0.06).at(11) == pytest.approx(1.6)


def test_prices_are_those_of_the_spans_that_a_forward_may_reach() -> None:
    costs = RowCosts((1, 16, 32), (1.0, 1.3, 2.1))
    assert costs.prices(16) == [pytest.approx(0.02), pytest.approx(0.05)]
    assert costs.prices(15) == [pytest.approx(0.02)]


def test_noise_promises_no_gain() -> None:
    assert RowCosts.measured((1, 4, 8), (5.0, 4.0, 10.0)).steps == (1.0, 1.0, 2.0)


@pytest.mark.parametrize(
    ("rows", "steps"),
    [((1,), (1.0,)), ((2, 4), (1.0, 2.0)), ((1, 1), (1.0, 2.0)), ((1, 2), (1.0, 0.0)), ((1, 2), (1.0,))],
)
def test_what_is_no_table(rows: tuple[int, ...], steps: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="row"):
        RowCosts(rows, steps)


def test_defaults_go_by_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [(variant, VARIANT_COSTS[variant]) for variant in ("amx_int8", "avx2")]
    for variant, want in (*known, ("avx_vnni", DEFAULT_COSTS), (None, DEFAULT_COSTS)):
        monkeypatch.setattr(processor, "variant", lambda variant=variant: variant)
        assert default_costs("kernels") == want
        assert default_costs("cuda") == GPU_COSTS and default_costs("cpu") == DEFAULT_COSTS
