"""`OneOf`: the texts that it allows are the ones given, and it forces what leaves no choice. `Begun`: a text begins as told."""

import pytest

from decoding.engine.constraint import Begun, Constraint
from decoding.engine.loop import Request, decode
from decoding.engine.sampling.sampler import Sampler
from decoding.methods.registry import load_method
from tests.decoding.engine.one_of import OneOf
from tests.decoding.models.toy import ToyTarget

STOP = frozenset({7, 9})
TEXTS = ([1, 2], [1, 3, 4], [1, 3, 4, 5])


def test_it_is_a_constraint_of_the_texts_alone() -> None:
    one_of = OneOf(TEXTS, STOP, 10)
    assert isinstance(one_of, Constraint)
    state = one_of.start()
    for token, allowed in ((1, {1}), (3, {2, 3}), (4, {4}), (5, {5, 7, 9}), (9, {7, 9})):
        assert set(one_of.allowed(state).nonzero()[0]) == allowed
        assert {each for each in range(10) if one_of.admits(state, each)} == allowed
        state = one_of.step(state, token)


def test_what_leaves_no_choice_is_forced_up_to_the_end() -> None:
    one_of = OneOf(TEXTS, STOP, 10)
    assert one_of.forced(()) == (1,)
    assert one_of.forced((1,)) == ()
    assert one_of.forced((1, 2)) == (7,)
    assert one_of.forced((1, 3)) == (4,)
    assert OneOf(TEXTS, frozenset({9}), 10).forced((1, 2)) == (9,)


def test_a_model_writes_one_of_them_in_a_forward_for_each_choice() -> None:
    target = ToyTarget()
    one_of, written = OneOf(TEXTS, STOP, target.vocab_size), set()
    for seed in range(20):
        asked = Request((1, 2), load_method("plain"), 9, Sampler(1.0, seed), STOP, one_of)
        rounds = list(decode(target, [asked]))
        *text, last = [token for r in rounds for token in r.text_tokens]
        assert last in STOP and text in map(list, TEXTS) and rounds[-1].finish == "stop"
        assert len(rounds) == {2: 2, 3: 3, 4: 3}[len(text)]
        written.add(tuple(text))
    assert len(written) == len(TEXTS)


def test_what_is_begun_goes_on_under_the_inner_constraint() -> None:
    begun = Begun([1, 3], OneOf(TEXTS, STOP, 10))
    assert isinstance(begun, Constraint)
    state = begun.start()
    assert begun.forced(state) == (1, 3)
    for token, allowed in ((1, {1}), (3, {3}), (4, {4}), (5, {5, 7, 9}), (9, {7, 9})):
        assert set(begun.allowed(state).nonzero()[0]) == allowed
        assert {each for each in range(10) if begun.admits(state, each)} == allowed
        state = begun.step(state, token)


def test_without_tokens_it_is_the_inner_constraint() -> None:
    inner = OneOf(TEXTS, STOP, 10)
    begun = Begun((), inner)
    assert begun.forced(begun.start()) == inner.forced(inner.start()) == (1,)
    assert set(begun.allowed(begun.start()).nonzero()[0]) == {1}


def test_constraints_that_begin_otherwise_are_told_apart() -> None:
    """Guards replies that are kept by their constraint's key."""
    inner = OneOf(TEXTS, STOP, 10)
    assert Begun([1], inner).key == Begun((1,), inner).key != Begun([1, 3], inner).key
    assert Begun([1], inner).key != Begun([1], OneOf(TEXTS, STOP, 10)).key  # another constraint, which has no key


@pytest.mark.parametrize("method", ["plain", "jacobi_forcing", "prompt_lookup"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_method_writes_on_from_the_beginning_alike(method: str, temperature: float) -> None:
    target = ToyTarget()

    def text(name: str, seed: int) -> list[int]:
        begun = Begun([1, 3, 4], OneOf(TEXTS, STOP, target.vocab_size))
        asked = Request((1, 2), load_method(name), 9, Sampler(temperature, seed), STOP, begun)
        return [token for each in decode(target, [asked]) for token in each.text_tokens]

    for seed in range(5):
        assert text(method, seed)[:3] == [1, 3, 4]
        assert text(method, seed) == text("plain", seed)
