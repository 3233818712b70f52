"""A head as one of several proposers: its guesses follow any path, and it drafts where it suits and pays.

Several texts that draft with one head share its forward: one pass a round, and every text is what plain decoding writes.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

import decoding.heads.head
from decoding.checkpoints.identity import TargetIdentity
from decoding.engine.draft import Draft
from decoding.engine.experience import AcceptanceStats
from decoding.engine.loop import Decoding, Request, advance, decode
from decoding.engine.method import Context, Drafting, HeadPass, LookupCorpus, Method, run_together
from decoding.engine.rounds import Round, text_tokens
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget, ForwardOutput
from decoding.engine.verify import Verdict
from decoding.heads.head import HeadMismatch, HeadUnavailable, save_head
from decoding.heads.modules.block import BlockHead
from decoding.heads.on_kernels.layers import HeadLayers
from decoding.methods.adaptive import Adaptive
from decoding.methods.blocks import DFlash
from decoding.methods.head_runtimes import DrafterPass, HeadGuesses, optional_head
from decoding.methods.planned import Reached
from decoding.methods.registry import load_method
from decoding.serving.load import load_text_decoder
from kernels.cpu.processor import variant
from tests.decoding.methods.test_jacobi_forcing import PROMPT, Alternating, rounds_of
from tests.decoding.models.doubles import NoAscent
from tests.decoding.models.random_heads import TAPS, Temper, head_options, ready_method, small_head
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.models.toy import VOCAB, ToyTarget, toy_hidden

pytestmark = pytest.mark.usefixtures("one_thread")
IDENTITY = TargetIdentity("base", "adapter", "prompts")


def ran(drafting: Iterator[HeadPass]) -> None:
    for each in drafting:
        run_together([each])


def drafting() -> HeadGuesses:
    """A head that has read the prompt and ran its pass."""
    guesses, target = HeadGuesses(small_head("path_tree", VOCAB, VOCAB)), ToyTarget()
    context = Context(Sampler(), target.embedding, target.lm_head, LookupCorpus())
    guesses.begin(PROMPT, toy_hidden(PROMPT[:-1], len(TAPS)), context)
    ran(guesses.drafting(PROMPT, VOCAB))
    return guesses


def reached(path: tuple[int, ...], parent: int = 0) -> Reached:
    return Reached(path, 1.0, 1.0, parent, None, 0.0)


def asked(*levels: Sequence[Reached]) -> list[list[float]]:
    """What a fresh head says after each node of the last level, by token."""
    guesses = drafting()
    *_, said = [guesses.levels(nodes) for nodes in ([reached(())], *levels)]
    return [[score for _, score in sorted(zip(level.tokens, level.scores, strict=True))] for level in said if level]


def test_guesses_depend_on_the_path_and_not_on_what_stands_beside_it() -> None:
    """Guards against states of paths that are read from another branch."""
    both = asked([reached((4,)), reached((7,))], [reached((7, 1), 1), reached((4, 1), 0)])
    alone = [asked([reached((first,))], [reached((first, 1))])[0] for first in (7, 4)]
    assert both[0] == pytest.approx(alone[0], abs=1e-5) and both[1] == pytest.approx(alone[1], abs=1e-5)
    assert both[0] != pytest.approx(both[1], abs=1e-3)


def test_beyond_its_block_a_head_says_nothing() -> None:
    guesses = drafting()
    paths = [tuple(range(depth)) for depth in range(6)]
    said = [guesses.levels([reached(path)]) for path in paths]
    assert [level is None for (level,) in said] == [False] * 5 + [True]  # of a block of five


@pytest.mark.parametrize("temper", ["random", "loud", "broken"])
@pytest.mark.parametrize(
    "options", [{}, {"copies": 0}, {"masks": 0, "budget": 9}, {"draft_cost": 1.5, "row_cost": 0.1}]
)
def test_lossless_whatever_the_head_says_and_beside_other_drafts(temper: Temper, options: dict[str, float]) -> None:
    head = small_head("path_tree", VOCAB, VOCAB, temper)
    for (temperature, seed), bound in product(((0.0, 0), (0.8, 0), (0.8, 1)), (False, True)):
        sampler = Sampler(temperature, seed)
        bounds = {"constraint": NoAscent(), "stop": frozenset({NoAscent.STOP})} if bound else {}
        want = text_tokens(rounds_of(load_method("plain"), sampler=sampler, max_new_tokens=30, **bounds))
        cheap = {"row_cost": 1e-6, "draft_cost": 1e-6} | options
        own = (load_method("adaptive", head=head, **cheap) for _ in range(2))
        for method in (next(own), Alternating(next(own), seed)):
            assert text_tokens(rounds_of(method, sampler=sampler, max_new_tokens=30, **bounds)) == want


def test_a_head_drafts_only_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    drafted = list[int]()
    draft = HeadGuesses.drafting
    monkeypatch.setattr(HeadGuesses, "drafting", lambda *args: (drafted.append(1), draft(*args))[1])
    head = small_head("path_tree", VOCAB, VOCAB)
    counts = {}
    for cost in (1e-6, 5.0):
        drafted.clear()
        rounds_of(Adaptive(head, draft_cost=cost))
        counts[cost] = len(drafted)
    assert counts[1e-6] > 0 and counts[5.0] == 0


def in_its_second_round() -> HeadGuesses:
    """The first round has no states, and says nothing of what a head is worth."""
    guesses = drafting()
    scores = ForwardOutput.of(np.zeros((1, VOCAB), np.float32), toy_hidden(PROMPT[-1:], len(TAPS)), lambda node: 0)
    guesses.observe(Draft(), scores, Verdict((), 0))
    ran(guesses.drafting([*PROMPT, 0], VOCAB))
    return guesses


def test_a_head_that_is_seldom_right_is_given_up() -> None:
    first = drafting()
    assert first.pays(2, rate=1.0)
    for _ in range(9):
        first.count(2, 1, 1.85)
    assert first.pays(2, rate=1.0)
    guesses = in_its_second_round()
    for _ in range(9):
        guesses.count(2, 1, 1.85)
    assert not guesses.pays(2, rate=1.0)
    assert guesses.pays(4, rate=1.0), "which is counted by the length of the match"


def test_a_head_whose_rounds_take_long_is_given_up() -> None:
    guesses = in_its_second_round()
    for _ in range(9):
        guesses.count(2, 4, 6.0)
    assert guesses.pays(2, rate=0.1) and not guesses.pays(2, rate=2.0)


def test_rounds_with_and_without_a_head_are_both_tried_now_and_then() -> None:
    guesses, experience = in_its_second_round(), AcceptanceStats()
    paid = [guesses.pays(2, rate=1.0)]
    for _ in range(60):
        guesses.count(2, 5, 1.5)
        paid.append(guesses.pays(2, rate=1.0))
    assert paid[:17] == [True] * 17 and paid[-1] is False, "rounds without it were not seen once"
    told = HeadGuesses(guesses.head)
    context = Context(Sampler(), ToyTarget().embedding, ToyTarget().lm_head, LookupCorpus(), experience=experience)
    told.begin(PROMPT, None, context, draft_steps=0.1)
    for _ in range(60):
        experience.means("tokens with a head", (0.0,)).saw(2, 5)
    assert told.pays(2, rate=1.0), "nothing is tried where the price is given"


def test_a_head_is_dropped_where_it_does_not_suit_unless_it_is_wanted() -> None:
    target, head = ToyTarget(), small_head("path_tree", VOCAB, VOCAB)
    other = small_head("path_tree", 2 * VOCAB, VOCAB)
    assert HeadGuesses(head, is_wanted=False).suits(target, None)
    assert not HeadGuesses(other, is_wanted=False).suits(target, None)
    assert HeadGuesses(other).suits(target, None), "its misfit is an error when the text begins"
    head.identity = IDENTITY
    try:
        same, changed = (HeadGuesses(head, is_wanted=False).suits(target, lambda each=each: each) for each in others())
    finally:
        head.identity = None
    assert same and not changed
    with pytest.raises(HeadMismatch):
        rounds_of(Adaptive(other))


def test_a_method_that_can_do_without_a_head_drops_that_of_another_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding.heads.head, "SHIPPED", tmp_path)
    save_head(small_head("path_tree", VOCAB, VOCAB), tmp_path / "path_tree", IDENTITY)
    taps = {}
    for wanted, identity in product(("auto", str(tmp_path / "path_tree")), (IDENTITY, *others()[1:])):
        method = load_method("adaptive", head=wanted)
        method.meet(ToyTarget(), lambda known=identity: known)
        taps[wanted == "auto", identity] = method.taps
    own = taps[True, IDENTITY]
    assert own and taps == {
        (True, IDENTITY): own, (True, others()[1]): (), (False, IDENTITY): own, (False, others()[1]): own
    }  # fmt: skip


def others() -> tuple[TargetIdentity, TargetIdentity]:
    return IDENTITY, replace(IDENTITY, adapter_sha256="other")


def test_without_a_head_for_the_target_nothing_is_tapped() -> None:
    """The shipped head is for the embedded model."""
    method = Adaptive("auto")
    method.meet(ToyTarget(), None)
    assert method.taps == ()
    assert optional_head("no_such_kind", "auto") is None and optional_head("path_tree", "none") is None
    with pytest.raises(HeadUnavailable):
        optional_head("path_tree", "/no/such/folder")
    with pytest.raises(HeadUnavailable, match="Domino"):
        Adaptive(small_head("medusa", VOCAB, VOCAB))


SHARING = ("dflash", "ddtree", "jetspec", "domino", "path_tree", "adaptive")
DRAFTERS = ("medusa", "eagle3", "falcon", "draft_model")
RUNTIMES = ["fp32", pytest.param("int8", marks=pytest.mark.skipif(variant() is None, reason="no AVX2"))]
PROMPTS = [tuple(Random(n).choices(range(3, 300), k=5 + 40 * n)) for n in range(4)]


@cache
def target_of(dtype: str) -> AnyTarget:
    path = tiny_checkpoint(Path(mkdtemp()) / "tiny", seed=3, max_position_embeddings=512)
    return load_text_decoder(str(path), dtype=dtype, device="cpu", prefix_cache_mb=0).target


def requests(methods: Sequence[Method], new: int = 24, **more: Any) -> list[Request]:
    return [Request(PROMPTS[i], method, new, Sampler(0.8 * (i % 2), i), **more) for i, method in enumerate(methods)]


def texts(rounds: Sequence[Round], count: int) -> list[list[int]]:
    return [[token for r in rounds if r.sequence == i for token in r.text_tokens] for i in range(count)]


def plain(target: AnyTarget, count: int, **more: Any) -> list[list[int]]:
    return [
        texts([*decode(target, [one])], 1)[0] for one in requests([load_method("plain") for _ in range(count)], **more)
    ]


class Passes:
    """Counts forwards of block heads, and the texts in each; of contexts, on our kernels, likewise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, target: AnyTarget) -> None:
        self.texts, self.contexts, self.rounds = list[int](), list[int](), list[int]()
        self._count(monkeypatch, BlockHead, "of_texts", 0, self.texts)
        self._count(monkeypatch, HeadLayers, "run_together", 3, self.texts)
        self._count(monkeypatch, HeadLayers, "context", 1, self.contexts)
        self._count(monkeypatch, target, "score", 0, self.rounds)

    def _count(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, which: int, counts: list[int]) -> None:
        original, is_method = getattr(owner, name), isinstance(owner, type)

        def counted(*given: Any) -> Any:
            counts.append(len(given[which + is_method]))
            return original(*given)

        monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("dtype", RUNTIMES)
@pytest.mark.parametrize("name", SHARING)
def test_one_pass_a_round_for_all_texts_and_the_text_of_plain_decoding(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, count = target_of(dtype), len(PROMPTS)
    for more in ({}, {"constraint": NoAscent(target.vocab_size, 250), "stop": frozenset({NoAscent.STOP})}):
        want = plain(target, count, **more)
        with monkeypatch.context() as patch:
            passes = Passes(patch, target)
            rounds = list(decode(target, requests([ready_method(name, target) for _ in range(count)], **more)))
        assert texts(rounds, count) == want
        drafting = sum(r.index > 0 for r in rounds)
        assert max(passes.texts) == count and len(passes.texts) <= len(passes.rounds)
        assert drafting * 0.8 <= sum(passes.texts) <= drafting, "no text drafts twice, and hardly one without its head"
        if dtype == "int8":
            prompts = 1 + max(map(len, PROMPTS)) // 64
            assert len(passes.contexts) <= len(passes.texts) + prompts, "nor are states taken in text by text"


@pytest.mark.parametrize("dtype", RUNTIMES)
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_drafters_passes_are_for_all_texts(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Medusa, EAGLE-3, Falcon and draft models drafted text by text."""
    target, count, ran = target_of(dtype), len(PROMPTS), list[int]()
    run = DrafterPass.run
    monkeypatch.setattr(DrafterPass, "run", lambda own, passes: (ran.append(len(passes)), run(own, passes))[1])
    for more in ({}, {"constraint": NoAscent(target.vocab_size, 250), "stop": frozenset({NoAscent.STOP})}):
        ran.clear()
        rounds = list(decode(target, requests([ready_method(name, target) for _ in range(count)], **more)))
        assert texts(rounds, count) == plain(target, count, **more)
        assert max(ran) == count
    ran.clear()
    list(decode(target, requests([ready_method(name, target) for _ in range(count)])))
    assert len(ran) < 0.5 * sum(ran), ran


@pytest.mark.parametrize("dtype", RUNTIMES)
@pytest.mark.parametrize("name", [*SHARING, *DRAFTERS])
def test_a_draft_is_the_one_that_it_is_alone(name: str, dtype: str) -> None:
    """To the bit on our kernels; on torch's operators guesses might part at near-ties."""
    target = target_of(dtype)
    together = list(decode(target, requests([ready_method(name, target) for _ in PROMPTS])))
    for i, one in enumerate(requests([ready_method(name, target) for _ in PROMPTS])):
        alone = [r.draft_tokens for r in decode(target, [one])]
        assert [r.draft_tokens for r in together if r.sequence == i] == alone


def test_each_head_has_a_pass_of_its_own_and_methods_without_heads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("fp32")
    names = ("path_tree", "dflash", "plain", "path_tree")
    want = plain(target, 4)
    with monkeypatch.context() as patch:
        passes = Passes(patch, target)
        rounds = list(decode(target, requests([ready_method(name, target) for name in names])))
    assert texts(rounds, 4) == want
    assert set(passes.texts) == {1, 2} and len(passes.texts) <= 2 * len(passes.rounds)


class Failing:
    """A part of a method: fails in the second draft that it is asked for."""

    asked = 0

    def drafting(self, tokens: Sequence[int], room: int) -> Drafting:
        self.asked += 1
        if self.asked == 2:
            raise RuntimeError("the head is gone")
        return (yield from super().drafting(tokens, room))  # type: ignore[misc]


def test_who_cannot_ask_for_a_pass_fails_alone() -> None:
    target = ToyTarget()
    failing = type("FailingDFlash", (Failing, DFlash), {})(**head_options("dflash", target))
    with ExitStack() as opened:
        live = [
            Decoding(i, target, Request((1, 2, 3), method, 20, Sampler()), opened)
            for i, method in enumerate((failing, ready_method("dflash", target)))
        ]
        outcomes = [list(advance(target, live)) for _ in range(3)]
    assert [[type(each).__name__ for each in pair] for pair in outcomes[:2]] == [["Round", "Round"]] * 2
    assert isinstance(outcomes[2][0], RuntimeError) and isinstance(outcomes[2][1], Round)
