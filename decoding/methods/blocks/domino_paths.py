"""Guesses of a Domino head that depend on the path before them, as `domino` and `path_tree` use them."""

from collections.abc import Sequence
from typing import ClassVar

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.engine.method import Context
from decoding.heads.modules.block import BlockHead
from decoding.heads.modules.domino import DominoHead
from decoding.methods.blocks.block_method import BlockMethod
from decoding.methods.drafting.head_runtimes import PathRuntime, States, path_runtime
from decoding.methods.drafting.trees import Bounds, Frontier, Guesses, beam, offered


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
        below = self._drafter.expansion(states, tokens, offered(children, cursor))

        def expand(frontier: Frontier) -> Guesses:
            return below(frontier.depth, frontier.tokens, frontier.rows)

        return beam(expand, width, len(states), bounds, children, cursor)
