"""What the methods with a block head share: the head's context, and one pass per round.

They differ in how the pass's guesses become a draft: `decoding.methods.blocks.{dflash, ddtree, jetspec, domino,
path_tree}`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.heads.head import Head, HeadUnavailable, find_head
from decoding.heads.modules.block import BlockHead
from decoding.methods.drafting.committed_states import committed_hidden
from decoding.methods.drafting.head_runtimes import BlockPass, BlockRuntime, States, block_runtime
from decoding.methods.drafting.trees import Level, levels


class BlockMethod(Method):
    """Drafts for one sequence with a block head.

    head: a folder, or "auto" for the shipped one. block_size: 0 takes the head's own. A head that is not
    causal, and so guesses its block as a whole, was trained on blocks of that size only.
    """

    kind: ClassVar[str]
    head_type: ClassVar[type[BlockHead]] = BlockHead
    _head: BlockHead
    _drafter: BlockRuntime

    def __init__(self, head: Head | str = "auto", block_size: int = 0) -> None:
        if block_size < 0 or block_size == 1:
            raise ValueError(f"block_size must be 0 (the head's own) or 2 and more, not {block_size}")
        found = find_head(self.kind, head)
        if not isinstance(found, self.head_type):
            raise HeadUnavailable(f"{self.kind} cannot draft with a head of kind {found.config.kind}")
        self._head, self.taps = found, found.config.taps
        self._masks = (block_size or found.size("block_size")) - 1
        self._pass: BlockPass | None = None  # of the next draft, computed with those of other texts

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._drafter, self._cursor, self._pass = self.runtime(context, prompt), context.cursor, None
        if hidden is not None:
            self._drafter.append(hidden[self._drafter.count :])

    def runtime(self, context: Context, prompt: Sequence[int]) -> BlockRuntime:
        """What computes the head for one text."""
        return block_runtime(self._head, context, prompt)

    def head_pass(self, tokens: Sequence[int], room: int) -> BlockPass | None:
        self._pass = BlockPass(self._drafter, tokens[self._drafter.count :], self._masks) if room > 0 else None
        return self._pass

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        if (own := self._pass or self.head_pass(tokens, room)) is None:
            return Draft()
        self._pass = None
        return self.draft(own.states()[:room], tokens, self._cursor())

    @abstractmethod
    def draft(self, states: States, tokens: Sequence[int], cursor: ConstraintCursor | None) -> Draft:
        """A draft from the states [depth, hidden] of the positions after `tokens`; `cursor`: the constraint's after them."""

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self._pass = None
        self._drafter.append(committed_hidden(draft, scores, verdict))

    def levels(self, states: States, tokens: Sequence[int], count: int) -> list[Level]:
        """The best `count` guesses for each position, independent of the other positions."""
        return levels(self._drafter.best(states, len(tokens), count))
