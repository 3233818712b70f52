"""Guards the recorded origin of each token."""

from decoding.engine.rounds import Round, origins


def make(index: int, draft: tuple[int, ...], parents: tuple[int, ...], accepted: tuple[int, ...], committed: tuple[int, ...],
         forced: tuple[int, ...] = ()) -> Round:  # fmt: skip
    return Round(index, 0, 1, 1, draft, parents, accepted, committed, forced, 0.0, 1.0, 0.0)


def test_every_token_of_the_text_has_one_origin() -> None:
    rounds = [make(0, (1, 2, 3), (-1, 0, 1), (0,), (1, 9), (8,)), make(1, (), (), (), (7,))]
    placed = origins(rounds)
    assert [each.token for each in placed] == [token for r in rounds for token in r.text_tokens]
    assert [each.origin for each in placed] == ["accepted", "bonus", "forced", "bonus"]
    assert [each.round_index for each in placed] == [0, 0, 0, 1]


def test_a_guess_that_was_rejected_before_is_recycled() -> None:
    """2 after 1 was guessed and rejected in the first round; the same after another token is a new guess."""
    rounds = [make(0, (1, 2), (-1, 0), (), (5,)), make(1, (1, 2, 6), (-1, 0, 1), (0, 1, 2), (1, 2, 6, 9))]
    assert [each.origin for each in origins(rounds)][1:] == ["accepted", "recycled", "accepted", "bonus"]


def test_branches_of_a_tree_follow_their_parents() -> None:
    rounds = [make(0, (1, 2, 3, 4), (-1, -1, 0, 1), (1, 3), (2, 4, 9)), make(1, (3,), (-1,), (0,), (3, 7))]
    assert [each.origin for each in origins(rounds)] == ["accepted", "accepted", "bonus", "accepted", "bonus"]


def test_an_accepted_token_cut_at_the_end_counts_as_the_targets_own() -> None:
    """A stop token at the end of the accepted path is the last that was committed."""
    assert [each.origin for each in origins([make(0, (1, 2), (-1, 0), (0,), (1, 2))])] == ["accepted", "bonus"]
