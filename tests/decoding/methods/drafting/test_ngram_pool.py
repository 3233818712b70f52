"""The pool of n-grams: which continuations it offers, and in which order."""

from collections.abc import Sequence

from decoding.methods.ngram_pool import NgramPool


def test_the_pool_prefers_long_agreement_then_what_is_new() -> None:
    pool = NgramPool(2, texts=[(1, 2, 3, 4), (9, 2, 3, 5)])

    def asked(text: Sequence[int]) -> list[tuple[int, ...]]:
        return list(dict.fromkeys(pool.following(text, 2)))

    assert asked([1, 2, 3]) == [(4,), (5,)]
    for sequence in ([3, 6, 6], [3, 7], [8, 3, 8, 3, 9, 70_000]):
        pool.add(sequence)
    assert asked([1, 2, 3]) == [(4,), (5,), (9, 70_000), (8, 3), (7,)], "the oldest of three was dropped"
    assert asked([3, 1, 2, 3]) == [(4,), (5,), (9, 70_000), (8, 3), (7,), (1, 2)], "the text's own n-grams, too"
    assert asked([1, 9]) == [(70_000,), (2, 3)]
    assert asked([10]) == []
