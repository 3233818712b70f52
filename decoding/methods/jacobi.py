"""Jacobi decoding: the target's own answers to a wrong guess are the next guess.

Santilli et al., ACL 2023 (arXiv 2305.10427); CLLM (arXiv 2403.00835) trains checkpoints for it. Works at any
temperature: the answers are the target's keyed choices, and a guess keeps its absolute position.
"""

from collections.abc import Sequence

from torch import Tensor

from decoding.draft import ROOT, Draft
from decoding.method import Context
from decoding.methods.first_guess import PromptDraws
from decoding.target import Scores
from decoding.verify import Verdict


class Jacobi:
    """A chain of `block_size` guesses.

    block_size: guesses per forward (CLLM's n - 1).
    refill: draw new guesses as old ones are accepted, so that the window slides; otherwise, as in CLLM's code, the block
        shrinks until it has converged and a new one begins.
    """

    taps: tuple[int, ...] = ()

    def __init__(self, block_size: int = 8, refill: bool = True) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be 1 or more, not {block_size}")
        self._block_size, self._refill = block_size, refill

    def begin(self, prompt: Sequence[int], hidden: Tensor | None, context: Context) -> None:
        self._draws = PromptDraws(prompt)
        self._guess: list[int] = []
        self._start = 0  # absolute position of the first guess
        self._text_length = len(prompt)

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        self._guess = self._guess[len(tokens) - self._start :]
        if self._refill or not self._guess:
            self._guess += self._draws.take(self._block_size - len(self._guess))
        self._text_length = len(tokens)
        return Draft.chain(self._guess[:room])

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        wrong = following(draft, verdict)
        self._guess = [scores.choice(node) for node in wrong]
        self._start = self._text_length + len(verdict.path) + 1


def following(draft: Draft, verdict: Verdict) -> list[int]:
    """The rejected nodes below the accepted path, first child after first child. On a chain: all that was rejected."""
    first_child: dict[int, int] = {}
    for node, parent in enumerate(draft.parents):
        first_child.setdefault(parent, node)
    out: list[int] = []
    node = verdict.path[-1] if verdict.path else ROOT
    while node in first_child:
        node = first_child[node]
        out.append(node)
    return out
