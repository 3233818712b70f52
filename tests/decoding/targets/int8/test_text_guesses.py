"""What masks say, corrected and ranked by a kernel, beside the same in numpy."""

import numpy as np
import pytest

from decoding.checkpoints.bigrams import FITTED, TokenPairs
from decoding.engine.sampler import Floats
from decoding.engine.target import Ranked, TextScores, TokenSet
from decoding.methods.likely import ranked
from decoding.targets.int8.mask_rows import KernelPairs
from kernels.cpu.job import MOST_FOLLOWERS

RANDOM = np.random.default_rng(5)
FREQUENT = np.arange(10, 130, 3)  # some tokens have scores of pairs
TOKENS = TokenSet(np.arange(4, 150, 2))  # what masks are asked about
TEXT = RANDOM.integers(0, 160, 900).tolist()


def pairs(weights: Floats | None = FITTED) -> TokenPairs:
    before, after = RANDOM.normal(0, 1, (2, len(FREQUENT), 8)).astype(np.float32)
    return TokenPairs(FREQUENT, before, after, weights)


def numpy_best(
    scores: TextScores, logits: Floats, row: int, tail: tuple[int, int], tokens: TokenSet, count: int
) -> Ranked:
    places, found = ranked(scores.corrected(logits[row], tail, tokens.ids), count)
    return tokens.ids[places].tolist(), found.tolist()


def assert_alike(slow_pairs: TokenPairs, text: list[int], tails: list[tuple[int, int]], count: int = 16) -> None:
    """The same tokens with the same scores, before and after the text has grown."""
    slow, fast = slow_pairs.in_text(text[:700]), KernelPairs(slow_pairs).in_text(text[:700])
    logits = RANDOM.normal(0, 3, (len(TOKENS), 5)).astype(np.float32).T  # a row need not lie in one piece
    for length in (700, 702, len(text)):
        slow.grow(text[:length])
        fast.grow(text[:length])
        for row, tail in enumerate(tails):
            asked = logits, row % 5, tail, TOKENS, count
            want, found = numpy_best(slow, *asked), fast.best(*asked)
            assert found[0] == want[0]
            assert found[1] == pytest.approx(want[1], abs=1e-4)
            assert fast.corrected(logits[0], tail, TOKENS.ids) == pytest.approx(
                slow.corrected(logits[0], tail, TOKENS.ids)
            )


def test_the_kernel_says_what_numpy_says() -> None:
    places = RANDOM.integers(1, 699, 40)
    assert_alike(pairs(), TEXT, [(TEXT[place - 1], TEXT[place]) for place in places])


def test_tokens_that_nothing_is_known_of_are_ranked_as_they_are() -> None:
    text = [token % 100 for token in TEXT]
    assert_alike(pairs(), text, [(3, 155), (1, 159), (155, text[4])])


def test_without_weights_of_followers_only_pairs_count() -> None:
    assert_alike(pairs(None), TEXT, [(TEXT[3], TEXT[4]), (7, 10), (7, 11)])


@pytest.mark.parametrize("distinct", [MOST_FOLLOWERS, MOST_FOLLOWERS + 1])
def test_a_token_with_too_many_followers_gives_them_no_score(distinct: int) -> None:
    text = [token for other in range(distinct) for token in (1, 10 + other)]
    assert_alike(pairs(), text + [2] * 700, [(73, 1), (2, 1)])


def test_an_empty_text_has_no_followers_and_never_gets_any() -> None:
    known = pairs()
    slow, fast = known.in_text(()), KernelPairs(known).in_text(())
    logits = RANDOM.normal(0, 3, (1, len(TOKENS))).astype(np.float32)
    for each in (slow, fast):
        each.grow(TEXT)
    assert fast.best(logits, 0, (3, 10), TOKENS, 4)[0] == numpy_best(slow, logits, 0, (3, 10), TOKENS, 4)[0]


def test_fewer_tokens_than_are_wanted_are_all_ranked() -> None:
    few = TokenSet(np.array([10, 12, 13]))
    known = pairs()
    slow, fast = known.in_text(TEXT), KernelPairs(known).in_text(TEXT)
    logits = np.array([[0.5, 2.0, -1.0]], np.float32)
    want, found = numpy_best(slow, logits, 0, (3, 10), few, 8), fast.best(logits, 0, (3, 10), few, 8)
    assert found[0] == want[0] and len(found[0]) == 3
    assert found[1] == pytest.approx(want[1], abs=1e-4)
