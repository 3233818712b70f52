"""Several texts that draft with one head share its forward: one pass a round, and every text is what plain decoding writes."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import pytest

from decoding.engine.draft import Draft
from decoding.engine.loop import Decoding, Request, advance, decode
from decoding.engine.method import HeadPass, Method
from decoding.engine.rounds import Round
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget
from decoding.heads.modules.block import BlockHead
from decoding.heads.on_kernels.layers import HeadLayers
from decoding.methods.blocks import DFlash
from decoding.methods.registry import load_method
from decoding.serving.load import load_text_decoder
from kernels.cpu.processor import variant
from tests.decoding.models.doubles import NoAscent
from tests.decoding.models.random_heads import head_options, ready_method
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.models.toy import ToyTarget

pytestmark = pytest.mark.usefixtures("one_thread")
SHARING = ("dflash", "ddtree", "jetspec", "domino", "path_tree", "adaptive")
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
@pytest.mark.parametrize("name", SHARING)
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
    """A part of a method: fails in the second pass that it is asked for."""

    asked = 0

    def head_pass(self, tokens: Sequence[int], room: int) -> HeadPass | None:
        self.asked += 1
        if self.asked == 2:
            raise RuntimeError("the head is gone")
        return super().head_pass(tokens, room)  # type: ignore[misc, no-any-return]

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        if self.asked == 2:
            raise RuntimeError("the head is gone")
        return super().propose(tokens, room)  # type: ignore[misc, no-any-return]


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
