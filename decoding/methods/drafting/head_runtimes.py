"""What methods ask of a head, and who answers: our kernels where the target runs on them, torch's operators elsewhere.

States and features are opaque to a method: it selects rows of them and hands them back. Tokens and log-probabilities come as
tables with a row for each state, best first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.method import Context
from decoding.engine.target import Array
from decoding.heads.head import Head, check_target
from decoding.methods.drafting.trees import Guesses

if TYPE_CHECKING:
    from decoding.heads.modules.small_lm import SmallLm
    from decoding.heads.on_kernels.weights import HeadWeights
    from decoding.heads.on_torch.tensor_context import TensorContext

States = Any
"""An array or a tensor, as the runtime likes it."""


class BlockRuntime(Protocol):
    """A block head over one text. head: the same object for all texts; count: tokens whose hidden states it has, or what it
    computes of them: at first those that another text with the same beginning has left in `Context.draft_caches`.
    """

    @property
    def head(self) -> object: ...

    @property
    def count(self) -> int: ...

    def append(self, hidden: Array) -> None:
        """The tapped states [new, taps, hidden] of the next tokens, which the next pass takes in."""

    def states(self, known: Sequence[int], masks: int) -> States:
        """States [guesses, hidden] of the positions after `known`, the tokens from position `count` on."""

    def together(self, blocks: Sequence[tuple[Any, Sequence[int], int]]) -> list[States]:
        """`states` of several texts with the same head, in one pass: their runtimes, `known` and `masks`."""

    def best(self, states: States, position: int, count: int) -> Guesses:
        """The best `count` tokens for each state; the first of them guesses `position`."""


class PathRuntime(BlockRuntime, Protocol):
    """A Domino head over one text."""

    def chain(self, states: States, tokens: Sequence[int], cursor: ConstraintCursor | None) -> list[int] | None:
        """The best chain after `tokens` that `cursor` allows, where there is a faster way to it than `expansion`."""

    def expansion(
        self, states: States, tokens: Sequence[int], count: int
    ) -> Callable[[int, Sequence[int], Sequence[int]], Guesses]:
        """A function that gives the best `count` tokens below each node of a `Frontier`: depth, tokens, rows."""


@dataclass(slots=True)
class BlockPass:
    """A text's part in a block head's next pass: a `decoding.engine.method.HeadPass`. masks: of the block."""

    runtime: BlockRuntime
    known: Sequence[int]
    masks: int
    computed: States | None = None

    @property
    def key(self) -> object:
        return self.runtime.head

    def run(self, passes: "Sequence[BlockPass]") -> None:
        blocks = [(each.runtime, each.known, each.masks) for each in passes]
        for each, states in zip(passes, self.runtime.together(blocks), strict=True):
            each.computed = states

    def states(self) -> States:
        """See `BlockRuntime.states`."""
        if self.computed is None:
            self.run([self])
        return self.computed


class MedusaRuntime(Protocol):
    """Medusa's heads over one text."""

    def best(self, state: Array, heads: range, position: int, count: int) -> Guesses:
        """The best `count` tokens of some heads after a tapped state [hidden]; the first of them guesses `position`."""


class Eagle3Runtime(Protocol):
    """EAGLE-3's drafter over one text. pairs: of a token and the feature of the token before it, which it has."""

    @property
    def pairs(self) -> int: ...

    def read(self, hidden: Array) -> None:
        """Take in the tapped states [new, taps, hidden] of the next tokens."""

    def pair(self, tokens: Sequence[int]) -> None:
        """Feed each new feature, paired with the token after it, once."""

    def root(self) -> States:
        """Begin a round's tree: the state [1, hidden] after all pairs."""

    def grow(self, tokens: Sequence[int], states: States, parents: Sequence[int], position: int) -> States:
        """The states of tokens at `position`; parents: each one's in `states`, which are the last that were computed."""

    def best(self, states: States, position: int, count: int) -> Guesses:
        """The best `count` tokens for `position` after each state."""


class FalconRuntime(Protocol):
    """Falcon's drafter over one text. pairs: of a token and the feature of the token before it, which it has."""

    @property
    def pairs(self) -> int: ...

    def read(self, features: Array) -> None:
        """Take in the features [new, hidden] of the next tokens."""

    def pair(self, tokens: Sequence[int]) -> None:
        """Feed each new feature, paired with the token after it, once."""

    def root(self) -> States:
        """Begin a round's tree: the line [1, ...] of the last k pairs and of as many before them as the LSTM reads."""

    def glance(self, line: States, parents: Sequence[int], first: int) -> States:
        """Features [lines, k, hidden] of the positions after the last k pairs of each line, which stand from `first` on.

        parents: of the lines, in the previous level.
        """

    def following(self, line: States, features: States, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> States:
        """The lines of paths that go on from `rows` of these lines, with `tokens` [paths, k] guessed from their features."""

    def best(self, features: States, position: int, count: int) -> Guesses:
        """The best `count` tokens for each of the features [k, hidden]; the first of them guesses `position`."""


class Reader(Protocol):
    """A small language model over one text. Rows of guesses come after those that are kept, and are overwritten.

    kept: tokens of the text that were read.
    """

    @property
    def kept(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def read(self, tokens: Sequence[int], keep: bool) -> States:
        """The normed state [1, hidden] after `tokens`, which follow what was read before; keep: whether they are text."""

    def best(self, state: States, position: int, count: int) -> Guesses:
        """The best `count` tokens for `position` after the state."""


def block_runtime(head: Any, context: Context, prompt: Sequence[int]) -> BlockRuntime:
    """Raises HeadMismatch, as all of these do."""
    if (weights := _packed(head, context)) is not None:
        from decoding.heads.on_kernels.block import KernelBlock

        return KernelBlock(weights, context, head.config.frequent, prompt)
    from decoding.heads.on_torch.block import TorchBlock

    return TorchBlock(head, _tensors(head, context), prompt)


def path_runtime(head: Any, context: Context, prompt: Sequence[int]) -> PathRuntime:
    if (weights := _packed(head, context)) is not None:
        from decoding.heads.on_kernels.block import KernelPaths

        return KernelPaths(weights, context, head.config.frequent, prompt)
    from decoding.heads.on_torch.paths import TorchPaths

    return TorchPaths(head, _tensors(head, context), prompt)


def medusa_runtime(head: Any, context: Context, prompt: Sequence[int]) -> MedusaRuntime:
    if (weights := _packed(head, context)) is not None:
        from decoding.heads.on_kernels.medusa import KernelMedusa

        return KernelMedusa(weights, context, head.config.frequent, prompt)
    from decoding.heads.on_torch.medusa import TorchMedusa

    return TorchMedusa(head, _tensors(head, context), prompt)


def eagle3_runtime(head: Any, context: Context, prompt: Sequence[int]) -> Eagle3Runtime:
    if (weights := _packed(head, context)) is not None:
        from decoding.heads.on_kernels.eagle3 import KernelEagle3

        return KernelEagle3(weights, context, head.config.frequent, prompt)
    from decoding.heads.on_torch.eagle3 import TorchEagle3

    return TorchEagle3(head, _tensors(head, context), prompt)


def falcon_runtime(head: Any, context: Context, prompt: Sequence[int]) -> FalconRuntime:
    if (weights := _packed(head, context)) is not None:
        from decoding.heads.on_kernels.falcon import KernelFalcon

        return KernelFalcon(weights, context, head.config.frequent, prompt)
    from decoding.heads.on_torch.falcon import TorchFalcon

    return TorchFalcon(head, _tensors(head, context), prompt)


def reader(source: "SmallLm | Path", context: Context, prompt: Sequence[int]) -> Reader:
    """source: the head, or the folder of a checkpoint. Raises ModelUnavailable, UnsupportedModel, too."""
    if _runs_kernels(context):
        from decoding.heads.on_kernels.small_lm import KernelReader

        if isinstance(source, Head):
            check_target(source, context)
        return KernelReader(source, context, prompt)
    from decoding.heads.on_torch.small_lm import TorchReader
    from decoding.heads.on_torch.tensor_context import TensorContext, to_target

    tensors = TensorContext.of(context)
    if isinstance(source, Head):
        to_target(source, tensors)
    return TorchReader(source, tensors, prompt)


def _runs_kernels(context: Context) -> bool:
    return context.runtime == "kernels"


def _packed(head: Head, context: Context) -> "HeadWeights | None":
    """The head's weights for our kernels; None where the target runs on others, or there are no kernels for its kind."""
    if not _runs_kernels(context):
        return None
    from decoding.heads.on_kernels.packing import is_packable, packed_head

    if not is_packable(head):
        return None
    check_target(head, context)
    return packed_head(head)


def _tensors(head: Head, context: Context) -> "TensorContext":
    from decoding.heads.on_torch.tensor_context import TensorContext, to_target

    tensors = TensorContext.of(context)
    to_target(head, tensors)
    return tensors
