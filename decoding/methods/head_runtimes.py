"""What methods ask of a head, and who answers: our kernels where the target runs on them, torch's operators elsewhere.

States and features are opaque to a method: it selects rows of them, such as a round's tapped hidden states of the tokens that
became text, and hands them back. Tokens and log-probabilities come as tables with a row for each state, best first. A trained
head can also propose guesses along any path, for trees that other proposers grow with it.
"""

from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.engine.method import Context, HeadPass
from decoding.engine.target import AnyTarget, Array, ForwardOutput
from decoding.engine.verify import Verdict
from decoding.heads.head import Head, HeadMismatch, HeadUnavailable, check_target, find_head
from decoding.heads.modules.block import DominoHead
from decoding.methods.planned import Reached
from decoding.methods.trees import Guesses, Level, levels

if TYPE_CHECKING:
    from decoding.checkpoints.identity import TargetIdentity
    from decoding.heads.modules.drafters import SmallLm
    from decoding.heads.on_kernels.weights import HeadWeights
    from decoding.heads.on_torch.context import TensorContext


def committed_hidden(draft: Draft, scores: ForwardOutput, verdict: Verdict) -> Array:
    """States [new, taps, hidden] of the round's pending tokens and accepted nodes: every committed token but the bonus.

    Call it from `Method.observe`, with its arguments. Over a whole text, it returns each token's states exactly once.
    """
    if scores.hidden is None:
        raise ValueError("nothing was tapped: the method declares no taps")
    pending = len(scores.hidden) - len(draft)
    path = list(verdict.path)
    if path == list(range(len(path))):
        rows: Array = scores.hidden[: pending + len(path)]
    else:
        rows = _selected(scores.hidden, [*range(pending), *(pending + node for node in path)])
    return rows


def _selected(states: Any, rows: list[int]) -> Any:
    if isinstance(states, np.ndarray):
        return states[rows]
    from kernels.gpu.ragged import sent  # a list would make the host wait for the device

    return states[sent(rows, states.device)]


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

    def best_of(self, asked: Sequence[tuple[Any, States, int, int]]) -> Sequence[Guesses]:
        """The best tokens for each state of several texts with the same head: runtime, states, the position that the first
        state guesses, and how many tokens for each.
        """


class PathRuntime(BlockRuntime, Protocol):
    """A Domino head over one text."""

    def chain(self, states: States, tokens: Sequence[int], cursor: ConstraintCursor | None) -> list[int] | None:
        """The best chain after `tokens` that `cursor` allows, where there is a faster way to it than `expansion`."""

    def candidates(
        self, states: States, tokens: Sequence[int], width: int, children: int
    ) -> tuple[list[int], list[int], list[float]] | None:
        """All nodes of a beam search without a constraint, where there is a faster way to them than `expansion`: tokens,
        parents and log-probabilities of paths, in topological order.
        """

    def expansion(
        self, states: States, tokens: Sequence[int], count: int
    ) -> Callable[[int, Sequence[int], Sequence[int]], Guesses]:
        """A function that gives the best `count` tokens below each node of a `Frontier`: depth, tokens, rows."""


@dataclass(slots=True)
class BlockPass:
    """A text's part in a block head's next pass: a `decoding.engine.method.HeadPass`. masks: of the block. count: best tokens
    of each position that are wanted; 0: the states alone.
    """

    runtime: BlockRuntime
    known: Sequence[int]
    masks: int
    count: int = 0
    computed: States = None
    guesses: Guesses | None = None

    @property
    def key(self) -> Hashable:
        return id(self.runtime.head)

    def run(self, passes: "Sequence[BlockPass]") -> None:
        blocks = [(each.runtime, each.known, each.masks) for each in passes]
        for each, states in zip(passes, self.runtime.together(blocks), strict=True):
            each.computed = states
        wanting = [each for each in passes if each.count]
        asked = [(each.runtime, each.computed, each.runtime.count + len(each.known), each.count) for each in wanting]
        for each, guesses in zip(wanting, self.runtime.best_of(asked) if asked else (), strict=True):
            each.guesses = guesses

    def levels(self, room: int) -> list[Level]:
        """The guesses for each of the first positions, independent of the other positions."""
        assert self.guesses is not None
        return levels(self.guesses)[:room]


class Drafter(Protocol):
    """What all drafters over one text have. head: the same object for all texts that may share a pass.

    The functions of a drafter's passes take what several texts with the same head ask, and give what each of them gets.
    """

    @property
    def head(self) -> object: ...


Asked = tuple[Any, ...]
"""What a text asks of a pass: its drafter, then what the function names."""


@dataclass(slots=True)
class DrafterPass:
    """A text's part in a drafter's next pass: a `decoding.engine.method.HeadPass`. compute: a function of the drafter's."""

    compute: Callable[[Sequence[Any]], Sequence[Any]]
    drafter: Drafter
    asked: Asked
    found: Any = None

    @property
    def key(self) -> Hashable:
        return id(self.drafter.head), self.compute.__name__

    def run(self, passes: "Sequence[DrafterPass]") -> None:
        found = self.compute([(each.drafter, *each.asked) for each in passes])
        for each, its in zip(passes, found, strict=True):
            each.found = its


def computed(
    compute: Callable[[Sequence[Any]], Sequence[Any]], drafter: Drafter, *asked: Any
) -> Generator[HeadPass, None, Any]:
    """What the text gets of a pass that other texts may share."""
    own = DrafterPass(compute, drafter, asked)
    yield own
    return own.found


class MedusaRuntime(Drafter, Protocol):
    """Medusa's heads over one text."""

    def best_of(self, asked: Sequence[Any]) -> Sequence[Guesses]:
        """The best `count` tokens of some heads after a tapped state [hidden]; the first of them guesses `position`.

        Each asks (drafter, state, heads: range, position, count).
        """


class Eagle3Runtime(Drafter, Protocol):
    """EAGLE-3's drafter over one text. pairs: of a token and the feature of the token before it, which it has."""

    @property
    def pairs(self) -> int: ...

    def read(self, hidden: Array) -> None:
        """Take in the tapped states [new, taps, hidden] of the next tokens."""

    def paired(self, asked: Sequence[Any]) -> Sequence[tuple[States, Guesses | None]]:
        """Feed each new feature, paired with the token after it, once, and begin a round's tree: the state [1, hidden] after
        all pairs (none without any), and the best `count` tokens after it (0: None).

        Each asks (drafter, tokens: the text, count).
        """

    def grown(self, asked: Sequence[Any]) -> Sequence[tuple[States, Guesses | None]]:
        """The states of a level's tokens, all at `position`, and the best `count` tokens after each (0: None).

        Each asks (drafter, tokens, states, parents, position, count); parents: each one's in `states`, the last computed.
        """


class FalconRuntime(Drafter, Protocol):
    """Falcon's drafter over one text. pairs: of a token and the feature of the token before it, which it has."""

    @property
    def pairs(self) -> int: ...

    def read(self, features: Array) -> None:
        """Take in the features [new, hidden] of the next tokens."""

    def paired(self, asked: Sequence[Any]) -> Sequence[States]:
        """Feed each new feature, paired with the token after it, once, and begin a round's tree: the line [1, ...] of the last
        k pairs and of as many before them as the LSTM reads.

        Each asks (drafter, tokens: the text).
        """

    def glanced(self, asked: Sequence[Any]) -> Sequence[tuple[States, Guesses]]:
        """Features [lines, k, hidden] of the positions after the last k pairs of each line, which stand from `first` on, and
        the best `count` tokens for each, [lines * k, count].

        Each asks (drafter, lines, parents, first, count); parents: of the lines, in the previous level.
        """

    def following(self, line: States, features: States, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> States:
        """The lines of paths that go on from `rows` of these lines, with `tokens` [paths, k] guessed from their features."""


class Reader(Drafter, Protocol):
    """A small language model over one text. Rows of guesses come after those that are kept, and are overwritten.

    kept: tokens of the text that were read.
    """

    @property
    def kept(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def after(self, asked: Sequence[Any]) -> Sequence[tuple[States, Guesses | None]]:
        """The normed state [1, hidden] after `tokens`, which follow what was read before, and the best `count` tokens for
        `position` after it (0: None). keep: whether they are text.

        Each asks (drafter, tokens, keep, position, count).
        """


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
    from decoding.heads.on_torch.block import TorchPaths

    return TorchPaths(head, _tensors(head, context), prompt)


def medusa_runtime(head: Any, context: Context, prompt: Sequence[int]) -> MedusaRuntime:
    if (weights := _packed(head, context)) is not None:
        from decoding.heads.on_kernels.drafters import KernelMedusa

        return KernelMedusa(weights, context, head.config.frequent, prompt)
    from decoding.heads.on_torch.drafters import TorchMedusa

    return TorchMedusa(head, _tensors(head, context), prompt)


def eagle3_runtime(head: Any, context: Context, prompt: Sequence[int]) -> Eagle3Runtime:
    if (weights := _packed(head, context)) is not None:
        from decoding.heads.on_kernels.drafters import KernelEagle3

        return KernelEagle3(weights, context, head.config.frequent, prompt)
    from decoding.heads.on_torch.drafters import TorchEagle3

    return TorchEagle3(head, _tensors(head, context), prompt)


def falcon_runtime(head: Any, context: Context, prompt: Sequence[int]) -> FalconRuntime:
    if (weights := _packed(head, context)) is not None:
        from decoding.heads.on_kernels.drafters import KernelFalcon

        return KernelFalcon(weights, context, head.config.frequent, prompt)
    from decoding.heads.on_torch.drafters import TorchFalcon

    return TorchFalcon(head, _tensors(head, context), prompt)


def reader(source: "SmallLm | Path", context: Context, prompt: Sequence[int]) -> Reader:
    """source: the head, or the folder of a checkpoint. Raises ModelUnavailable, UnsupportedModel, too."""
    if _runs_kernels(context):
        from decoding.heads.on_kernels.drafters import KernelReader

        if isinstance(source, Head):
            check_target(source, context)
        return KernelReader(source, context, prompt)
    from decoding.heads.on_torch.context import TensorContext, to_target
    from decoding.heads.on_torch.drafters import TorchReader

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
    from decoding.heads.on_torch.context import TensorContext, to_target

    tensors = TensorContext.of(context)
    to_target(head, tensors)
    return tensors


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
        priors, means = context.draft_priors, context.experience.means
        self._with = means("tokens with a head", priors.with_head)
        self._without = means("tokens without a head", priors.without_head)
        without = priors.round_steps
        self._steps = means("plain steps of a round", (without, without + (draft_steps or priors.draft_steps)))
        self._learns = not draft_steps
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

    def drafting(self, tokens: Sequence[int], count: int) -> Generator[HeadPass, None, None]:
        """The head's one pass after `tokens`. count: guesses for each node."""
        drafter = self._ready()
        own = BlockPass(drafter, tokens[drafter.count :], self.head.size("block_size") - 1)
        yield own
        self._expand, self._depths = drafter.expansion(own.computed, tokens, count), len(own.computed)

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

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        """Keep the states of what was committed."""
        self._unread.append(committed_hidden(draft, scores, verdict))
        self._depths, self._is_ready = 0, True
