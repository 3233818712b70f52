"""What a decoding method is: where drafts come from. Everything else is shared."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from decoding.engine.constraint_cursor import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.engine.recall import Recall
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import Scores
from decoding.engine.verify import Verdict

if TYPE_CHECKING:
    from decoding.checkpoints.target_identity import TargetIdentity


@dataclass(frozen=True, slots=True)
class Context:
    """What a method may read beside the text. A guess at T > 0 ranked without the sampler's noise is blind to the target's."""

    sampler: Sampler
    embedding: Tensor  # the target's [vocab, hidden]
    lm_head: Tensor  # the target's [vocab, hidden]
    recall: Recall
    identity: "Callable[[], TargetIdentity] | None" = None  # who the target is, where that is known
    cursor: Callable[[], ConstraintCursor | None] = lambda: (
        None
    )  # in the constraint, after the text so far; None without one


class Method(ABC):
    """The base of all methods. One instance drafts for one sequence at a time."""

    kind: ClassVar[str | None] = None  # of its draft head, a key of `decoding.heads.kinds.KINDS`; None without one
    taps: tuple[int, ...] = ()  # hidden layers whose states it needs (see `Target`); empty for most

    @abstractmethod
    def begin(self, prompt: Sequence[int], hidden: Tensor | None, context: Context) -> None:
        """Forget everything; a new sequence starts with `prompt`.

        `hidden` [cached, taps, hidden]: states of the prompt's first tokens, as far as the prefix cache has them. The
        states of the others come with the first `observe`, so a method with taps is asked for no draft in the first
        round, after a cold start and after a cache hit alike; `propose_unseen` is asked instead.
        """

    @abstractmethod
    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        """Guess what follows `tokens` (prompt and committed text), at most `room` deep. An empty draft is fine."""

    def propose_unseen(self, tokens: Sequence[int], room: int) -> Draft:
        """As `propose`, where a method with taps has not seen the states of `tokens` yet. By default it drafts nothing."""
        return Draft()

    @abstractmethod
    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """What the target said about the draft that was really scored: pruned perhaps, or another method's."""


class UnknownMethod(ValueError):
    """No such decoding method, or an option that it does not have; the message lists what there is."""
