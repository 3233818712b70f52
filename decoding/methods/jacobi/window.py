"""The rules that Jacobi decoding shares with the trajectories it is trained on: the window, and one sweep.

Blocks are aligned to generated positions: block j holds the generated tokens [j * n, (j + 1) * n). A block is never
restarted: it shrinks from the left while its tokens are accepted (Consistency LLMs, arXiv 2403.00835; Jacobi Forcing,
arXiv 2512.14681). Plain data, no tensors.
"""

from collections.abc import Sequence

from decoding.engine.draft import ROOT, Draft
from decoding.engine.target import Scores
from decoding.engine.verify import Verdict


def block_range(generated: int, n: int) -> range:
    """Generated positions of the block of `n` that holds position `generated` (0 is the first generated token)."""
    start = generated - generated % n
    return range(start, start + n)


def next_state(state: Sequence[int], choices: Sequence[int]) -> list[int]:
    """One Jacobi sweep: every position takes the target's own choice for it.

    `state` and `choices` begin at the same position; `choices[i]` is the target's token given the old guesses before it.
    A position that was not scored keeps its guess. `choices` may reach past the state (the answer to the last guess).
    """
    return [*choices, *state[len(choices) :]]


def answers(draft: Draft, scores: Scores, verdict: Verdict, guess: Sequence[int]) -> list[int]:
    """The target's choices for the positions after the bonus: its answers to the rejected nodes.

    Those below the accepted path come first; where that branch ends, those of the method's own guess go on. Beside other
    guesses in one tree, the own one is followed where the accepted path lies on it.
    """
    path, own = verdict.path, draft.below(ROOT, guess)
    on_own = path == tuple(own[: len(path)])
    last = own[-1] if own and on_own else path[-1] if path else ROOT
    below = [*(own[len(path) :] if on_own else ()), *following(draft.parents, last)]
    return [scores.choice(node) for node in (*below, *own[len(path) + len(below) :])]


def following(parents: Sequence[int], node: int) -> list[int]:
    """The nodes of a draft below `node`, first child after first child. On a chain: all of them."""
    first_child: dict[int, int] = {}
    for child, parent in enumerate(parents):
        first_child.setdefault(parent, child)
    out: list[int] = []
    while node in first_child:
        node = first_child[node]
        out.append(node)
    return out
