"""Jacobi Forcing's decoder: several blocks under Jacobi iteration at once, and another try for rejected n-grams.

arXiv 2512.14681, as the authors describe it. Their released code differs: it throws a promoted block away, and verifies
candidates as a batch of rows, each with its own copy of the cache; here they are branches of one tree. Any checkpoint
works, but only one that was trained on its own Jacobi trajectories is fast.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.methods.drafting.ngram_pool import NgramPool, different
from decoding.methods.jacobi.first_guess import FirstGuess, first_guesses, known
from decoding.methods.jacobi.guess_window import GuessWindow, MaskedWindow, SweptWindow
from decoding.methods.jacobi.window import block_range


class JacobiForcing(Method):
    """The real-active block, pseudo-active blocks after it in the same chain, and candidates beside it.

    block_size: n. The real-active block is what is left of the n positions that hold the next token.
    blocks: K, the most blocks in flight. A pseudo-active block is iterated below unverified guesses. Once the text reaches
        it, it is the real-active block, and its guesses are verified like any others: promotion needs no code. Small
        blocks are the default, because a CPU pays for each guess; the paper's GPU has room for 2 blocks of 64.
    spawn_ratio: r. A pseudo-active block is started when ceil(r * n) leading tokens of the newest block are settled: accepted,
        left unchanged by the last sweep, or guessed by masks (`remask`); 0 always keeps K blocks in flight. Its first guess is
        the target's answer to the last guess before it, then what followed elsewhere, then masks or draws from the prompt
        (the released code copies the real block's tail).
    pool_size: rejected guesses that are remembered, one sequence per round; 0: none.
    candidates: branches beside the block's own guess; 0: none, and the guess itself copies nothing either.
    candidate_tokens: their maximum length. per_matched: their maximum length per matching token before them, so that a
        chance match costs little.
    first_guess: the guess where nothing is known; see `Jacobi`. The embedded model is trained on masks, published ones on
        draws from the prompt.
    from_recall, from_prompt: whether to look for candidates in the conversation's earlier texts and identifiers, and in the
        prompt.
    remask: where the target has mask tokens of its own (`train masks`), guess what it said at them, given the token before,
        instead of sweeping on below a wrong guess, and put masks where nothing is said; see `guess_window`.
    """

    def __init__(
        self,
        block_size: int = 2,
        blocks: int = 2,
        spawn_ratio: float = 0.85,
        pool_size: int = 8,
        candidates: int = 2,
        candidate_tokens: int = 16,
        per_matched: int = 3,
        first_guess: FirstGuess = "mask",
        from_recall: bool = True,
        from_prompt: bool = True,
        remask: bool = True,
    ) -> None:
        if block_size < 1 or blocks < 1 or not 0 <= spawn_ratio <= 1:
            raise ValueError("need block_size >= 1, blocks >= 1 and spawn_ratio from 0 to 1")
        if min(pool_size, candidates, candidate_tokens, per_matched) < 0:
            raise ValueError("pool_size, candidates, candidate_tokens and per_matched must be 0 or more")
        self._block_size, self._blocks, self._spawn_at = block_size, blocks, ceil(spawn_ratio * block_size)
        self._pool_size, self._candidates = pool_size, candidates
        self._first = known(first_guess)
        self._candidate_tokens, self._per_matched = candidate_tokens, per_matched
        self._from_recall, self._from_prompt = from_recall, from_prompt
        self._remask = remask

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._window: GuessWindow
        if self._remask and self._first == "mask" and context.mask_tokens:
            self._window = MaskedWindow(prompt, context, self._blocks * self._block_size)
        else:
            draws = first_guesses(self._first, prompt, context.mask_tokens)
            self._window = SweptWindow(draws, prompt, self._block_size)
        self._pool = NgramPool(self._pool_size, context.recall.sequences if self._from_recall else ())
        self._prompt_length = len(prompt)
        self._end = 0  # generated position after the newest block

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        generated = len(tokens) - self._prompt_length
        self._window.stand(tokens)
        self._promote_and_spawn(generated)
        self._window.fill(self._end - generated, partial(self._continued, tokens))
        own = tuple(self._window.guesses[:room])
        draft = Draft.chain(own, range(len(own))).joined(Draft.trie(self._recycled(own, tokens, room)))
        return replace(draft, masks=self._window.masks)

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        accepted = [*(draft.tokens[node] for node in verdict.path), verdict.bonus]
        self._pool.add([*accepted, *self._window.observe(draft, scores, verdict)])

    def _promote_and_spawn(self, generated: int) -> None:
        """Move the window's end at least to the end of the block that the text has reached, at most K blocks from its start."""
        real = block_range(generated, self._block_size)
        self._end = max(self._end, real.stop)
        settled = generated + self._window.settled()
        while self._end < real.start + self._blocks * self._block_size:
            if max(settled - (self._end - self._block_size), 0) < self._spawn_at:
                break
            self._end += self._block_size

    def _continued(self, tokens: Sequence[int], guesses: Sequence[int], count: int) -> tuple[int, ...]:
        """What the pool has as a continuation of the text and the guesses."""
        return next(self._following([*tokens, *guesses], count), ())

    def _recycled(self, own: tuple[int, ...], tokens: Sequence[int], room: int) -> list[tuple[int, ...]]:
        """Candidates that differ from the block's own guess and from each other."""
        return different(self._following(tokens, min(room, self._candidate_tokens)), self._candidates, [own])

    def _following(self, tokens: Sequence[int], length: int) -> Iterator[tuple[int, ...]]:
        if not self._candidates:
            return iter(())
        text = tokens if self._from_prompt else tokens[self._prompt_length - 1 :]
        return self._pool.following(text, length, per_agreed=self._per_matched)
