"""What a decode emits: one frozen record per sequence and target forward. Plain data, no tensors.

Every metric, the chat's figures, the benchmark and the golden tests are functions of these records.
"""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Round:
    index: int  # 0 is the round that shares its forward with the prefill
    sequence: int  # which of the requests decoded together
    batch: int  # the target's sequences that shared the forward: one for each prompt of each text
    pending: (
        int  # committed tokens fed behind the first prompt: its uncached part in round 0, else bonus and forced tokens
    )
    draft_tokens: tuple[int, ...]
    draft_parents: tuple[int, ...]
    accepted: tuple[int, ...]  # draft nodes that became text
    committed: tuple[
        int, ...
    ]  # their tokens, then the target's own (the bonus); cut at a stop token or the length limit
    forced: tuple[int, ...]  # tokens that the constraint added after them without a forward
    draft_ms: float  # with the pass of a head that several texts shared, not divided by them
    target_ms: float  # of the shared forward, not divided by the batch
    verify_ms: float
    finish: FinishReason | None = None  # set on a sequence's last round
    log_probs: tuple[float, ...] | None = None
    """Natural logarithms, at temperature 1 and without constraint, for each of `committed` that the constraint did not force;
    None unless asked for."""
    free_to_plain: int = (
        0  # of `committed`, tokens that the constraint would have added to plain decoding's text by itself
    )

    prompts: int = 1  # that this text stands behind (`decoding.engine.ensemble`)

    @property
    def share_ms(self) -> float:
        """This text's share of `target_ms`."""
        return self.target_ms * self.prompts / self.batch

    @property
    def text_tokens(self) -> tuple[int, ...]:
        """Everything this round added to the text."""
        return self.committed + self.forced

    @property
    def plain_forwards(self) -> int:
        """The forwards that plain decoding takes for the tokens that this round committed, with the same constraint."""
        return len(self.committed) - self.free_to_plain

    @property
    def log_prob(self) -> float | None:
        """The sum of `log_probs`."""
        return None if self.log_probs is None else sum(self.log_probs)
