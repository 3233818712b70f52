"""Copies and mask tokens in one tree, each guess and each mask only where it is expected to pay.

Copies come from the text, the prompt and the conversation's recall, as in prompt lookup; how likely a copied token is to be
right is counted by the length of its match. The model's own guesses come from mask tokens (see `mask_tokens`), with the
probabilities that the model gives them. A guess that both make is more likely than either. Mask tokens are hung where the
text will probably leave the tree, as many as their past success pays for.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from math import exp, log

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import ROOT, Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.methods.drafting.chances import Chances, Rate
from decoding.methods.drafting.expected_tree import ExpectedTree, expected_tree
from decoding.methods.drafting.likely import LikelyLevels
from decoding.methods.drafting.ngram_pool import NgramPool
from decoding.methods.drafting.trees import admitted, offered
from decoding.methods.jacobi.first_guess import guessable, mask_chain, masks_of

COPIED = (0.0, 0.5, 0.58, 0.75, 0.75, 0.77, 0.8, 0.8, 0.84, 0.88, 0.88, 0.9, 0.94)
"""Prior of a copied token's being right, by the length of the match before it."""

SECOND = 0.3
"""Prior of the first token of a copy whose match is no better than that of another that it differs from, of what is left."""

FORESEEN = (0.3, 0.2, 0.1, 0.05)
"""Prior of what a mask is worth, in committed tokens: those that no copy had, less the price of the rows that guessed them."""


class Adaptive(Method):
    """row_cost: time of a row, as a share of a plain step (`sqlagent bench cost`). budget: most guesses in a tree.
    masks: most masks after a node; 0 copies only. top_k: guesses per mask. copies: continuations that differ; 0 copies nothing.
    copied_tokens: the most tokens of each.
    """

    def __init__(
        self,
        row_cost: float = 0.06,
        budget: int = 24,
        masks: int = 4,
        top_k: int = 8,
        copies: int = 3,
        copied_tokens: int = 24,
    ) -> None:
        if not 0.0 < row_cost < 1.0 or min(budget, top_k) < 1 or min(masks, copies, copied_tokens) < 0:
            raise ValueError("row_cost must be between 0 and 1, budget and top_k 1 or more, the others not negative")
        self._row_cost, self._budget, self._masks, self._top_k = row_cost, budget, masks, top_k
        self._most_copies, self._copied_tokens = copies, copied_tokens

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._chain = mask_chain(masks_of(prompt, context.mask_tokens), self._masks)
        self._sampler, self._cursor = context.sampler, context.cursor
        self._price = self._row_cost * context.prompts / (1.0 + self._row_cost * (context.prompts - 1))
        self._pairs, self._tokens = context.mask_pairs, guessable(context, prompt)
        self._pool = NgramPool(0, context.recall.sequences)
        self._copied, self._second = Chances(COPIED), Chances((SECOND,))
        self._foreseen = Chances(FORESEEN)
        self._rate = Rate()
        self._length = 0  # of the text before the draft
        self._first = 0  # position of the first level
        self._levels: LikelyLevels | None = None
        self._taken = 0  # how many of its positions the text has passed
        self._last = prompt[-1]  # token of the text
        self._forget_draft()

    def _forget_draft(self) -> None:
        """There is nothing to count until the next draft."""
        self._least = 1.0  # probability that a row must have
        self._copies: list[tuple[int, tuple[int, ...]]] = []
        self._own: set[tuple[int, ...]] = set()  # guesses that are in no copy, as paths from the root
        self._own_rows: list[int] = []  # how many of these, by depth

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        self._length, cursor = len(tokens), self._cursor()
        self._copies = self._found(tokens, room)
        self._taken, self._last = max(len(tokens) - self._first, 0), tokens[-1]
        self._least = min(self._price * self._rate.tokens_per_step, 0.99)
        tree = expected_tree(self._continuations, self._least, self._budget, room, cursor)
        self._note_own(tree)
        return tree.with_masks(self._chain, self._masks_after)

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        committed = [*(draft.tokens[node] for node in verdict.path), verdict.bonus]
        self._count(committed)
        self._forget_draft()
        self._rate.saw(len(committed), 1.0 + self._price * len(draft))
        found = draft.below(verdict.path[-1] if verdict.path else ROOT, self._chain)
        self._first, self._levels = self._length + len(committed), None
        if found:
            count = offered(self._top_k, self._cursor())
            logits = scores.among(found, self._tokens)
            self._levels = LikelyLevels(self._sampler, logits, self._first, count, self._pairs, self._tokens)

    def _found(self, tokens: Sequence[int], room: int) -> list[tuple[int, tuple[int, ...]]]:
        """Copies that differ, the longest match first, with the lengths of their matches."""
        found: list[tuple[int, tuple[int, ...]]] = []
        for match in self._pool.matched(tokens, min(room, self._copied_tokens)) if self._most_copies else ():
            if not any(other[: len(match[1])] == match[1] for _, other in found):
                found.append(match)
                if len(found) == self._most_copies:
                    break
        return found

    @property
    def _ahead(self) -> int:
        """For how many positions the masks have guesses."""
        return max(len(self._levels) - self._taken, 0) if self._levels else 0

    def _continuations(
        self, path: tuple[int, ...], cursor: ConstraintCursor | None, least: float
    ) -> Mapping[int, float]:
        shares: dict[int, float] = {}
        for agreed, copy in self._copies:
            if len(copy) > len(path) and copy[: len(path)] == path and copy[len(path)] not in shares:
                token = copy[len(path)]
                if cursor is None or cursor.admits(token):
                    right = self._copied[agreed + len(path)]
                    shares[token] = (1.0 - sum(shares.values())) * (self._second[0] if shares else right)
        if self._levels and len(path) < self._ahead:
            level = self._levels.level(self._taken + len(path), path[-1] if path else self._last)
            for token, score in islice(admitted(level, cursor, log(least)), self._top_k):
                shares[token] = 1.0 - (1.0 - shares.get(token, 0.0)) * (1.0 - exp(score))
        total = max(sum(shares.values()), 1.0)
        return {token: share / total for token, share in shares.items()}

    def _note_own(self, tree: ExpectedTree) -> None:
        """Remember which guesses of the tree are in no copy."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            paths.append((*(paths[parent] if parent != ROOT else ()), token))
        self._own = {path for path in paths if not any(copy[: len(path)] == path for _, copy in self._copies)}
        self._own_rows = [sum(len(path) == depth + 1 for path in self._own) for depth in range(self._ahead)]

    def _masks_after(self, end: float) -> int:
        """How many masks a node deserves at which the text leaves the tree with this probability."""
        worth = (end * self._foreseen[depth] >= self._least for depth in range(self._masks))
        return next((depth for depth, pays in enumerate(worth) if not pays), self._masks)

    def _count(self, committed: Sequence[int]) -> None:
        """Count what was right among the copies and the levels."""
        for rank, (agreed, copy) in enumerate(self._copies):
            for place, (guess, token) in enumerate(zip(copy, committed, strict=False)):
                if rank == 0:
                    self._copied.saw(agreed + place, guess == token)
                if guess != token:
                    break
        self._count_second(committed)
        for depth, rows in enumerate(self._own_rows):
            self._foreseen.saw(depth, self._own_hit(committed, depth) - self._least * rows)

    def _own_hit(self, committed: Sequence[int], depth: int) -> bool:
        """Whether the committed token at a depth was in the tree, and in no copy."""
        path = tuple(committed[: depth + 1])
        return len(path) == depth + 1 and path in self._own

    def _count_second(self, committed: Sequence[int]) -> None:
        firsts = [copy[0] for _, copy in self._copies]
        if len(firsts) > 1 and firsts[1] != firsts[0] != committed[0]:
            self._second.saw(0, firsts[1] == committed[0])
