"""The interface of decoding methods (`Method`), and what a method and the loop share about a text.

A method makes drafts: `begin`, `propose` and `observe` are all that it must have; everything else is shared by all methods and
has a default. `Context` is what it may read besides the text. `LookupCorpus` has earlier texts to copy from.

`Ensemble` is for a text with several prompts. The mean of their logits is the normalised geometric mean of the distributions (a
product of experts; Hinton, Neural Computation 14, 2002). Prompts that say the same in another order make it an ensemble without
other weights, as permutation self-consistency does for whole answers (Tang et al., arXiv 2310.07712). A draft is scored after
all prompts in one forward and verified against the mean, so every method writes the text of plain decoding here as well.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

import numpy as np

from decoding.checkpoints.mask_adapter import DEFAULT_PRIORS, DraftPriors
from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.engine.experience import AcceptanceStats, RowCosts
from decoding.engine.sampler import Floats, Sampler
from decoding.engine.target import (
    AnyTarget,
    Array,
    DraftCaches,
    ForwardInput,
    ForwardOutput,
    PairScores,
    TargetSequence,
    TokenSet,
)
from decoding.engine.verify import Verdict

if TYPE_CHECKING:
    from decoding.checkpoints.identity import TargetIdentity


class DeviceInt(int):
    """An option's default by device: itself on a processor, where every row costs, and `gpu` where they hardly do."""

    gpu: int

    def __new__(cls, cpu: int, gpu: int) -> Self:
        made = super().__new__(cls, cpu)
        made.gpu = gpu
        return made


class DeviceFloat(float):
    """The same for a number."""

    gpu: float

    def __new__(cls, cpu: float, gpu: float) -> Self:
        made = super().__new__(cls, cpu)
        made.gpu = gpu
        return made


Number = TypeVar("Number", int, float)


def on_device(value: Number, runtime: str) -> Number:
    """An option's value for what computes the target (`Target.runtime`); one that was given is the same everywhere.

    >>> default = DeviceInt(16, gpu=59)
    >>> default, on_device(default, "kernels"), on_device(default, "cuda"), on_device(20, "cuda")
    (16, 16, 59, 20)
    """
    if runtime != "cuda" or not isinstance(value, (DeviceInt, DeviceFloat)):
        return value
    return value.gpu


PROMPT_ROWS = 256  # of newcomers' prompts in a forward that texts under way wait for


def parts_of_prompts(unread: Sequence[int], most: int = PROMPT_ROWS) -> list[int | None]:
    """For each text of a forward how many of its unread rows it reads, or None where it reads the rest and decodes. A text by
    itself reads all. Several share `most` rows (0: any number), so that a long prompt does not stop the others: half of them
    go to the text that came first, the rest to the shortest prompts, which so do not wait for the long ones.

    >>> parts_of_prompts([0, 200, 900, 30], 256), parts_of_prompts([0, 900], 0), parts_of_prompts([900], 256)
    ([None, None, 26, None], [None, None], [None])
    """
    if not most or len(unread) == 1:
        return [None for _ in unread]
    shortest = sorted(range(len(unread)), key=unread.__getitem__)
    first = next((index for index, rows in enumerate(unread) if rows), 0)
    parts, left = [0 for _ in unread], most
    for index, share in [(first, -(-most // 2)), *((index, most) for index in shortest)]:
        rows = min(unread[index] - parts[index], share, left)
        parts[index] += rows
        left -= rows
    return [None if part == rows else part for part, rows in zip(parts, unread, strict=True)]


class Ensemble:
    """The target's sequences of one text, one for each prompt. Closing `opened` closes them.

    What a method sees besides the pooled logits (cached tokens, hidden states, draft caches) is that of the first.
    """

    def __init__(
        self,
        target: AnyTarget,
        prompts: Sequence[Sequence[int]],
        sampler: Sampler,
        taps: tuple[int, ...],
        opened: ExitStack,
    ) -> None:
        self._target, self._sampler = target, sampler
        self._sequences: list[TargetSequence] = []
        for prompt in prompts:
            sequence: TargetSequence = target.open(prompt, sampler, () if self._sequences else taps)
            opened.callback(target.close, sequence)
            self._sequences.append(sequence)
        self._parts: list[int] = []  # rows of each prompt that the forward under way reads
        self._unseen = [list(prompt[each.cached :]) for prompt, each in zip(prompts, self._sequences, strict=True)]

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def cached(self) -> int:
        return self._sequences[0].cached

    @property
    def hidden(self) -> Array | None:
        return self._sequences[0].hidden

    @property
    def draft_caches(self) -> DraftCaches:
        return self._sequences[0].draft_caches

    @property
    def unread(self) -> int:
        """Rows of the prompts that can be read before the first token is wanted: all but the last of each."""
        return sum(len(rest) - 1 for rest in self._unseen)

    def part(self, rows: int) -> list[ForwardInput[Any]]:
        """As many rows of the prompts, one prompt after the other, for the next forward; `keep_part` then keeps them."""
        self._parts = []
        for rest in self._unseen:
            self._parts.append(min(rows, len(rest) - 1))
            rows -= self._parts[-1]
        fed = zip(self._sequences, self._unseen, self._parts, strict=True)
        return [ForwardInput(sequence, rest[:count], Draft()) for sequence, rest, count in fed if count]

    def keep_part(self) -> None:
        for index, count in enumerate(self._parts):
            if count:
                self._target.commit(self._sequences[index], ())
                self._unseen[index] = self._unseen[index][count:]
        self._parts = []

    def work(self, pending: Sequence[int], draft: Draft) -> list[ForwardInput[Any]]:
        """What the next forward computes: before the first `commit` the rest of each prompt, then `pending` after each."""
        rests: Sequence[Sequence[int]] = self._unseen or [pending] * len(self)
        return [ForwardInput(sequence, rest, draft) for sequence, rest in zip(self._sequences, rests, strict=True)]

    def pooled(self, scores: Sequence[ForwardOutput], position: Callable[[int], int]) -> ForwardOutput:
        """One forward's scores after each prompt as one: the mean of their logits. position: of the token after a node."""
        if len(scores) == 1:
            return scores[0]

        def after(nodes: Sequence[int]) -> Floats:
            return _mean([each.after(nodes) for each in scores])

        def among(nodes: Sequence[int], tokens: TokenSet) -> Floats:
            return _mean([each.among(nodes, tokens) for each in scores])

        def choice(node: int) -> int:
            """Where greedy choices agree, the mean has its maximum there too, and no logits are needed."""
            agreed = {each.choice(node) for each in scores} if self._sampler.temperature == 0 else ()
            if len(agreed) == 1:
                return agreed.pop()
            return self._sampler.pick(after([node])[0], position(node))

        def ahead(asked: Sequence[tuple[int, int]], tokens: TokenSet | None) -> Floats:
            return _mean([each.ahead(asked, tokens) for each in scores if each.ahead])

        return ForwardOutput(
            after, scores[0].hidden, choice, scores[0].nodes, among, ahead=ahead if scores[0].ahead else None
        )

    def commit(self, path: Sequence[int]) -> None:
        for sequence in self._sequences:
            self._target.commit(sequence, path)
        self._unseen = []


def _mean(logits: Sequence[Floats]) -> Floats:
    """Added up in the order of the prompts, so that it depends on nothing else."""
    total = np.array(logits[0], np.float32)
    for each in logits[1:]:
        total += each
    total /= np.float32(len(logits))
    return total


class LookupCorpus:
    """Recently used token sequences, newest first, bounded by their total length. Written by the conversation only."""

    def __init__(self, max_tokens: int = 8192) -> None:
        self._max_tokens = max_tokens
        self._sequences: OrderedDict[tuple[int, ...], None] = OrderedDict()

    def add(self, tokens: Iterable[int]) -> None:
        """Remember a sequence as the newest; the oldest are forgotten when the total grows past `max_tokens`."""
        sequence = tuple(tokens)
        if not sequence:
            return
        self._sequences.pop(sequence, None)
        self._sequences[sequence] = None
        while sum(map(len, self._sequences)) > self._max_tokens and len(self._sequences) > 1:
            self._sequences.popitem(last=False)

    def copy(self) -> "LookupCorpus":
        """A copy that later additions do not change."""
        other = LookupCorpus(self._max_tokens)
        other._sequences = self._sequences.copy()
        return other

    def with_texts(self, older: Iterable[Sequence[int]], newer: Iterable[Sequence[int]]) -> "LookupCorpus":
        """A copy with sequences added that the conversation has not written, as its oldest and as its newest.

        Each argument ends with its newest sequence. The bound grows by what is added, so nothing is forgotten for it.
        """
        older, newer = list(older), list(newer)
        other = LookupCorpus(self._max_tokens + sum(map(len, older)) + sum(map(len, newer)))
        for sequence in (*older, *self._sequences, *newer):
            other.add(sequence)
        return other

    @property
    def sequences(self) -> tuple[tuple[int, ...], ...]:
        """All remembered sequences, newest first."""
        return tuple(reversed(self._sequences))


@dataclass(frozen=True, slots=True)
class Context:
    """What a method may read besides the text. At T > 0 guesses should be ranked with the sampler's noise, as the target's
    own choice is.
    """

    sampler: Sampler
    embedding: Array  # the target's [vocab, hidden]
    lm_head: Array  # the target's [vocab, hidden]
    recall: LookupCorpus
    identity: "Callable[[], TargetIdentity] | None" = None  # the target's identity, if known
    cursor: Callable[[], ConstraintCursor | None] = lambda: (
        None
    )  # the constraint's cursor after the text so far; None without a constraint
    mask_tokens: range = range(0)  # see `Target`
    prompt_mask: bool = False  # see `Target`
    mask_pairs: PairScores | None = None
    runtime: str = "cpu"  # what computes the target, see `Target.runtime`; heads run on the same
    prompts: int = 1  # after which each node of a draft is scored, see `Ensemble`
    row_costs: RowCosts | None = None  # what this machine takes for a forward; None: not measured
    draft_caches: DraftCaches = field(default_factory=dict)  # of the text's sequence, see `TargetSequence`
    experience: AcceptanceStats = field(
        default_factory=AcceptanceStats
    )  # of earlier texts of this kind with this method
    ahead: int = 0  # see `Target`
    draft_priors: DraftPriors = DEFAULT_PRIORS

    def masks(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """Mask tokens by depth: the target's own, or else the prompt's last token if it was trained on that. A model that was
        not has none: what it says at a token that means nothing to it is not worth a row.
        """
        return tuple(self.mask_tokens) or (tuple(prompt[-1:]) if self.prompt_mask else ())


class HeadPass(Protocol):
    """One text's part in a forward of a draft head. Those with the same key are computed together."""

    @property
    def key(self) -> Hashable: ...

    def run(self, passes: Sequence[Any]) -> None:
        """Compute the passes, of which this is the first, in one forward; each keeps what is its own."""


def run_together(passes: Sequence[HeadPass]) -> None:
    """One forward of each head for all passes of it."""
    groups: dict[Hashable, list[HeadPass]] = {}
    for each in passes:
        groups.setdefault(each.key, []).append(each)
    for group in groups.values():
        group[0].run(group)


Drafting = Generator[HeadPass, None, Draft]
"""A draft under way: it yields what it needs of a head next, goes on when that is computed, and returns the draft."""


def alone(drafting: Drafting) -> Draft:
    """The draft, with passes of its own."""
    while True:
        try:
            run_together([next(drafting)])
        except StopIteration as end:
            draft: Draft = end.value
            return draft


class Method(ABC):
    """The base of all methods. One instance drafts for one sequence at a time."""

    kind: ClassVar[str | None] = None  # its head's kind, a key of `decoding.heads.kinds.KINDS`; None without a head
    taps: tuple[int, ...] = ()  # hidden layers whose states it needs (see `Target`); empty for most

    def meet(self, target: AnyTarget, identity: "Callable[[], TargetIdentity] | None") -> None:
        """Called first, before `taps` are read: a method that can do without its head drops one that does not fit."""
        return

    @abstractmethod
    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        """Forget everything; a new sequence starts with `prompt`.

        `hidden` [cached, taps, hidden]: states of the prompt's first tokens, as far as the prefix cache has them or earlier
        forwards have read them. The states of the rest come with the first `observe`. So the first round, after a cold start
        or a cache hit alike, calls `propose_unseen` instead of `propose` for a method with taps.
        """

    @abstractmethod
    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        """Guess what follows `tokens` (prompt and committed text), at most `room` deep. An empty draft is fine."""

    def propose_unseen(self, tokens: Sequence[int], room: int) -> Draft:
        """Like `propose`, for a method with taps that has not seen the states of `tokens` yet. By default it drafts nothing."""
        return Draft()

    def drafting(self, tokens: Sequence[int], room: int) -> Drafting:
        """`propose` in steps, so that several texts share each forward of a head."""
        yield from ()
        return self.propose(tokens, room)

    def took(self, draft_ms: float, target_ms: float) -> None:
        """Called before `observe`, after rounds whose forward had no other rows: what the draft and the forward took."""
        return

    @abstractmethod
    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        """Take note of the target's verdict on the draft that was actually scored: perhaps pruned, or another method's."""


class HeadMethod(Method):
    """A method that computes a head in one or more passes."""

    @abstractmethod
    def drafting(self, tokens: Sequence[int], room: int) -> Drafting: ...

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        return alone(self.drafting(tokens, room))


class UnknownMethod(ValueError):
    """A decoding method, or an option of one, that does not exist; the message lists those that do."""
