"""Methods with a block head: DFlash, DDTree, JetSpec, Domino and our path tree.

They share the head's context and its one pass per round, and differ in how the pass's guesses become a draft:

- `DFlash` (arXiv 2602.06036): one pass of a bidirectional block head guesses a chain.
- `DDTree` (arXiv 2604.12989): the most probable prefixes under the marginals of DFlash's head, best first.
- `JetSpec` (arXiv 2606.18394): one pass of a causal block head, and a tree that is built best first within a budget.
- `Domino` (arXiv 2605.29707): a block head's chain, each guess corrected by the guesses before it.
- `PathTree`, our own: a tree in which every path has its own guesses. DDTree and JetSpec attach the same guesses under every
  node of a depth, because one pass of the head gives one distribution per depth. Here Domino's causal correction, a GRU and a
  low-rank factor, is applied along every branch, so that what follows depends on the branch; the block head still runs once.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.engine.method import Context, DeviceInt, Drafting, HeadMethod, on_device
from decoding.engine.target import Array, ForwardOutput
from decoding.engine.verify import Verdict
from decoding.heads.head import Head, drafting_head
from decoding.heads.modules.block import BlockHead, DominoHead
from decoding.methods.head_runtimes import (
    BlockPass,
    BlockRuntime,
    PathRuntime,
    States,
    block_runtime,
    committed_hidden,
    path_runtime,
)
from decoding.methods.trees import (
    LEAST,
    Bounds,
    Frontier,
    Guesses,
    beam,
    best_first,
    budgeted,
    chain,
    fanned_out,
    offered,
)


class BlockMethod(HeadMethod):
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
        found = drafting_head(self.kind, head, self.head_type)
        self._head, self.taps = found, found.config.taps
        self._masks = (block_size or found.size("block_size")) - 1

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self.size(context.runtime)
        self._drafter, self._cursor = self.runtime(context, prompt), context.cursor
        if hidden is not None:
            self._drafter.append(hidden[self._drafter.count :])

    def size(self, runtime: str) -> None:
        """Take the sizes of drafts for what computes the target, where they have defaults by device."""

    def runtime(self, context: Context, prompt: Sequence[int]) -> BlockRuntime:
        """What computes the head for one text."""
        return block_runtime(self._head, context, prompt)

    def drafting(self, tokens: Sequence[int], room: int) -> Drafting:
        if room < 1:
            return Draft()
        cursor = self._cursor()
        own = BlockPass(self._drafter, tokens[self._drafter.count :], self._masks, self.guesses(cursor))
        yield own
        return self.draft(own, room, tokens, cursor)

    def guesses(self, cursor: ConstraintCursor | None) -> int:
        """How many for each position a draft is made from; 0: from states alone."""
        return 0

    @abstractmethod
    def draft(self, own: BlockPass, room: int, tokens: Sequence[int], cursor: ConstraintCursor | None) -> Draft:
        """A draft of at most `room` positions after `tokens`; `cursor`: the constraint's after them."""

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        self._drafter.append(committed_hidden(draft, scores, verdict))


class DFlash(BlockMethod):
    """The best token of every position."""

    kind: ClassVar[str] = "dflash"

    def guesses(self, cursor: ConstraintCursor | None) -> int:
        return offered(1, cursor)

    def draft(self, own: BlockPass, room: int, tokens: Sequence[int], cursor: ConstraintCursor | None) -> Draft:
        return chain(own.levels(room), cursor)


class DDTree(BlockMethod):
    """budget, least: see `Bounds`. head, block_size: see `BlockMethod`."""

    kind: ClassVar[str] = "dflash"

    def __init__(
        self,
        head: Head | str = "auto",
        block_size: int = 0,
        budget: int = DeviceInt(24, gpu=256),
        least: float = LEAST,
    ) -> None:
        super().__init__(head, block_size)
        self._given = Bounds(budget, least)

    def size(self, runtime: str) -> None:
        self._bounds = self._given.on(runtime)

    def guesses(self, cursor: ConstraintCursor | None) -> int:
        return offered(self._bounds.budget, cursor)

    def draft(self, own: BlockPass, room: int, tokens: Sequence[int], cursor: ConstraintCursor | None) -> Draft:
        return best_first(own.levels(room), self._bounds, cursor)


class JetSpec(BlockMethod):
    """budget, least: see `Bounds`. width: children of a node that has any. On a GPU the paper's 256 nodes and 7.

    A node gets all its children at once when it is the best node so far, as in the released tree builder. head, block_size:
    see `BlockMethod`; a causal head may guess beyond the block size that it was trained on.
    """

    kind: ClassVar[str] = "jetspec"

    def __init__(
        self,
        head: Head | str = "auto",
        block_size: int = 0,
        budget: int = DeviceInt(24, gpu=256),
        width: int = DeviceInt(3, gpu=7),
        least: float = LEAST,
    ) -> None:
        super().__init__(head, block_size)
        if width < 1:
            raise ValueError(f"width must be 1 or more, not {width}")
        self._given = Bounds(budget, least), width

    def size(self, runtime: str) -> None:
        bounds, width = self._given
        self._bounds, self._width = bounds.on(runtime), on_device(width, runtime)

    def guesses(self, cursor: ConstraintCursor | None) -> int:
        return offered(self._width, cursor)

    def draft(self, own: BlockPass, room: int, tokens: Sequence[int], cursor: ConstraintCursor | None) -> Draft:
        return fanned_out(own.levels(room), self._width, self._bounds, cursor)


class PathMethod(BlockMethod):
    """A block method whose guesses are corrected along every path."""

    head_type: ClassVar[type[BlockHead]] = DominoHead
    _head: DominoHead
    _drafter: PathRuntime

    def runtime(self, context: Context, prompt: Sequence[int]) -> PathRuntime:
        return path_runtime(self._head, context, prompt)

    def grown(
        self,
        states: States,
        tokens: Sequence[int],
        cursor: ConstraintCursor | None,
        width: int,
        children: int,
        bounds: Bounds,
    ) -> Draft:
        """The tree of a beam search of this width, with `children` per node, from the tokens that `cursor` allows."""
        found = self._drafter.candidates(states, tokens, width, children) if cursor is None else None
        if found is not None:
            return budgeted(*bounds.above_floor(*found), bounds.budget)
        below = self._drafter.expansion(states, tokens, offered(children, cursor))

        def expand(frontier: Frontier) -> Guesses:
            return below(frontier.depth, frontier.tokens, frontier.rows)

        return beam(expand, width, len(states), bounds, children, cursor)


class Domino(PathMethod):
    """The best token of every position, given the best tokens before it."""

    kind: ClassVar[str] = "domino"

    def draft(self, own: BlockPass, room: int, tokens: Sequence[int], cursor: ConstraintCursor | None) -> Draft:
        states = own.computed[:room]
        if (chain := self._drafter.chain(states, tokens, cursor)) is not None:
            return Draft.chain(chain)
        return self.grown(states, tokens, cursor, width=1, children=1, bounds=Bounds(len(states)))


class PathTree(PathMethod):
    """budget, least: see `Bounds`. width: nodes expanded per depth. children: guesses below each.

    head, block_size: see `BlockMethod`. Any head of Domino's kind works.
    """

    kind: ClassVar[str] = "path_tree"

    def __init__(
        self,
        head: Head | str = "auto",
        block_size: int = 0,
        budget: int = DeviceInt(24, gpu=64),
        width: int = DeviceInt(6, gpu=12),
        children: int = DeviceInt(4, gpu=8),
        least: float = LEAST,
    ) -> None:
        super().__init__(head, block_size)
        if min(width, children) < 1:
            raise ValueError(f"width and children must be 1 or more, not {width} and {children}")
        self._given = Bounds(budget, least), width, children

    def size(self, runtime: str) -> None:
        bounds, width, children = self._given
        self._bounds = bounds.on(runtime)
        self._width, self._children = on_device(width, runtime), on_device(children, runtime)

    def draft(self, own: BlockPass, room: int, tokens: Sequence[int], cursor: ConstraintCursor | None) -> Draft:
        return self.grown(own.computed[:room], tokens, cursor, self._width, self._children, self._bounds)
