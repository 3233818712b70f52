"""Selects a round's tapped hidden states of the tokens that became text, in order."""

from decoding.engine.draft import Draft
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict


def committed_hidden(draft: Draft, scores: Scores, verdict: Verdict) -> Array:
    """States [new, taps, hidden] of the round's pending tokens and accepted nodes: every committed token but the bonus.

    Call it from `Method.observe`, with its arguments. Over a whole text, it returns each token's states exactly once.
    """
    if scores.hidden is None:
        raise ValueError("nothing was tapped: the method declares no taps")
    pending = len(scores.hidden) - len(draft)
    path = list(verdict.path)
    if path == list(range(len(path))):
        rows: Array = scores.hidden[: pending + len(path)]
    else:
        rows = scores.hidden[[*range(pending), *(pending + node for node in path)]]
    return rows
