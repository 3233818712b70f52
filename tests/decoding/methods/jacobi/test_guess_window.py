"""The guesses that Jacobi Forcing's decoder has in flight: blocks that settle and are begun, and what masks said."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import Any

import pytest

from decoding.engine.rounds import Round, text_tokens
from decoding.methods.jacobi import JacobiForcing
from decoding.methods.jacobi_window import block_range
from decoding.methods.registry import load_method
from tests.decoding.methods.test_jacobi_forcing import PROMPT, OneOfTwo, counting, cycling, knows, rounds_of
from tests.decoding.models.toy import VOCAB, ToyTarget


def test_converging_at_once_commits_a_block_per_forward() -> None:
    size = 8
    always = rounds_of(JacobiForcing(size, 2, spawn_ratio=0, candidates=0), counting(), max_new_tokens=160)
    assert len(always) <= 160 / size + 1
    alone = rounds_of(JacobiForcing(size, 1, candidates=0), counting(), max_new_tokens=160)
    assert len(alone) >= 1.8 * len(always), "a lone block needs a sweep before it can be accepted"


def slow_then_fast(size: int) -> ToyTarget:
    """In the first block every token follows from the last one; afterwards it depends on its position alone."""
    end = len(PROMPT) + size
    return knows(lambda tokens: (tokens[-1] + 5 if len(tokens) < end else len(tokens)) % VOCAB)


def test_promotion_continues_the_promoted_block() -> None:
    """Guards against a pseudo-active block that is begun and then thrown away, as in the released code."""
    size = 8
    kept = rounds_of(
        JacobiForcing(size, 2, spawn_ratio=0.5, candidates=0), slow_then_fast(size), max_new_tokens=2 * size
    )
    assert [len(r.committed) for r in kept] == [1] * size + [size], "the second block is accepted whole, at once"
    alone = rounds_of(JacobiForcing(size, 1, candidates=0), slow_then_fast(size), max_new_tokens=2 * size)
    assert text_tokens(alone) == text_tokens(kept)
    assert len(alone) > len(kept), "a new block needs a sweep of its own"


def test_a_settled_pseudo_active_block_begins_the_next() -> None:
    """Guards against progress that is counted for the real-active block only."""
    size, blocks = 8, 4
    rounds = rounds_of(JacobiForcing(size, blocks, spawn_ratio=0.5, candidates=0), slow_then_fast(size))
    assert [-(-(i + len(r.draft_tokens)) // size) for i, r in enumerate(rounds[:size])] == [1, 1, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("spawn_ratio", [0.0, 0.25, 0.75, 1.0])
def test_a_block_is_begun_when_the_newest_has_settled(spawn_ratio: float) -> None:
    size, blocks = 8, 3
    method = JacobiForcing(size, blocks, spawn_ratio=spawn_ratio, candidates=0)
    generated, begun = 0, None
    for r in rounds_of(method, cycling(), max_new_tokens=200)[:40]:
        end = generated + len(r.draft_tokens)
        assert end % size == 0, "blocks are aligned to generated positions"
        assert end - block_range(generated, size).start <= blocks * size
        if begun is None and end > block_range(generated, size).stop:
            begun = generated, end
        generated += len(r.committed)
    at = ceil(spawn_ratio * size)
    assert begun == {0: (0, blocks * size), size: None}.get(at, (at, 2 * size))


def with_masks(depths: int = 4) -> ToyTarget:
    """Every token follows from the last one, and masks know what follows from the token before them, but at each 6th place.

    What a sweep answers after a wrong token is wrong, too.
    """

    def next_token(tokens: Sequence[int]) -> int:
        text = [token for token in tokens if token < VOCAB]
        masks = len(tokens) - len(text)
        return (text[-1] + 5 * (masks + 1) + (masks > 0 and len(tokens) % 6 == 0)) % VOCAB

    target = knows(next_token)
    target.mask_tokens = range(VOCAB, VOCAB + depths)
    return target


def test_what_masks_said_outlives_a_wrong_guess() -> None:
    """Sweeps below a wrong guess, as the papers have them, are wrong for as long as the block lasts."""

    def rounds(**options: Any) -> list[Round]:
        method = JacobiForcing(4, candidates=0, pool_size=0, **options)
        return rounds_of(method, with_masks(), max_new_tokens=120)

    swept, masked = rounds(remask=False), rounds()
    plain = rounds_of(load_method("plain"), with_masks(), max_new_tokens=120)
    assert text_tokens(swept) == text_tokens(masked) == text_tokens(plain)
    assert len(masked) < 0.7 * len(swept)
    rejected = [
        following
        for r, following in pairwise(masked)
        if sum(token < VOCAB for token in r.draft_tokens) > len(r.accepted) + 1
    ]
    assert rejected and all(r.draft_tokens[0] < VOCAB for r in rejected), "guesses again, and no masks"


def test_more_blocks_look_further_where_masks_are_known() -> None:
    """The second block is in flight as soon as masks have answered for the first one."""
    counts = [
        len(rounds_of(JacobiForcing(4, blocks, candidates=0, pool_size=0), with_masks(8), max_new_tokens=120))
        for blocks in (1, 2)
    ]
    assert counts[1] < 0.8 * counts[0]


@pytest.mark.parametrize("name", ["jacobi", "jacobi_forcing"])
def test_masks_go_by_their_distance_from_the_last_guess(name: str) -> None:
    """Guards against masks that keep their depth while the text moves on."""
    for r in rounds_of(
        load_method(name, first_guess="mask", block_size=6), with_masks(6), constraint=OneOfTwo(forces=True)
    ):
        masks = [token - VOCAB for token in r.draft_tokens if token >= VOCAB]
        assert masks == list(range(len(masks)))
