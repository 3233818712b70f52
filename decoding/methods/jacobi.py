"""Mask tokens, Jacobi decoding, lookahead decoding and Jacobi Forcing's decoder.

- `MaskTokens`: the target itself predicts several tokens ahead, in the forward that verifies. A few mask tokens follow the root
  and each of the most probable guesses. The target's logits at the masks after the accepted path are marginals of the positions
  after the bonus token, given correct text only. The next draft is the tree of their most probable prefixes, together with
  copies of what followed the last tokens elsewhere. PaSS (arXiv 2311.13581) and BiTA (arXiv 2401.12522) train embeddings for
  such tokens. Here a target has weights of its own for them (`train masks`), or a checkpoint learns to use one token of its
  vocabulary as the mask (`train jacobi --sweeps 0 --first-guess mask`). With any other target there are no masks, and only
  copies are drafted.
- `Jacobi` (Santilli et al., ACL 2023, arXiv 2305.10427): the target's own answers to a wrong guess are the next guess. CLLM
  (arXiv 2403.00835) trains checkpoints for it. It works at any temperature: the answers are the target's keyed choices, and a
  guess keeps its absolute position.
- `Lookahead` (Fu et al., arXiv 2402.02057): a Jacobi window that collects n-grams, and guesses made of them. The released code
  needs an attention mask of its own; here its two-dimensional window is an ordinary tree. Level 0 is a chain under the root,
  and column i of the higher levels lies below node i of that chain: a caterpillar. Guesses are further branches.
- `JacobiForcing` (arXiv 2512.14681), as the authors describe it: several blocks under Jacobi iteration at once, and another try
  for rejected n-grams. Their released code differs: it throws a promoted block away, and verifies candidates as a batch of
  rows, each with its own copy of the cache; here they are branches of one tree. Any checkpoint works, but only one that was
  trained on its own Jacobi trajectories is fast.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import ROOT, Draft
from decoding.engine.method import Context, DeviceInt, Method, on_device
from decoding.engine.target import Array, ForwardOutput
from decoding.engine.verify import Verdict
from decoding.methods.jacobi_window import GuessWindow, MaskedWindow, SweptWindow, answers, block_range, next_state
from decoding.methods.mask_guesses import (
    ChosenGuess,
    LikelyLevels,
    PromptDraws,
    first_guesses,
    guessable,
    known,
    said_ahead,
    strided_chain,
    text_scores,
    trained_on,
)
from decoding.methods.ngram_pool import NgramPool, different
from decoding.methods.trees import LEAST, Bounds, best_paths, offered, tail_of


class MaskTokens(Method):
    """masks: positions for which masks follow a guess. masked: how many of the most probable guesses have masks after them,
    besides the root and the copies. budget, least: bounds of the guesses, see `Bounds`. top_k: guesses per position.
    copies, copied_tokens, per_matched: prompt lookup's `matches`, `draft_tokens` and `per_matched`; 0 copies nothing.
    followers: whether what follows what in the text corrects what masks say.
    sure: a copy of at least this many tokens (its match was long) is drafted alone, with masks after its end only; 0: never.
    """

    def __init__(
        self,
        masks: int = 3,
        masked: int = 3,
        budget: int = DeviceInt(6, gpu=32),
        top_k: int = 8,
        least: float = LEAST,
        copies: int = 1,
        copied_tokens: int = 16,
        per_matched: int = 3,
        sure: int = 6,
        followers: bool = True,
    ) -> None:
        if min(masks, top_k) < 1 or min(masked, copies, copied_tokens, per_matched, sure) < 0:
            raise ValueError("masks and top_k must be 1 or more, masked, sure, copies and what is copied not negative")
        self._masks, self._masked, self._top_k = masks, masked, top_k
        self._copies, self._copied_tokens, self._per_matched = copies, copied_tokens, per_matched
        self._given, self._sure, self._followers = Bounds(budget, least), sure, followers

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._stride, self._bounds = 1 + context.ahead, self._given.on(context.runtime)
        self._chain = strided_chain(context.masks(prompt), self._masks, self._stride)
        self._sampler, self._cursor = context.sampler, context.cursor
        self._pairs = text_scores(context, prompt, self._followers)
        self._tokens = guessable(context, prompt)
        self._pool = NgramPool(0, context.recall.sequences)
        self._length = 0  # of the text before the draft
        self._first = 0  # position of the first level
        self._levels: LikelyLevels | None = None

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        self._length, cursor = len(tokens), self._cursor()
        following = self._pool.following(tokens, min(room, self._copied_tokens), per_agreed=self._per_matched)
        copies = [_allowed_run(copy, cursor) for copy in different(following, self._copies)]
        if self._sure and copies and len(copies[0]) >= self._sure:
            return self._tree(copies[:1], copies[:1])
        tree = self._guessed(tokens, room, cursor)
        guesses = [tuple(tree.tokens[i] for i in tree.path(node)) for node in range(len(tree))]
        return self._tree([*guesses, *copies], [(), *guesses[: self._masked], *copies])

    def _guessed(self, tokens: Sequence[int], room: int, cursor: ConstraintCursor | None) -> Draft:
        """The most probable prefixes of what the masks say."""
        if self._pairs:
            self._pairs.grow(tokens)
        if (levels := self._levels) is None:
            return Draft()
        taken = max(len(tokens) - self._first, 0)  # positions that forced tokens took
        count = min(len(levels) - taken, room)
        return best_paths(
            lambda depth, tail: levels.level(taken + depth, tail), count, tail_of(tokens), self._bounds, cursor
        )

    def _tree(self, paths: Sequence[tuple[int, ...]], masked: Sequence[tuple[int, ...]]) -> Draft:
        """`paths`, and masks after the ends of those in `masked`."""
        drafted = Draft.trie([*paths, *(path + self._chain for path in masked)])
        return replace(drafted, context=range(len(drafted)), masks=self._chain)

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        found = draft.below(verdict.path[-1] if verdict.path else ROOT, self._chain)
        self._first, self._levels = self._length + len(verdict.path) + 1, None
        if found:
            count = offered(self._top_k, self._cursor())
            logits = said_ahead(scores, found, self._tokens, self._stride)
            self._levels = LikelyLevels(self._sampler, logits, self._first, count, self._pairs, self._tokens)


def _allowed_run(path: tuple[int, ...], cursor: ConstraintCursor | None) -> tuple[int, ...]:
    """The path up to its first token that is not allowed."""
    if cursor is None:
        return path
    for count, token in enumerate(path):
        if not cursor.admits(token):
            return path[:count]
        cursor = cursor.after(token)
    return path


class Jacobi(Method):
    """A chain of guesses.

    block_size: n, the most guesses per forward.
    refill: draw new guesses as old ones are accepted, so that the window slides; otherwise, as in CLLM, the block shrinks
        until it has converged and a new one begins. (The answer past its end, which CLLM's code throws away, is the
        new block's first guess.)
    first_guess: the guess for a position that the target has not answered yet: "prompt", ids drawn from the prompt, as in the
        papers; "mask", a mask token, for checkpoints that were trained on it; or "auto", what the target was trained on.
    """

    def __init__(self, block_size: int = 8, refill: bool = True, first_guess: ChosenGuess = "prompt") -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be 1 or more, not {block_size}")
        self._block_size, self._refill, self._first = block_size, refill, known(first_guess)

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._draws = first_guesses(trained_on(self._first, prompt, context), prompt, context.mask_tokens)
        self._prompt_length = self._start = len(prompt)  # start: absolute position of the first guess
        self._guess: list[int] = []

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        self._guess = self._draws.answered(self._guess[len(tokens) - self._start :])
        self._start = len(tokens)
        width = self._width(len(tokens) - self._prompt_length)
        self._guess += self._draws.take(width - len(self._guess))
        guess = self._guess[: min(width, room)]
        return Draft.chain(guess, context=range(len(guess)))

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        new, sweep = len(verdict.path) + 1, answers(draft, scores, verdict, self._guess)
        self._guess = next_state(self._guess[new:], sweep)
        self._start += new

    def _width(self, generated: int) -> int:
        return self._block_size if self._refill else block_range(generated, self._block_size).stop - generated


class Lookahead(Method):
    """Window of `window` columns and `ngram` - 1 levels, plus up to `guesses` n-grams that begin with the last token.

    window: columns (W of the paper). ngram: length of the collected n-grams (N). guesses: branches verified per round, and
    n-grams kept per first token (G). pool_from_prompt: seed the pool with the prompt's and the recall's own n-grams.
    whole_window: score the window also where a grammar forbids it. Otherwise a column ends at its first forbidden token,
    which saves most of the rows and, under a grammar, leaves hardly any n-grams of its own.
    """

    def __init__(
        self,
        window: int = 5,
        ngram: int = 4,
        guesses: int = 5,
        pool_from_prompt: bool = True,
        whole_window: bool = False,
    ) -> None:
        if window < 1 or ngram < 2 or guesses < 0:
            raise ValueError("need window >= 1, ngram >= 2 and guesses >= 0")
        self._window, self._ngram, self._guesses = window, ngram, guesses
        self._from_prompt, self._whole = pool_from_prompt, whole_window

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._draws = PromptDraws(prompt)
        self._columns: dict[int, list[int]] = {}  # position of level 0 -> tokens on level 0, 1, ... (a diagonal)
        self._pool = _NgramPool(self._guesses)
        if self._from_prompt:
            for text in (*reversed(context.recall.sequences), tuple(prompt)):
                for at in range(len(text) - self._ngram + 1):
                    self._pool.add(text[at : at + self._ngram])

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        positions = range(len(tokens), len(tokens) + self._window)
        self._columns = {at: self._columns.get(at) or self._draws.take(1) for at in positions}
        columns = list(self._columns.values())
        spine = [column[0] for column in columns]
        guesses = self._pool.following(tokens[-1])
        paths = [[*spine[:i], *column] for i, column in enumerate(columns)]
        return Draft.trie([*guesses, *paths], scored=len(paths) if self._whole else 0)

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        children, spine = draft.children, ROOT
        answered: dict[int, list[int]] = {}
        for position, column in self._columns.items():
            nodes = _walk(children, spine, column)
            if len(nodes) < len(column):
                break  # cut by the length limit or a constraint, or another method's draft
            spine = nodes[0]
            answer = [*column, scores.choice(nodes[-1])]
            if len(answer) == self._ngram:
                self._pool.add(answer)
                position, answer = position + 1, answer[1:]
            if len(answer) > len(answered.get(position, ())):
                answered[position] = answer
        self._columns = answered


class _NgramPool:
    """The latest n-grams per first token."""

    def __init__(self, per_token: int) -> None:
        self._per_token = per_token
        self._by_first: dict[int, OrderedDict[tuple[int, ...], None]] = {}

    def add(self, ngram: Sequence[int]) -> None:
        entry = self._by_first.setdefault(ngram[0], OrderedDict())
        rest = tuple(ngram[1:])
        entry.pop(rest, None)
        entry[rest] = None
        if len(entry) > self._per_token:
            entry.popitem(last=False)

    def following(self, token: int) -> list[tuple[int, ...]]:
        """What followed `token`, newest first."""
        return list(reversed(self._by_first.get(token, ())))


def _walk(children: dict[tuple[int, int], int], node: int, tokens: Sequence[int]) -> list[int]:
    out: list[int] = []
    for token in tokens:
        if (node, token) not in children:
            break
        node = children[node, token]
        out.append(node)
    return out


class JacobiForcing(Method):
    """The real-active block, pseudo-active blocks after it in the same chain, and candidates next to it.

    block_size: n. The real-active block is what is left of the n positions that hold the next token.
    blocks: K, the most blocks in flight. A pseudo-active block is iterated below unverified guesses. Once the text reaches
        it, it is the real-active block, and its guesses are verified like any others: promotion needs no code. Small
        blocks are the default, because a CPU pays for each guess. On a GPU, for a model that has no masks of its own, the
        defaults are the authors' choice for their checkpoints: two blocks of 64, r = 0.85, 4 sequences, candidates of a block.
    spawn_ratio: r. A pseudo-active block is started when ceil(r * n) leading tokens of the newest block are settled: accepted,
        left unchanged by the last sweep, or guessed by masks (`remask`); 0 always keeps K blocks in flight. Its first guess is
        the target's answer to the last guess before it, then what followed elsewhere, then masks or draws from the prompt
        (the released code copies the real block's tail).
    pool_size: rejected guesses that are remembered, one sequence per round; 0: none.
    candidates: branches next to the block's own guess; 0: none, and the guess itself copies nothing either.
    candidate_tokens: their maximum length. per_matched: their maximum length per matching token before them, so that a
        chance match costs little.
    first_guess: the guess where nothing is known; see `Jacobi`. The embedded model has masks, published ones were trained on
        draws from the prompt.
    from_recall, from_prompt: whether to look for candidates in the conversation's earlier texts and identifiers, and in the
        prompt.
    remask: where the target has mask tokens of its own (`train masks`), guess what it said at them, given the token before,
        instead of sweeping on below a wrong guess, and put masks where nothing is said; see `jacobi_window`.
    """

    def __init__(
        self,
        block_size: int = DeviceInt(2, gpu=64),
        blocks: int = 2,
        spawn_ratio: float = 0.85,
        pool_size: int = DeviceInt(8, gpu=4),
        candidates: int = 2,
        candidate_tokens: int = DeviceInt(16, gpu=64),
        per_matched: int = DeviceInt(3, gpu=64),
        first_guess: ChosenGuess = "auto",
        from_recall: bool = True,
        from_prompt: bool = True,
        remask: bool = True,
    ) -> None:
        if block_size < 1 or blocks < 1 or not 0 <= spawn_ratio <= 1:
            raise ValueError("need block_size >= 1, blocks >= 1 and spawn_ratio from 0 to 1")
        if min(pool_size, candidates, candidate_tokens, per_matched) < 0:
            raise ValueError("pool_size, candidates, candidate_tokens and per_matched must be 0 or more")
        self._given = block_size, pool_size, candidate_tokens, per_matched
        self._blocks, self._spawn_ratio, self._candidates = blocks, spawn_ratio, candidates
        self._first = known(first_guess)
        self._from_recall, self._from_prompt = from_recall, from_prompt
        self._remask = remask

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._window: GuessWindow
        first = trained_on(self._first, prompt, context)
        has_masks = self._remask and first == "mask" and len(context.mask_tokens) > 0
        runtime = "cpu" if has_masks else context.runtime  # masks speak for a few positions only
        block_size, pool_size, candidate_tokens, per_matched = (on_device(each, runtime) for each in self._given)
        self._block_size, self._spawn_at = block_size, ceil(self._spawn_ratio * block_size)
        self._candidate_tokens, self._per_matched = candidate_tokens, per_matched
        if has_masks:
            self._window = MaskedWindow(prompt, context, self._blocks * self._block_size)
        else:
            draws = first_guesses(first, prompt, context.mask_tokens)
            self._window = SweptWindow(draws, prompt, self._block_size)
        self._pool = NgramPool(pool_size, context.recall.sequences if self._from_recall else ())
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

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
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
