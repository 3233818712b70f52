"""What copies say, and what is counted of it: only what the constraint let them say, where the text came to be asked."""

import pytest

from decoding.checkpoints.draft_priors import DEFAULT_PRIORS
from decoding.engine.constraint import ConstraintCursor
from decoding.engine.experience import AcceptanceStats
from decoding.methods.ngram_pool import CopiedGuesses
from tests.decoding.models.one_of import OneOf

COPIED, BEGINNING, SECOND = DEFAULT_PRIORS.copies, DEFAULT_PRIORS.first_copies, DEFAULT_PRIORS.second_copies
TEXT = [1, 2]
FOLLOWED = [(1, 2, 5, 6, 7), (1, 2, 5, 8, 9)]  # the first one is preferred


def copies() -> CopiedGuesses:
    found = CopiedGuesses(FOLLOWED, 3, 9, AcceptanceStats().of("plan"))
    found.find(TEXT, 9)
    return found


def test_another_copy_shares_what_the_first_leaves() -> None:
    said = copies()
    assert said.agreed == 2 and said.shares((), None) == pytest.approx({5: COPIED[2]})
    assert said.shares((5,), None) == pytest.approx({6: COPIED[3], 8: (1.0 - COPIED[3]) * SECOND[0]})
    assert said.shares((6,), None) == {}


@pytest.mark.parametrize(("agreed", "first", "later"), [(1, *BEGINNING[:2]), (2, *BEGINNING[2:4]), (5, *BEGINNING[4:])])
def test_where_nothing_is_written_yet_copies_have_cases_of_their_own(agreed: int, first: float, later: float) -> None:
    prompt, experience = [9, *range(20, 20 + agreed)], AcceptanceStats().of("plan")
    said = CopiedGuesses([(*prompt[1:], 5, 6, 7), (*prompt[1:], 5, 8)], 3, 9, experience, len(prompt))
    said.find(prompt, 9)
    assert said.agreed == agreed and said.shares((), None) == pytest.approx({5: first})
    assert said.shares((5,), None) == pytest.approx({6: later, 8: (1.0 - later) * SECOND[1]})
    assert said.shares((5, 6), None) == pytest.approx({7: later})
    said.count((5, 6, 7))
    said.find([*prompt, 5], 9)
    assert said.shares((), None)[6] == pytest.approx(COPIED[agreed + 1]), "what was counted is of the beginning"


def test_what_was_right_is_counted_at_each_place_that_was_asked() -> None:
    said = copies()
    for path in ((), (5,), (5, 6)):
        said.shares(path, None)
    said.count((5, 8, 9))  # right, then the second copy, and (5, 8) was not asked
    said.find(TEXT, 9)
    assert said.shares((), None)[5] > COPIED[2]
    shares = said.shares((5,), None)
    assert shares[6] < COPIED[3] and shares[8] / (1.0 - shares[6]) > SECOND[0]
    assert said.shares((5, 6), None) == pytest.approx({7: COPIED[4]})
    assert said.shares((5, 8), None) == pytest.approx({9: COPIED[4]})


def test_a_copy_that_the_constraint_forbids_is_not_counted_as_wrong() -> None:
    cursor = ConstraintCursor.start(OneOf([[5, 8, 9], [4, 3]], frozenset([0]), 10), frozenset([0]))
    said = copies()
    assert said.shares((5,), cursor.after(5)) == pytest.approx({8: COPIED[3]}), (
        "the second copy stands in for the first"
    )
    said.count((5, 8))
    said.find(TEXT, 9)
    assert said.shares((5,), None)[6] > COPIED[3] and said.shares((), None) == pytest.approx({5: COPIED[2]})
