"""Copies, mask tokens and a trained head in one tree, each guess and each mask only where it is expected to pay.

`Proposers` suggest tokens: copies come from texts, with probabilities that are counted while decoding; the target's own guesses
come from mask tokens, a head's from the states of the text so far; `pooled` makes one distribution of them. `Policy` says what
is worth verifying: masks follow where the text will probably leave the tree, how many rows a forward gets follows from what
rows cost on this machine (`planned`), and the head drafts where what rounds commit with it, beyond those without, pays for its
time. What they count on before they have seen anything belongs to the target's weights (`DraftPriors`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from math import exp
from time import perf_counter
from typing import TYPE_CHECKING

from decoding.checkpoints.mask_adapter import DraftPriors
from decoding.engine.draft import Draft
from decoding.engine.experience import AcceptanceStats
from decoding.engine.method import Context, DeviceInt, Drafting, HeadMethod, on_device
from decoding.engine.target import AnyTarget, Array, ForwardOutput
from decoding.engine.verify import Verdict
from decoding.methods.mask_guesses import LookaheadPredictions, pooled
from decoding.methods.ngram_pool import CopiedGuesses
from decoding.methods.planned import Plan, Reached, RoundCosts, expected_tree, planned
from decoding.methods.trees import Level, admitted, offered

if TYPE_CHECKING:
    from decoding.checkpoints.identity import TargetIdentity
    from decoding.heads.head import Head
    from decoding.methods.head_runtimes import HeadGuesses


Path = tuple[int, ...]  # of tokens, from the root

COPYING = 2
"""The least match before a copy that makes a round one with copies."""

FORGOTTEN = 0.1
"""What a round without masks forgets of what this text taught about them, so that a few bad rounds do not end their use."""

FORGOTTEN_BY_TEXTS = 0.05
"""What a further text forgets of what earlier ones taught about masks. One that seems worthless is not attached, so it
would never be seen again."""

KEPT = 0.5, 2.0
"""Bounds of the share of expected tokens that is counted on: below, so little would be drafted that nothing more is learnt."""

OWN = 0.5
"""A guess is a mask's own if the head gave it less than this share of the mask's probability."""

UNHEARD = -6.0
"""Guesses below this log-probability are not asked for: their proposers are hardly heard there."""

SLACK = 0.5
"""How far below the bar, as a log-probability, a guess may lie before proposers are pooled, which can raise it a little."""


class Adaptive(HeadMethod):
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
        budget: int = DeviceInt(48, gpu=128),
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
        self._most_rows, self._masks, self._top_k = budget, masks, top_k
        self._most_copies, self._copied_tokens, self._followers = copies, copied_tokens, followers
        self._stride = stride

    def _take(self, head: "HeadGuesses | None") -> None:
        self._head = head
        self.network = head.head if head else None  # what it drafts with besides the target
        self.taps = head.taps if head else ()

    def meet(self, target: AnyTarget, identity: "Callable[[], TargetIdentity] | None") -> None:
        if self._head and not self._head.suits(target, identity):
            self._take(None)

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._budget = on_device(self._most_rows, context.runtime)
        priors, experience, self._cursor = context.draft_priors, context.experience, context.cursor
        copied = CopiedGuesses(
            context.recall.sequences, self._most_copies, self._copied_tokens, experience, len(prompt), priors
        )
        foreseen = LookaheadPredictions(prompt, context, self._masks, self._top_k, self._followers, self._stride)
        self._proposers = Proposers(copied, foreseen, self._head, self._top_k, priors)
        self._costs = RoundCosts(context, self._row_cost, self._draft_cost, has_head=self._head is not None)
        self._policy = Policy(experience, self._costs, priors, foreseen.stride)
        self._reached = len(prompt)  # tokens before those that were forced after the last round
        self._drafted = Drafted(len(prompt))
        if self._head:
            self._head.begin(prompt, hidden, context, self._draft_cost)

    def drafting(self, tokens: Sequence[int], room: int) -> Drafting:
        self._proposers.look_up(tokens, room)
        if head := self._paying_head():
            yield from head.drafting(tokens, offered(self._top_k, self._cursor()))
        return self.propose_unseen(tokens, room)

    def propose_unseen(self, tokens: Sequence[int], room: int) -> Draft:
        proposers, policy = self._proposers, self._policy
        proposers.look_up(tokens, room)
        proposers.stand(tokens)
        prices = self._costs.prices(self._pending(len(tokens)), policy.kept_share())
        bars = prices.bars(self._budget)
        tree = expected_tree(proposers.continuations, prices.least(self._budget), room, self._cursor())
        worths = policy.mask_worths(proposers.copied.agreed, len(proposers.foreseen.chain))
        plan = planned(tree, worths, prices, bars, self._budget, self._costs.mask_steps)
        self._drafted = proposers.drafted(plan, len(tokens))
        return plan.draft(proposers.foreseen.chain)

    def _paying_head(self) -> "HeadGuesses | None":
        """The head, where its draft is expected to pay."""
        return self._head if self._head and self._head.pays(self._proposers.copied.agreed, self._costs.rate) else None

    def _pending(self, length: int) -> int:
        """Tokens that are fed before the draft that follows `length` tokens."""
        return 1 + length - self._reached

    def took(self, draft_ms: float, target_ms: float) -> None:
        self._costs.took(draft_ms, target_ms)

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        drafted, policy, proposers = self._drafted, self._policy, self._proposers
        copied, foreseen = proposers.copied, proposers.foreseen
        committed = [*(draft.tokens[node] for node in verdict.path), verdict.bonus]
        reached, has_masks = drafted.length + len(committed), drafted.has_masks or foreseen.ahead > 0
        start = perf_counter()
        is_asked = foreseen.observe(draft, scores, verdict, reached, policy.text_pays(copied.agreed))
        asked_ms = 1e3 * (perf_counter() - start) if is_asked else None
        copied.count(committed)
        tokens = policy.count(drafted, committed, has_masks)
        has_drafted = bool(self._head and self._head.drafted)
        pending = self._pending(drafted.length)
        steps = self._costs.count(pending, len(draft), tokens, has_drafted, asked_ms, drafted.read_ms)
        if is_asked:
            policy.asked(copied.agreed)
        if self._head:
            self._head.count(copied.agreed, tokens, steps)
            self._head.observe(draft, scores, verdict)
        self._reached, self._drafted = reached, Drafted(reached)


@dataclass(frozen=True, slots=True)
class Drafted:
    """What there is to count of a draft that follows `length` tokens; nothing, where none was made."""

    length: int
    bar: float = 1.0
    gains: Mapping[Path, float] = field(default_factory=dict)  # of the tree's guesses
    own: Set[Path] = frozenset()  # those of them that masks guessed, and hardly anyone else
    own_rows: Sequence[int] = ()  # how many of these, by depth
    is_by_text: bool = False  # whether a row of text said them, and not masks
    has_masks: bool = False
    read_ms: float = 0.0  # what reading the guesses of masks took

    def worth(self, paths: Sequence[Path], first: int, end: int) -> float:
        """What guesses of some depths were worth: those that are on the committed paths, less the price of their rows."""
        own = self.own_rows[first:end]
        return sum(path in self.own for path in paths[first : first + len(own)]) - self.bar * sum(own)


class Proposers:
    """Who suggests the tokens of one text."""

    def __init__(
        self,
        copied: CopiedGuesses,
        foreseen: LookaheadPredictions,
        head: "HeadGuesses | None",
        top_k: int,
        priors: DraftPriors,
    ) -> None:
        self.copied, self.foreseen = copied, foreseen
        self._head, self._top_k, self._priors = head, top_k, priors
        self._looked_up = 0  # the text's length at which copies were looked up last

    def look_up(self, tokens: Sequence[int], room: int) -> None:
        """Find copies of what follows `tokens`, once for a round."""
        if self._looked_up != len(tokens):
            self.copied.find(tokens, room)
            self._looked_up = len(tokens)

    def stand(self, tokens: Sequence[int]) -> None:
        """The next draft follows `tokens`."""
        self.foreseen.stand(tokens)
        self._by_masks: dict[Path, set[int]] = {}  # by path: what masks guessed, and hardly anyone else
        self._read_ms = 0.0

    def continuations(self, nodes: Sequence[Reached]) -> Iterator[Mapping[int, float]]:
        """Guesses for the token after each node of a level, with their probabilities."""
        said: Sequence[Level | None] = self._head.levels(nodes) if self._head else [None] * len(nodes)
        for node, level in zip(nodes, said, strict=True):
            if node.cursor is not None and node.cursor.run:
                yield {}  # the constraint says what comes
                continue
            copies = self.copied.shares(node.path, node.cursor)
            if copies and self.foreseen.begins:  # the prompt's end says less
                yield copies
                continue
            start = perf_counter()
            foreseen = self.foreseen.level(node.path)
            if level is None and foreseen is None:
                yield copies
                continue
            head, masks = self._likely(level, node), self._likely(foreseen, node)
            self._by_masks[node.path] = {
                token for token, chance in masks.items() if token not in copies and head.get(token, 0.0) < OWN * chance
            }
            guesses = pooled(copies, head, masks, self._priors)
            self._read_ms += 1e3 * (perf_counter() - start)
            yield guesses

    def _likely(self, level: Level | None, node: Reached) -> dict[int, float]:
        """A level's guesses that the constraint allows and that may be worth a row, with their probabilities."""
        if level is None:
            return {}
        floor = max(UNHEARD, (node.floor - SLACK) / self._priors.head_weight)
        return {token: exp(score) for token, score in islice(admitted(level, node.cursor, floor), self._top_k)}

    def drafted(self, plan: Plan, length: int) -> Drafted:
        """What there will be to count of a plan that follows `length` tokens."""
        paths, foreseen = plan.tree.paths(), self.foreseen
        own = {path for path in paths if path[-1] in self._by_masks.get(path[:-1], ())}
        said = 0 if foreseen.begins else foreseen.ahead
        own_rows = [sum(len(path) == depth + 1 for path in own) for depth in range(said)]
        gains = dict(zip(paths, plan.tree.gains, strict=True))
        return Drafted(length, plan.bar, gains, own, own_rows, foreseen.by_text, any(plan.masks), self._read_ms)


class Policy:
    """What is worth verifying in one text, as earlier rounds and texts have taught. stride: positions that a mask covers.

    Masks have cases of their own where the round that attached them had copies. agreed: the length of a copy's longest match.
    """

    def __init__(self, experience: AcceptanceStats, costs: RoundCosts, priors: DraftPriors, stride: int) -> None:
        worths = [
            sum(each[depth : depth + stride])
            for each in (priors.masks, priors.masks_with_copies)
            for depth in range(0, len(each), stride)
        ]
        self.got = experience.means("tokens of trees: got, and expected", (2.0, 2.0))
        self._mask_worth = experience.means("masks", worths, FORGOTTEN_BY_TEXTS)
        self._text_worth = experience.means("heads of text", (priors.text_row,), FORGOTTEN_BY_TEXTS)
        self._with_copies = len(worths) // 2  # the first case of masks that a round with copies attached
        self._asked = 0  # the first case of the masks whose guesses are counted
        self._costs, self._stride = costs, stride

    def _case(self, agreed: int) -> int:
        """The first case of masks that this round attaches."""
        return self._with_copies if agreed >= COPYING else 0

    def mask_worths(self, agreed: int, masks: int) -> list[float]:
        """What each mask of a chain is worth in this round."""
        return [self._mask_worth[self._case(agreed) + mask] for mask in range(masks)]

    def kept_share(self) -> float:
        """The tokens that trees have brought, of those that they were expected to."""
        low, high = KEPT
        return min(max(self.got[0] / self.got[1], low), high)

    def text_pays(self, agreed: int) -> bool:
        """Whether the guesses of a row of text, where no mask is new, are expected to be worth the time of asking for them."""
        return not self._case(agreed) or self._text_worth[0] >= self._costs.rate * self._costs.mask_steps

    def asked(self, agreed: int) -> None:
        """The guesses that are counted next are those that this round has asked for."""
        self._asked = self._case(agreed)

    def count(self, drafted: Drafted, committed: Sequence[int], has_masks: bool) -> int:
        """Count what was right, and return how many tokens the round brought."""
        paths = [tuple(committed[: depth + 1]) for depth in range(len(committed))]
        if not drafted.is_by_text:
            for first in range(0, len(drafted.own_rows), self._stride):
                worth = drafted.worth(paths, first, first + self._stride)
                self._mask_worth.saw(self._asked + first // self._stride, worth)
            self._text_worth.fade(FORGOTTEN)
        elif self._asked:
            self._text_worth.saw(0, drafted.worth(paths, 0, len(drafted.own_rows)))
        if not has_masks:
            self._mask_worth.fade(FORGOTTEN)
        got = sum(drafted.gains.get(path, 1.0) > 0.0 for path in paths[:-1])
        if drafted.gains:
            self.got.saw(0, got)
            self.got.saw(1, sum(drafted.gains.values()))
        return 1 + got


def _optional(head: "Head | str") -> "HeadGuesses | None":
    """See `optional_head`, which imports torch: that takes longer than a short conversation."""
    if head == "none":
        return None
    from decoding.methods.head_runtimes import optional_head

    return optional_head("path_tree", head)
