"""Jacobi Forcing's decoder, and the window it shares with training."""

import random
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from decoding.engine.constraint import Mask
from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.method import Context, LookupCorpus, Method
from decoding.engine.rounds import Round, text_tokens
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget
from decoding.methods.jacobi import JacobiForcing
from decoding.methods.mask_guesses import FirstGuess, first_guesses
from decoding.methods.registry import load_method
from tests.decoding.models.doubles import Fuzz, NoAscent
from tests.decoding.models.toy import VOCAB, ToyTarget

PROMPT = (1, 2, 3, 1, 2)


def rounds_of(
    method: Method, target: ToyTarget | None = None, sampler: Sampler = Sampler(), **kw: object
) -> list[Round]:
    options: dict[str, Any] = {"prompt": PROMPT, "max_new_tokens": 60, **kw}
    return list(decode(target or ToyTarget(), [Request(method=method, sampler=sampler, **options)]))


def knows(next_token: Callable[[Sequence[int]], int]) -> ToyTarget:
    """A target that is certain of its next token."""

    def logits(tokens: Sequence[int]) -> Tensor:
        return torch.eye(VOCAB)[next_token(tokens)]

    return ToyTarget(logits)


def counting() -> ToyTarget:
    """Its text does not depend on what was guessed: one sweep corrects every guess."""
    return knows(lambda tokens: len(tokens) % VOCAB)


def cycling() -> ToyTarget:
    """Every token follows from the last one, over a period of 12: a sweep corrects one guess."""
    return knows(lambda tokens: (tokens[-1] + 5) % VOCAB)


class Alternating(Fuzz):
    """Hands in the draft of `method` half of the time, and an arbitrary tree otherwise."""

    def __init__(self, method: Method, seed: int) -> None:
        super().__init__(seed)
        self.begin, self.observe, self._method = method.begin, method.observe, method  # type: ignore[method-assign]

    def meet(self, target: AnyTarget, identity: Any) -> None:
        self._method.meet(target, identity)
        self.taps = self._method.taps

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        own = self._method.propose(tokens, room)
        return own if self.random.random() < 0.5 else super().propose(tokens, room)


class OneOfTwo(NoAscent):
    """A grammar: at each position the counting target's token, or another one; perhaps it forces some of the former."""

    def __init__(self, forces: bool = False) -> None:
        super().__init__()
        self._forces = forces

    def start(self) -> int:
        return len(PROMPT)

    def allowed(self, state: int) -> Mask:
        return (np.arange(VOCAB) == state % VOCAB) | (np.arange(VOCAB) == (state + 5) % VOCAB)

    def step(self, state: int, token: int) -> int:
        assert self.allowed(state)[token], "stepped over a forbidden token"
        return state + 1

    def forced(self, state: int) -> tuple[int, ...]:
        return (state % VOCAB, (state + 1) % VOCAB) if self._forces and state % 3 == 0 else ()


@pytest.mark.parametrize(("blocks", "size"), [*product((1, 2, 3, 4), (3, 8)), (2, 1)])
def test_lossless_for_all_windows_pools_temperatures_and_seeds(blocks: int, size: int) -> None:
    recall = LookupCorpus()
    recall.add(text_tokens(rounds_of(load_method("plain"))))
    for (temperature, seed), pool_size in product(((0.0, 0), (0.8, 0), (0.8, 1)), (0, 6)):
        sampler = Sampler(temperature, seed)
        for constraint, stop in ((None, frozenset[int]()), (NoAscent(), frozenset({NoAscent.STOP}))):
            kw: dict[str, Any] = {
                "sampler": sampler,
                "constraint": constraint,
                "stop": stop,
                "max_new_tokens": 26,
                "recall": recall,
            }
            first: FirstGuess = "mask" if seed else "prompt"
            method = JacobiForcing(
                size, blocks, spawn_ratio=0.5 * seed, pool_size=pool_size, candidate_tokens=4, first_guess=first
            )
            assert text_tokens(rounds_of(method, **kw)) == text_tokens(rounds_of(load_method("plain"), **kw))


@pytest.mark.parametrize("name", ["jacobi", "jacobi_forcing"])
def test_drafts_of_another_method_may_be_scored(name: str) -> None:
    """Guards against a method that trusts the draft it observes to be its own."""
    for seed in range(4):
        sampler = Sampler(seed % 2 * 0.8, seed)
        want = text_tokens(rounds_of(load_method("plain"), sampler=sampler, max_new_tokens=40))
        assert text_tokens(rounds_of(Alternating(load_method(name), seed), sampler=sampler, max_new_tokens=40)) == want


def test_recycling_pays_on_a_repetitive_text_and_lives_on_in_the_recall() -> None:
    without = rounds_of(JacobiForcing(candidates=0), cycling())
    first = rounds_of(JacobiForcing(from_prompt=False), cycling())
    assert text_tokens(first) == text_tokens(without)
    assert len(first) < 0.6 * len(without)
    recall = LookupCorpus()
    recall.add(text_tokens(first))
    again = rounds_of(JacobiForcing(from_prompt=False), cycling(), recall=recall)
    assert len(again) < 0.8 * len(first)
    assert len(again) <= 60 / 9 + 2, "candidates of 8 tokens from the first round on"
    unread = rounds_of(JacobiForcing(from_prompt=False, from_recall=False), cycling(), recall=recall)
    assert len(unread) == len(first)


def test_rejected_guesses_are_recycled_where_they_belong() -> None:
    """This target answers wrong guesses with the right text, one place too late."""
    text = random.Random(3).choices(range(VOCAB), k=80)

    def next_token(tokens: Sequence[int]) -> int:
        generated = list(tokens[len(PROMPT) :])
        return text[len(generated) - (generated != text[: len(generated)])]

    without = rounds_of(JacobiForcing(16, 2, pool_size=0, from_prompt=False), knows(next_token))
    recycled = rounds_of(JacobiForcing(16, 2, from_prompt=False), knows(next_token))
    assert len(recycled) < 0.5 * len(without)


def test_a_block_begins_with_what_followed_elsewhere() -> None:
    """Candidates and first guesses are then the same nodes."""
    prompt = (2, 3, 4, 5, 6, 7, 2, 3)
    method = JacobiForcing(8, 1)
    method.begin(prompt, None, Context(Sampler(), torch.eye(VOCAB), torch.eye(VOCAB), LookupCorpus()))
    assert method.propose(prompt, 10).tokens[:6] == (4, 5, 6, 7, 2, 3)
    assert len(method.propose(prompt, 10)) == 8


def test_candidates_differ_from_each_other() -> None:
    prompt = (2, 3, 2, 4, 2, 4, 2)
    method = JacobiForcing(1, 1, candidates=2, candidate_tokens=1)
    method.begin(prompt, None, Context(Sampler(), torch.eye(VOCAB), torch.eye(VOCAB), LookupCorpus()))
    draft = method.propose(prompt, 10)
    assert draft.tokens[0] != 3
    assert {3, 4} <= set(draft.tokens)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("jacobi", {}),
        ("jacobi_forcing", {"block_size": 16, "candidates": 0}),
        ("lookahead", {"whole_window": True}),
    ],
)
def test_forbidden_guesses_still_teach(name: str, options: dict[str, Any]) -> None:
    """Guards against pruning that cuts a Jacobi state at its first forbidden guess: nothing behind it would ever be swept."""

    free = rounds_of(load_method(name, **options), counting())
    bound = rounds_of(load_method(name, **options), counting(), constraint=OneOfTwo())
    assert [r.committed for r in bound] == [r.committed for r in free]


@pytest.mark.parametrize("name", ["jacobi", "jacobi_forcing"])
def test_guesses_keep_their_position_when_tokens_are_forced(name: str) -> None:
    free = rounds_of(load_method(name), counting())
    forced = rounds_of(load_method(name), counting(), constraint=OneOfTwo(forces=True))
    assert text_tokens(forced) == text_tokens(free)
    assert any(r.forced for r in forced)
    assert len(forced) <= len(free)


def test_first_guesses_are_of_the_prompt() -> None:
    draws = first_guesses("prompt", PROMPT).take(40)
    assert set(draws) == set(PROMPT) and draws == first_guesses("prompt", PROMPT).take(40)
    masks = first_guesses("mask", (7, 8, 9))
    assert (masks.take(2), masks.take(-1), masks.take(3)) == ([9, 9], [], [9, 9, 9])


@pytest.mark.parametrize("kind", get_args(FirstGuess))
def test_jacobi_without_refill_is_cllms_decoder(kind: FirstGuess) -> None:
    """Against the algorithm written down: n positions, each sweep replaces all of them, what agrees is final."""
    size, target = 6, ToyTarget()
    draws, drafts = first_guesses(kind, PROMPT), []
    text: list[int] = []
    guess: list[int] = []
    while len(text) < 60:
        left = size - len(text) % size
        guess += draws.take(left - len(guess))
        drafts.append(tuple(guess[: min(left, 59 - len(text))]))
        sweep = [int(target.logits([*PROMPT, *text, *guess[:i]]).argmax()) for i in range(left + 1)]
        agree = next((i for i in range(left) if guess[i] != sweep[i]), left)
        text, guess = text + sweep[: agree + 1], sweep[agree + 1 :]
    rounds = rounds_of(load_method("jacobi", block_size=size, refill=False, first_guess=kind), target)
    assert [r.draft_tokens for r in rounds] == drafts
    assert text_tokens(rounds) == text[:60]


def test_wrong_options_are_named() -> None:
    with pytest.raises(ValueError, match="spawn_ratio"):
        JacobiForcing(spawn_ratio=1.5)
    with pytest.raises(ValueError, match="pool_size"):
        JacobiForcing(pool_size=-1)
    for name in ("jacobi", "jacobi_forcing"):
        with pytest.raises(ValueError, match="first_guess must be one of: auto, prompt, mask; not 'zeros'"):
            load_method(name, first_guess="zeros")
