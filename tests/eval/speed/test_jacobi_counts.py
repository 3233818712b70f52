"""Fast-forwarded and stationary tokens, on a decoding written down by hand."""

from decoding.engine.draft import Draft
from decoding.engine.rounds import Round
from eval.speed.agent_calls import JacobiCounts, count


def make(guess: Draft, accepted: tuple[int, ...], committed: tuple[int, ...], forced: tuple[int, ...] = ()) -> Round:
    return Round(0, 0, 1, 1, guess.tokens, guess.parents, accepted, committed, forced, 0.0, 0.0, 0.0)


def chain(*tokens: int) -> Draft:
    return Draft.chain(tokens)


def test_counts_of_a_hand_made_decoding() -> None:
    """The text is 10 11 12 13 14 15 16 17.

    Positions 3 and 5 are right below wrong guesses; 3 is kept until it is accepted, 5 is lost again. Position 6 is right
    and kept, 7 is right but never below a wrong guess.
    """
    rounds = [
        make(chain(10, 0, 0, 13, 0, 15), (0,), (10, 11)),
        make(chain(0, 13, 0, 0, 16), (), (12,)),
        make(chain(13, 0, 0, 16), (0,), (13, 14)),
        make(chain(15, 16, 17), (0, 1), (15, 16, 17)),
    ]
    assert count(rounds) == JacobiCounts(forwards=4, fast_forwarded=4, stationary=2)
    assert count(rounds[:1]) == JacobiCounts(1, 1, 0)


def test_forced_tokens_move_positions_and_another_branch_may_win() -> None:
    """The text is 1 2 3 4 5 6; 2 3 are forced; the candidate 4 beats the own guess 9, below which 5 is right and kept."""
    rounds = [
        make(chain(0, 2, 3, 9, 5), (), (1,), forced=(2, 3)),
        make(Draft.trie([(9, 5), (4, 5)]), (2, 3), (4, 5, 6)),
    ]
    assert count(rounds) == JacobiCounts(forwards=2, fast_forwarded=2, stationary=1)
    plain = [make(Draft(), (), (token,)) for token in (1, 2, 3)]
    assert count(plain) == JacobiCounts(forwards=3)
