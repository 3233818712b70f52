"""Jacobi decoding: the target's own answers to a wrong guess are the next guess.

Santilli et al., ACL 2023 (arXiv 2305.10427); CLLM (arXiv 2403.00835) trains checkpoints for it. Works at any
temperature: the answers are the target's keyed choices, and a guess keeps its absolute position.
"""

from collections.abc import Sequence

from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.methods.jacobi.first_guess import FirstGuess, first_guesses, known
from decoding.methods.jacobi.window import answers, block_range, next_state


class Jacobi(Method):
    """A chain of guesses.

    block_size: n, the most guesses per forward.
    refill: draw new guesses as old ones are accepted, so that the window slides; otherwise, as in CLLM, the block shrinks
        until it has converged and a new one begins. (The answer past its end, which CLLM's code throws away, is the
        new block's first guess.)
    first_guess: the guess for a position that the target has not answered yet: "prompt", ids drawn from the prompt, as in the
        papers, or "mask", a mask token, for checkpoints that were trained on it.
    """

    def __init__(self, block_size: int = 8, refill: bool = True, first_guess: FirstGuess = "prompt") -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be 1 or more, not {block_size}")
        self._block_size, self._refill, self._first = block_size, refill, known(first_guess)

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._draws = first_guesses(self._first, prompt, context.mask_tokens)
        self._prompt_length = self._start = len(prompt)  # start: absolute position of the first guess
        self._guess: list[int] = []

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        self._guess = self._draws.answered(self._guess[len(tokens) - self._start :])
        self._start = len(tokens)
        width = self._width(len(tokens) - self._prompt_length)
        self._guess += self._draws.take(width - len(self._guess))
        guess = self._guess[: min(width, room)]
        return Draft.chain(guess, context=range(len(guess)))

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        new, sweep = len(verdict.path) + 1, answers(draft, scores, verdict, self._guess)
        self._guess = next_state(self._guess[new:], sweep)
        self._start += new

    def _width(self, generated: int) -> int:
        return self._block_size if self._refill else block_range(generated, self._block_size).stop - generated
