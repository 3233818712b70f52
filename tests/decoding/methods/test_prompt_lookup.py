"""Prompt lookup: where it copies from and how much; and what a recall holds besides the conversation."""

from collections.abc import Sequence

import torch

from decoding.engine.method import Context, LookupCorpus
from decoding.engine.sampler import Sampler
from decoding.methods.registry import load_method


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
    both = recall.beside([(5,) * 9], [(6,), (7,)])
    assert both.sequences == ((7,), (6,), (3, 4), (1, 2), (5,) * 9)
    assert recall.sequences == ((3, 4), (1, 2))
