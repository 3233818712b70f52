"""Copies, mask tokens and a trained head in one tree, each guess and each mask only where it is expected to pay.

Copies come from texts, with probabilities that are counted while decoding (`copied`). The target's own guesses come from mask
tokens (`foreseen`), a head's from the states of the text so far (`head_guesses`); `pooled` makes one distribution of them.
Mask tokens are hung where the text will probably leave the tree. How many rows a forward gets follows from what rows cost on
this machine (`planned`), and the head drafts where what rounds commit with it, beyond those without, pays for its time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import exp
from time import perf_counter
from typing import TYPE_CHECKING

from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import AnyTarget, Array, ForwardOutput
from decoding.engine.verify import Verdict
from decoding.methods.expected_tree import Reached, expected_tree
from decoding.methods.likely import HEAD, pooled
from decoding.methods.mask_guesses import LookaheadPredictions
from decoding.methods.ngram_pool import CopiedGuesses
from decoding.methods.planned import Plan, RoundCosts, planned
from decoding.methods.trees import Level, admitted, offered

if TYPE_CHECKING:
    from decoding.checkpoints.identity import TargetIdentity
    from decoding.heads.head import Head
    from decoding.methods.head_runtimes import BlockPass, HeadGuesses


FORESEEN = (0.65, 0.55, 0.48, 0.42, 0.38, 0.34, 0.3, 0.26, 0.23, 0.2, 0.17, 0.15)
"""Prior of what a mask is worth, in committed tokens: those that no copy had, less the price of the rows that guessed them. Of
each position that it speaks for.
"""

BESIDE_COPIES = (0.24, 0.24, 0.22, 0.2, 0.2, 0.18, 0.16, 0.15, 0.14, 0.13, 0.12, 0.1)
"""The same where the round that hung them had copies, which have most of what masks would say."""

COPYING = 2
"""The least match before a copy that makes a round one with copies."""

OF_TEXT = 0.3
"""Prior of what the guesses of the last row of text are worth after such a round: the same way, all of them."""

FORGOTTEN = 0.1
"""What a round without masks forgets of what this text taught about them, so that a few bad rounds do not end their use."""

FORGOTTEN_BY_TEXTS = 0.05
"""What a further text forgets of what earlier ones taught about masks. One that seems worthless is not hung, so it would never
be seen again."""

KEPT = 0.5, 2.0
"""Bounds of the share of expected tokens that is counted on: below, so little would be drafted that nothing more is learnt."""

OWN = 0.5
"""A guess is a mask's own if the head gave it less than this share of the mask's probability."""

UNHEARD = -6.0
"""Guesses below this log-probability are not asked for: their proposers are hardly heard there."""

SLACK = 0.5
"""How far below the bar, as a log-probability, a guess may lie before proposers are pooled, which can raise it a little."""


class Adaptive(Method):
    """head: of Domino's kind: a folder, "none", or "auto" for `path_tree`'s if one is shipped for the target. With one,
    forwards are fewer and take longer.
    row_cost: of a row, in plain steps; 0: what was measured on this machine, or a default, corrected while decoding.
    draft_cost: of the head's draft, in plain steps; 0: what is measured while decoding. With row_cost, and with draft_cost
    or no head, all is given, and what is drafted does not depend on the clock.
    budget: most rows of a draft, guesses and masks. masks: most positions for which masks follow a node. top_k: guesses per
    position and node. followers: whether what follows what in the text corrects what masks say. stride: for how many positions
    each mask speaks, if the target's can for so many; 0: as many as they can.
    copies: continuations that differ; 0 copies nothing. copied_tokens: the most tokens of each.
    """

    def __init__(
        self,
        head: "Head | str" = "none",
        row_cost: float = 0.0,
        draft_cost: float = 0.0,
        budget: int = 48,
        masks: int = 12,
        top_k: int = 8,
        copies: int = 5,
        copied_tokens: int = 48,
        followers: bool = True,
        stride: int = 0,
    ) -> None:
        others = masks, copies, copied_tokens, draft_cost, stride
        if not 0.0 <= row_cost < 1.0 or min(budget, top_k) < 1 or min(others) < 0:
            raise ValueError("row_cost must be 0 to below 1, budget and top_k 1 or more, the others not negative")
        self._take(_optional(head))
        self._row_cost, self._draft_cost = row_cost, draft_cost
        self._budget, self._masks, self._top_k = budget, masks, top_k
        self._most_copies, self._copied_tokens, self._followers = copies, copied_tokens, followers
        self._stride = stride

    def _take(self, head: "HeadGuesses | None") -> None:
        self._head = head
        self.network = head.head if head else None  # what it drafts with beside the target
        self.taps = head.taps if head else ()

    def meet(self, target: AnyTarget, identity: "Callable[[], TargetIdentity] | None") -> None:
        if self._head and not self._head.suits(target, identity):
            self._take(None)

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._cursor = context.cursor
        self._costs = RoundCosts(context, self._row_cost, self._draft_cost, has_head=self._head is not None)
        self._copied = CopiedGuesses(
            context.recall.sequences, self._most_copies, self._copied_tokens, context.experience, len(prompt)
        )
        self._foreseen = LookaheadPredictions(prompt, context, self._masks, self._top_k, self._followers, self._stride)
        stride = self._foreseen.stride
        priors = [
            sum(worths[depth : depth + stride])
            for worths in (FORESEEN, BESIDE_COPIES)
            for depth in range(0, len(worths), stride)
        ]
        self._mask_worth = context.experience.means("masks", priors, FORGOTTEN_BY_TEXTS)
        self._beside_copies = len(priors) // 2  # the first case of masks that such a round hung
        self._masks_case = 0  # the first case of the masks whose guesses are counted
        self._text_worth = context.experience.means("heads of text", (OF_TEXT,), FORGOTTEN_BY_TEXTS)
        self._got = context.experience.means("tokens of trees: got, and expected", (2.0, 2.0))
        self._looked_up = 0  # the text's length at which copies were looked up last
        self._reached = len(prompt)  # tokens before those that were forced after the last round
        if self._head:
            self._head.begin(prompt, hidden, context, self._draft_cost)
        self._forget_draft(len(prompt))

    def _forget_draft(self, length: int) -> None:
        """There is nothing to count until the next draft, which follows `length` tokens."""
        self._length, self._bar = length, 1.0
        self._gains: dict[tuple[int, ...], float] = {}  # of the tree's guesses, by their paths from the root
        self._by_masks: dict[tuple[int, ...], set[int]] = {}  # by path: what masks guessed, and hardly anyone else
        self._own: set[tuple[int, ...]] = set()  # those of them that are in the draft, by their paths
        self._own_rows: list[int] = []  # how many of these, by depth
        self._is_by_text = False  # whether a row of text said them, and not masks
        self._has_masks = False  # whether the draft has any
        self._read_ms = 0.0  # what reading the guesses of masks took

    def head_pass(self, tokens: Sequence[int], room: int) -> "BlockPass | None":
        self._look_up(tokens, room)
        head = self._paying_head()
        return head.head_pass(tokens) if head else None

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        self._look_up(tokens, room)
        if head := self._paying_head():
            head.draft(tokens, offered(self._top_k, self._cursor()))
        return self._grown(tokens, room)

    def propose_unseen(self, tokens: Sequence[int], room: int) -> Draft:
        self._look_up(tokens, room)
        return self._grown(tokens, room)

    def _look_up(self, tokens: Sequence[int], room: int) -> None:
        """Find copies of what follows `tokens`, once for a round."""
        if self._looked_up != len(tokens):
            self._copied.find(tokens, room)
            self._looked_up = len(tokens)

    def _paying_head(self) -> "HeadGuesses | None":
        """The head, where its draft is expected to pay."""
        return self._head if self._head and self._head.pays(self._copied.agreed, self._costs.rate) else None

    def _grown(self, tokens: Sequence[int], room: int) -> Draft:
        self._forget_draft(len(tokens))
        self._foreseen.stand(tokens)
        prices = self._costs.prices(self._pending(len(tokens)), self._kept_share())
        bars = prices.bars(self._budget)
        tree = expected_tree(self._continuations, prices.least(self._budget), room, self._cursor())
        worths = [self._mask_worth[self._case + mask] for mask in range(len(self._foreseen.chain))]
        plan = planned(tree, worths, prices, bars, self._budget, self._costs.mask_steps)
        self._note(plan)
        return plan.draft(self._foreseen.chain)

    def _pending(self, length: int) -> int:
        """Tokens that are fed before the draft that follows `length` tokens."""
        return 1 + length - self._reached

    def _kept_share(self) -> float:
        """The tokens that trees have brought, of those that they were expected to."""
        low, high = KEPT
        return min(max(self._got[0] / self._got[1], low), high)

    def took(self, draft_ms: float, target_ms: float) -> None:
        self._costs.took(draft_ms, target_ms)

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        committed = [*(draft.tokens[node] for node in verdict.path), verdict.bonus]
        reached, has_masks = self._length + len(committed), self._has_masks or self._foreseen.ahead > 0
        start = perf_counter()
        is_asked = self._foreseen.observe(draft, scores, verdict, reached, self._text_pays())
        asked_ms = 1e3 * (perf_counter() - start) if is_asked else None
        self._count(committed, len(draft), has_masks, asked_ms)
        self._reached = reached
        if is_asked:
            self._masks_case = self._case
        if self._head:
            self._head.observe(draft, scores, verdict)
        self._forget_draft(self._reached)

    def _text_pays(self) -> bool:
        """Whether the guesses of a row of text, where no mask is new, are expected to be worth the time of asking for them."""
        return not self._case or self._text_worth[0] >= self._costs.rate * self._costs.mask_steps

    @property
    def _case(self) -> int:
        """The first case of masks that this round hangs."""
        return self._beside_copies if self._copied.agreed >= COPYING else 0

    def _continuations(self, nodes: Sequence[Reached]) -> Iterator[Mapping[int, float]]:
        said: Sequence[Level | None] = self._head.levels(nodes) if self._head else [None] * len(nodes)
        for node, level in zip(nodes, said, strict=True):
            if node.cursor is not None and node.cursor.run:
                yield {}  # the constraint says what comes
                continue
            copies = self._copied.shares(node.path, node.cursor)
            if copies and self._foreseen.begins:  # the prompt's end says less
                yield copies
                continue
            start = perf_counter()
            foreseen = self._foreseen.level(node.path)
            if level is None and foreseen is None:
                yield copies
                continue
            head, masks = self._likely(level, node), self._likely(foreseen, node)
            self._by_masks[node.path] = {
                token for token, chance in masks.items() if token not in copies and head.get(token, 0.0) < OWN * chance
            }
            guesses = pooled(copies, head, masks)
            self._read_ms += 1e3 * (perf_counter() - start)
            yield guesses

    def _likely(self, level: Level | None, node: Reached) -> dict[int, float]:
        """A level's guesses that the constraint allows and that may be worth a row, with their probabilities."""
        if level is None:
            return {}
        floor = max(UNHEARD, (node.floor - SLACK) / HEAD)
        return {token: exp(score) for token, score in islice(admitted(level, node.cursor, floor), self._top_k)}

    def _note(self, plan: Plan) -> None:
        """Remember what there is to count."""
        paths = plan.tree.paths()
        self._has_masks = any(plan.masks)
        self._bar, self._gains = plan.bar, dict(zip(paths, plan.tree.gains, strict=True))
        self._own = {path for path in paths if path[-1] in self._by_masks.get(path[:-1], ())}
        said = 0 if self._foreseen.begins else self._foreseen.ahead
        self._is_by_text = self._foreseen.by_text
        self._own_rows = [sum(len(path) == depth + 1 for path in self._own) for depth in range(said)]

    def _count(self, committed: Sequence[int], rows: int, has_masks: bool, asked_ms: float | None) -> None:
        """Count what was right, and what the round was worth. rows: of the draft."""
        paths = [tuple(committed[: depth + 1]) for depth in range(len(committed))]
        self._copied.count(committed)
        if self._is_by_text:
            self._count_text(paths)
        else:
            self._count_masks(paths)
            self._text_worth.fade(FORGOTTEN)
        if not has_masks:
            self._mask_worth.fade(FORGOTTEN)
        got = sum(self._gains.get(path, 1.0) > 0.0 for path in paths[:-1])
        tokens = 1 + got
        if self._gains:
            self._got.saw(0, got)
            self._got.saw(1, sum(self._gains.values()))
        has_drafted = bool(self._head and self._head.drafted)
        steps = self._costs.count(self._pending(self._length), rows, tokens, has_drafted, asked_ms, self._read_ms)
        if self._head:
            self._head.count(self._copied.agreed, tokens, steps)

    def _count_masks(self, paths: Sequence[tuple[int, ...]]) -> None:
        stride = self._foreseen.stride
        for first in range(0, len(self._own_rows), stride):
            self._mask_worth.saw(self._masks_case + first // stride, self._worth(paths, first, first + stride))

    def _count_text(self, paths: Sequence[tuple[int, ...]]) -> None:
        if self._masks_case:
            self._text_worth.saw(0, self._worth(paths, 0, len(self._own_rows)))

    def _worth(self, paths: Sequence[tuple[int, ...]], first: int, end: int) -> float:
        """What guesses of some depths were worth: those that are on the committed paths, less the price of their rows."""
        own = self._own_rows[first:end]
        return sum(path in self._own for path in paths[first : first + len(own)]) - self._bar * sum(own)


def _optional(head: "Head | str") -> "HeadGuesses | None":
    """See `optional_head`, which imports torch: that takes longer than a short conversation."""
    if head == "none":
        return None
    from decoding.methods.head_runtimes import optional_head

    return optional_head("path_tree", head)
