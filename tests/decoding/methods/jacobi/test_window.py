"""The window of Jacobi decoding, and what one sweep answers."""

import numpy as np

from decoding.engine.draft import Draft
from decoding.engine.target import ForwardOutput
from decoding.engine.verify import Verdict
from decoding.methods.jacobi_window import answers, block_range, next_state


def test_answers_go_on_where_the_accepted_branch_ends() -> None:
    """Own guess 0 1 2 3 (nodes 0 to 3), candidate 7 8 (nodes 4 and 5), of which 7 is accepted: node 5, then 2 and 3."""
    draft = Draft.trie([(0, 1, 2, 3), (7, 8)])
    scores = ForwardOutput.of(np.empty(0, np.float32), None, lambda node: 100 + node)
    own = (0, 1, 2, 3)
    assert answers(draft, scores, Verdict((4,), 9), own) == [105, 102, 103]
    assert answers(draft, scores, Verdict((4, 5), 9), own) == [102, 103]
    assert answers(draft, scores, Verdict((0, 1), 9), own) == [102, 103]
    assert answers(draft, scores, Verdict((0, 1, 2, 3), 9), own) == answers(Draft(), scores, Verdict((), 9), own) == []


def test_answers_follow_the_own_guess_beside_anothers() -> None:
    """Another method's 0 5 (nodes 0 and 1) before the own guess 0 1 2 (nodes 0, 2 and 3), of which 0 is accepted."""
    draft = Draft.chain((0, 5)).joined(Draft.chain((0, 1, 2)))
    scores = ForwardOutput.of(np.empty(0, np.float32), None, lambda node: 100 + node)
    assert answers(draft, scores, Verdict((0,), 9), (0, 1, 2)) == [102, 103]
    assert answers(draft, scores, Verdict((0, 1), 9), (0, 1, 2)) == [103]


def test_the_window_and_the_sweep() -> None:
    assert [block_range(at, 4) for at in (0, 3, 4, 9)] == [range(4), range(4), range(4, 8), range(8, 12)]
    assert next_state([1, 2, 3], [7, 8]) == [7, 8, 3], "what was not scored keeps its guess"
    assert next_state([1], [7, 8]) == [7, 8]
