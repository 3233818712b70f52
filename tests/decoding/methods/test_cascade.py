"""Methods that combine other methods, and a method that is added from outside.

Prompt lookup: where it copies from and how much; and what a recall holds besides the conversation.
"""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.method import Context, LookupCorpus, Method, UnknownMethod
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardOutput
from decoding.engine.verify import Verdict
from decoding.methods.baselines import Cascade
from decoding.methods.registry import METHODS, load_method
from tests.decoding.models.block_data import context_of, text_of
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.toy import ToyTarget


class _Tapped(Method):
    """Checks that it gets the states of its own taps, and drafts when told to."""

    def __init__(self, tap: int, guess: Sequence[int]) -> None:
        self.taps, self.guess, self.states = (tap,), guess, []  # type: ignore[var-annotated]

    def begin(self, prompt: Sequence[int], hidden: Tensor | None, context: Context) -> None:
        self.states = [] if hidden is None else hidden[:, :, 0].tolist()

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        return Draft.chain(self.guess)

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        assert scores.hidden is not None
        self.states += scores.hidden[:, :, 0].tolist()


@pytest.mark.usefixtures("one_thread")
def test_a_cascade_takes_the_first_draft_that_is_not_empty() -> None:
    first, second = _Tapped(2, ()), _Tapped(1, (4, 5))
    cascade = Cascade(first, second)
    assert cascade.taps == (1, 2)
    cascade.begin((1,), None, context_of())
    assert cascade.propose([1], 5) == Draft.chain((4, 5))
    hidden = torch.arange(4.0).view(2, 2, 1)
    cascade.observe(Draft(), ForwardOutput.of(np.zeros((1, 3), np.float32), hidden, lambda node: 0), Verdict((), 0))
    assert (first.states, second.states) == ([[1.0], [3.0]], [[0.0], [2.0]]), "each gets its own column"
    first.guess = (6,)
    assert cascade.propose([1], 5) == Draft.chain((6,))


@pytest.mark.usefixtures("one_thread")
def test_a_part_that_needs_no_states_drafts_in_the_first_round() -> None:
    """A text is a few rounds long, and what the prompt says needs no forward to be copied."""
    prompt = (1, 2, 3, 4, 1, 2, 3, 4, 1, 2)
    for cascade in (
        Cascade("prompt_lookup", _Tapped(1, (5,))),
        Cascade("prompt_lookup", _Tapped(1, (5,)), together=True),
    ):
        first, second, *_ = decode(ToyTarget(), [Request(prompt, cascade, 6, Sampler())])
        assert first.draft_tokens[:3] == (3, 4, 1)
        assert 5 not in first.draft_tokens
        assert 5 in second.draft_tokens


@pytest.mark.usefixtures("one_thread")
def test_a_cascade_of_two_heads_writes_plain_text() -> None:
    target = ToyTarget()
    parts = [ready_method(name, target) for name in ("domino", "ddtree")]
    for sampler in (Sampler(), Sampler(1.0, 4)):
        assert text_of(Cascade(*parts), sampler) == text_of(load_method("plain"), sampler)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("pair", [("domino", "ddtree"), ("prompt_lookup", "jacobi"), ("jacobi_forcing", "path_tree")])
def test_both_drafts_in_one_tree_write_plain_text(pair: tuple[str, str]) -> None:
    target = ToyTarget()
    for sampler in (Sampler(), Sampler(1.0, 4)):
        parts = [ready_method(name, target) for name in pair]
        assert text_of(Cascade(*parts, together=True), sampler) == text_of(load_method("plain"), sampler)


@pytest.mark.usefixtures("one_thread")
def test_both_drafts_share_what_they_agree_on() -> None:
    cascade = Cascade(_Tapped(1, (4, 5)), _Tapped(2, (4, 6)), together=True)
    assert cascade.propose([1], 5) == Draft((4, 5, 6), (-1, 0, 0))


@pytest.mark.usefixtures("one_thread")
def test_both_drafts_keep_their_context() -> None:
    first, second = Draft.chain((7, 5), context=[0]), Draft.chain((7, 8, 9), context=range(3))
    joined = first.joined(second)
    assert joined.tokens == (7, 5, 8, 9) and joined.context == {0, 2, 3}
    assert joined.first(3).context == {0, 2}


@pytest.mark.usefixtures("one_thread")
def test_a_cascades_methods_take_options() -> None:
    cascade = load_method("cascade", first="prompt_lookup:min_ngram=2,draft_tokens=3", second="plain")
    cascade.begin((1, 2, 3, 4, 5, 1, 2), None, context_of())
    assert cascade.propose((1, 2, 3, 4, 5, 1, 2), 9) == Draft.chain((3, 4, 5))
    with pytest.raises(UnknownMethod, match="no option speed"):
        load_method("cascade", first="plain:speed=9")
    with pytest.raises(UnknownMethod, match="key=value"):
        load_method("cascade", second="jacobi:fast")


class Parrot(Method):
    """A method as somebody would add it: guesses the last token again."""

    def __init__(self, times: int = 2) -> None:
        self._times = times

    def begin(self, prompt: Sequence[int], hidden: Tensor | None, context: Context) -> None: ...

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        return Draft.chain([tokens[-1]] * min(self._times, room))

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None: ...


@pytest.mark.usefixtures("one_thread")
def test_a_method_is_one_class_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Command line and benchmark take what `METHODS` lists, and the losslessness test runs over it."""
    from app.doctor import facts
    from app.measure.bench import method_spec
    from decoding.methods.registry import ready_methods
    from tests.decoding.engine.test_lossless import test_same_text_as_plain

    monkeypatch.setitem(METHODS, "parrot", f"{__name__}:Parrot")  # type: ignore[arg-type]
    assert facts()["decoders"]["parrot"] == {"times": 2}
    assert "parrot" in ready_methods(None), "what `bench` compares where no names are given"
    assert method_spec("parrot:times=3").options == {"times": 3}
    test_same_text_as_plain("parrot", Sampler(1.0, 1))
    with pytest.raises(UnknownMethod, match="parrot"):
        load_method("polly")


def drafted(
    text: Sequence[int], recalled: Sequence[Sequence[int]] = (), room: int = 99, **options: int
) -> list[tuple[int, ...]]:
    """The branches of the draft after `text`."""
    recall = LookupCorpus()
    for sequence in recalled:
        recall.add(sequence)
    method = load_method("prompt_lookup", **options)
    method.begin(text, None, Context(Sampler(), torch.eye(2), torch.eye(2), recall))
    draft = method.propose(text, room)
    leaves = set(range(len(draft))) - set(draft.parents)
    return [tuple(draft.tokens[node] for node in draft.path(leaf)) for leaf in sorted(leaves)]


def test_longer_matches_come_first_and_let_more_be_copied() -> None:
    text = [1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 3, 20, 21, 22, 2, 3]
    assert drafted(text, per_matched=2) == [(10, 11, 12, 13)], "two tokens agree"
    assert drafted(text) == [(10, 11, 12, 13, 14, 15)]
    assert drafted(text, draft_tokens=3) == [(10, 11, 12)]
    assert drafted(text, room=1) == [(10,)]
    assert drafted(text, max_ngram=1) == [(20, 21, 22)], "the newest"
    assert drafted(text, min_ngram=3) == []
    assert drafted(text, matches=2, per_matched=2) == [(10, 11, 12, 13), (20, 21)]


def test_the_text_itself_comes_before_what_is_recalled_and_newer_before_older() -> None:
    assert drafted([5, 6, 7, 5], [[5, 8], [5, 9]]) == [(6, 7, 5)]
    assert drafted([7, 5], [[5, 8], [5, 9]]) == [(9,)]
    assert drafted([7, 5], [[7, 5, 8], [5, 9]]) == [(8,)]


def test_a_recall_with_others_beside_it_forgets_nothing() -> None:
    recall = LookupCorpus(max_tokens=4)
    recall.add((1, 2))
    recall.add((3, 4))
    both = recall.with_texts([(5,) * 9], [(6,), (7,)])
    assert both.sequences == ((7,), (6,), (3, 4), (1, 2), (5,) * 9)
    assert recall.sequences == ((3, 4), (1, 2))
