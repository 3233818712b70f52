"""Drafts are canonical trees, no matter how they were built."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.engine.draft import ROOT, Draft
from decoding.engine.verify import Verdict, verify


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    tokens = draw(st.lists(st.integers(0, 3), max_size=14))
    return tokens, [draw(st.integers(-1, i - 1)) for i in range(len(tokens))]


def paths(tokens: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    def up(node: int) -> tuple[int, ...]:
        return () if node == ROOT else (*up(parents[node]), tokens[node])

    return {up(node) for node in range(len(tokens))}


@given(trees())
def test_merging_siblings_keeps_exactly_the_same_guesses(tree: tuple[list[int], list[int]]) -> None:
    draft = Draft(tuple(tree[0]), tuple(tree[1]))
    assert paths(list(draft.tokens), list(draft.parents)) == paths(*tree)
    assert len(set(draft.children)) == len(draft)
    assert all(parent < node for node, parent in enumerate(draft.parents))
    assert [draft.depth(node) for node in range(len(draft))] == [len(draft.path(node)) for node in range(len(draft))]


@given(trees(), st.sets(st.integers(0, 13)))
def test_pruning_drops_whole_branches(tree: tuple[list[int], list[int]], dropped: set[int]) -> None:
    draft = Draft(tuple(tree[0]), tuple(tree[1]))
    kept = {
        tuple(draft.tokens[i] for i in draft.path(node))
        for node in range(len(draft))
        if not dropped & set(draft.path(node))
    }
    pruned = draft.only(draft.kept(lambda node: node not in dropped))
    assert paths(list(pruned.tokens), list(pruned.parents)) == kept


def test_trie_and_chain() -> None:
    trie = Draft.trie([(1, 2, 3), (1, 4), (1, 2, 5)])
    assert trie == Draft((1, 2, 3, 4, 5), (-1, 0, 1, 0, 1))
    assert Draft.chain((7, 8)) == Draft((7, 8), (-1, 0))
    assert Draft.chain((7, 8)).is_chain
    assert not trie.is_chain


def test_verify_follows_the_targets_choices() -> None:
    trie = Draft.trie([(1, 2, 3), (4, 5)])
    answers = {ROOT: 4, 3: 5, 4: 9}
    assert verify(trie, answers.__getitem__) == Verdict((3, 4), 9)


def test_malformed_drafts_are_refused() -> None:
    with pytest.raises(ValueError, match="parent 1"):
        Draft((1, 2), (1, -1))
    with pytest.raises(ValueError, match="one parent per token"):
        Draft((1, 2), (-1,))
