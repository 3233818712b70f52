"""Drafts that are joined, and a method that is added from outside.

Prompt lookup: where it copies from and how much; and what a recall holds besides the conversation.
"""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from decoding.engine.draft import Draft
from decoding.engine.method import Context, LookupCorpus, Method, UnknownMethod
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardOutput
from decoding.engine.verify import Verdict
from decoding.methods.registry import METHODS, load_method


def test_both_drafts_keep_their_context() -> None:
    first, second = Draft.chain((7, 5), context=[0]), Draft.chain((7, 8, 9), context=range(3))
    joined = first.joined(second)
    assert joined.tokens == (7, 5, 8, 9) and joined.context == {0, 2, 3}
    assert joined.first(3).context == {0, 2}


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
