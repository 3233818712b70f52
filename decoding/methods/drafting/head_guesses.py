"""A trained head as a proposer of guesses along any path, for trees that other proposers grow with it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from decoding.engine.draft import Draft
from decoding.engine.method import Context
from decoding.engine.target import AnyTarget, Array, Scores
from decoding.engine.verify import Verdict
from decoding.heads.head import Head, HeadMismatch, HeadUnavailable, check_target, find_head
from decoding.heads.modules.domino import DominoHead
from decoding.methods.drafting.committed_states import committed_hidden
from decoding.methods.drafting.expected_tree import Reached
from decoding.methods.drafting.head_runtimes import BlockPass, PathRuntime, path_runtime
from decoding.methods.drafting.planned import DRAFT_STEPS
from decoding.methods.drafting.trees import Level, levels

if TYPE_CHECKING:
    from decoding.checkpoints.target_identity import TargetIdentity

WITH_HEAD = (3.5, 3.6, 4.2, 4.6, 4.4, 5.0, 5.6, 5.9, 6.4)
WITHOUT_HEAD = (2.0, 2.9, 2.9, 3.6, 3.3, 3.6, 4.9, 5.4, 6.4)
"""Priors of what a round commits where the head drafts and where it does not, by the length of the longest match of a copy.

Without a match the first is not what was measured where texts are foretold, but closer to what it is where none are.
"""

ROUND_STEPS = 1.45
"""Prior of what a round without the head takes, in plain steps. One with it takes its draft's time longer."""

TRIED = 16
"""After so many rounds of the one way, with the head or without, the other is tried, so that both remain known."""


def optional_head(kind: str, head: Head | str) -> "HeadGuesses | None":
    """The head of a method that can do without: a folder, "none", or "auto" for the shipped one of `kind` if there is one.

    Raises HeadUnavailable, ModelUnavailable.
    """
    if head == "none":
        return None
    try:
        return HeadGuesses(find_head(kind, head), is_wanted=head != "auto")
    except HeadUnavailable:
        if head == "auto":
            return None
        raise


class HeadGuesses:
    """One text's guesses by a head of Domino's kind, whose guesses depend on the path before them.

    is_wanted: by name, so that a target which it does not fit is an error. Raises HeadUnavailable for another kind.
    """

    def __init__(self, head: Head, is_wanted: bool = True) -> None:
        if not isinstance(head, DominoHead):
            raise HeadUnavailable(
                f"a tree of guesses along paths needs a head of Domino's kind, not {head.config.kind}"
            )
        self.head, self.taps, self._is_wanted = head, head.config.taps, is_wanted

    def suits(self, target: AnyTarget, identity: "Callable[[], TargetIdentity] | None") -> bool:
        """Whether to draft with it for this target: always if it is wanted, else if it was trained on it."""
        if self._is_wanted:
            return True
        try:
            self.head.check_fits(target.embedding)
        except HeadMismatch:
            return False
        return not (identity and self.head.identity and self.head.identity.difference(identity()))

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context, draft_steps: float = 0.0) -> None:
        """Start a text. draft_steps: what its draft takes, in plain steps; 0: that is learned while decoding.

        Raises HeadMismatch where the head does not fit the context's target.
        """
        check_target(self.head, context)
        self._context, self._prompt, self._depths = context, prompt, 0
        self._drafter: PathRuntime | None = None  # made, and given the states, where a round drafts with the head
        self._with = context.experience.means("tokens with a head", WITH_HEAD)
        self._without = context.experience.means("tokens without a head", WITHOUT_HEAD)
        self._steps = context.experience.means(
            "plain steps of a round", (ROUND_STEPS, ROUND_STEPS + (draft_steps or DRAFT_STEPS))
        )
        self._learns = not draft_steps
        self._pass: BlockPass | None = None  # of the next draft, computed with those of other texts
        self._is_ready = False  # the first round has no states, and says nothing of rounds without the head
        self._unread = [] if hidden is None else [hidden]

    @property
    def drafted(self) -> bool:
        """Whether it has guesses for this round."""
        return self._depths > 0

    def pays(self, agreed: int, rate: float) -> bool:
        """Whether a round with its draft is expected to commit more, beyond what one without does, than its time would bring.

        agreed: the length of the longest match of a copy. rate: tokens that are committed in the time of a plain step.
        """
        longer = max(self._steps[1] - self._steps[0], 0.0)
        is_better = self._with[agreed] - self._without[agreed] > rate * longer
        used, other = (self._with, self._without) if is_better else (self._without, self._with)
        is_tried = self._learns and used.seen(agreed) > TRIED * (1.0 + other.seen(agreed))
        return is_better != is_tried

    def count(self, agreed: int, tokens: int, steps: float) -> None:
        """Count what a round committed, and what it took, in plain steps."""
        if self._is_ready:
            (self._with if self.drafted else self._without).saw(agreed, tokens)
            self._steps.saw(self.drafted, steps)

    def head_pass(self, tokens: Sequence[int]) -> BlockPass:
        """What `draft` computes of the head after `tokens`."""
        drafter = self._ready()
        self._pass = BlockPass(drafter, tokens[drafter.count :], self.head.size("block_size") - 1)
        return self._pass

    def draft(self, tokens: Sequence[int], count: int) -> None:
        """Run the head's one pass after `tokens`, if it has not run. count: guesses for each node."""
        states, self._pass = (self._pass or self.head_pass(tokens)).states(), None
        self._expand, self._depths = self._ready().expansion(states, tokens, count), len(states)

    def _ready(self) -> PathRuntime:
        """The runtime, with all states of the text."""
        if self._drafter is None:
            self._drafter = path_runtime(self.head, self._context, self._prompt)
            self._unread[:1] = [states[self._drafter.count :] for states in self._unread[:1]]
        for hidden in self._unread:
            self._drafter.append(hidden)
        self._unread = []
        return self._drafter

    def levels(self, nodes: Sequence[Reached]) -> Sequence[Level | None]:
        """The guesses after each node of a level; levels are asked for one after the other, from the root on."""
        depth = len(nodes[0].path)
        if depth >= self._depths:
            return [None] * len(nodes)
        tokens = tuple(node.path[-1] for node in nodes) if depth else ()
        return levels(self._expand(depth, tokens, tuple(node.parent for node in nodes)))

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Keep the states of what was committed."""
        self._unread.append(committed_hidden(draft, scores, verdict))
        self._depths, self._is_ready, self._pass = 0, True, None
