"""What a decode emits, one record per sequence and forward, and every figure that follows from it.

A `Round` is one frozen record per sequence and target forward: plain data, no tensors. Every metric, the chat's figures, the
benchmark and the golden tests are functions of these records and are computed nowhere else. So is the account of how each token
of a text came about.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from decoding.engine.draft import ROOT

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Round:
    index: int  # 0 is the round that shares its forward with the prefill
    sequence: int  # which of the requests decoded together
    batch: int  # the target's sequences that shared the forward: one for each prompt of each text
    pending: (
        int  # committed tokens fed after the first prompt: its uncached part in round 0, else bonus and forced tokens
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

    prompts: int = 1  # that this text continues (`decoding.engine.method`)

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


@dataclass(frozen=True, slots=True)
class Metrics:
    """Totals over rounds. `tokens` counts path and bonus tokens; `forced_tokens`, which cost no forward, are separate.
    `plain_forwards`: what plain decoding takes for the same text, with the same constraint.
    """

    tokens: int
    forced_tokens: int
    target_forwards: int
    plain_forwards: int
    drafted_tokens: int
    accepted_tokens: int
    draft_ms: float
    target_ms: float
    verify_ms: float

    @property
    def tokens_per_forward(self) -> float:
        """Committed tokens per target forward, bonus included, forced tokens not: 1.00 for plain decoding (tau)."""
        return self.tokens / self.target_forwards if self.target_forwards else 0.0

    @property
    def fewer_forwards(self) -> float:
        """Forwards of plain decoding per forward of this one: 1.00 for plain decoding. Tokens that a constraint forces count
        for neither, even inside a draft.
        """
        return self.plain_forwards / self.target_forwards if self.target_forwards else 0.0

    @property
    def wall_ms(self) -> float:
        return self.draft_ms + self.target_ms + self.verify_ms

    @property
    def tokens_per_s(self) -> float:
        """Text tokens, forced ones included, per second of decoding, prefill included."""
        return 1e3 * (self.tokens + self.forced_tokens) / self.wall_ms if self.wall_ms else 0.0


def measure(rounds: Iterable[Round]) -> Metrics:
    """Totals over the rounds of one decode or of several. A forward shared by a batch counts once for each sequence in
    `target_forwards`, so that tokens per forward stays the mean over sequences, and once altogether in `target_ms`.
    """
    rounds = list(rounds)
    return Metrics(
        tokens=sum(len(r.committed) for r in rounds),
        forced_tokens=sum(len(r.forced) for r in rounds),
        target_forwards=len(rounds),
        plain_forwards=sum(r.plain_forwards for r in rounds),
        drafted_tokens=sum(len(r.draft_tokens) for r in rounds),
        accepted_tokens=sum(len(r.accepted) for r in rounds),
        draft_ms=sum(r.draft_ms for r in rounds),
        target_ms=sum(r.share_ms for r in rounds),
        verify_ms=sum(r.verify_ms for r in rounds),
    )


def prefilled_tokens(rounds: Sequence[Round]) -> int:
    """Prompt tokens that one sequence's first forward had to compute; the others came from the prefix cache."""
    return rounds[0].pending if rounds else 0


def acceptance_by_depth(rounds: Iterable[Round]) -> dict[int, float]:
    """For each draft depth, the share of the rounds drafting that deep in which a token was accepted there."""
    drafted, accepted = rounds_by_depth(rounds)
    return {depth: accepted[depth] / drafted[depth] for depth in sorted(drafted)}


def rounds_by_depth(rounds: Iterable[Round]) -> tuple[Counter[int], Counter[int]]:
    """For each draft depth, how many rounds drafted that deep, and how many accepted a token there."""
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for r in rounds:
        depths: list[int] = []
        for parent in r.draft_parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        drafted.update(range(1, max(depths, default=0) + 1))
        accepted.update(range(1, len(r.accepted) + 1))
    return drafted, accepted


def text_tokens(rounds: Iterable[Round], stop: frozenset[int] = frozenset()) -> list[int]:
    """The generated tokens of one sequence, without a stop token at the end."""
    return [token for r in rounds for token in r.text_tokens if token not in stop]


Origin = Literal["accepted", "recycled", "bonus", "forced"]


@dataclass(frozen=True, slots=True)
class Placed:
    """One token of the text. "accepted": a draft's guess that the target agreed with. "recycled": the same, but an
    earlier round had guessed this token after the same token and been rejected. "bonus": the target's own, one per forward.
    "forced": the only token that the constraint allowed, so no forward was spent on it.
    """

    token: int
    origin: Origin
    round_index: int


def origins(rounds: Iterable[Round]) -> list[Placed]:
    """The tokens of one sequence in text order."""
    placed: list[Placed] = []
    rejected: set[tuple[int | None, int]] = set()
    last: int | None = None
    for r in rounds:
        pairs = _pairs(r, last)
        count = len(r.committed) - 1
        for node, token in zip(r.accepted, r.committed[:count], strict=False):
            origin: Origin = "recycled" if pairs[node] in rejected else "accepted"
            placed.append(Placed(token, origin, r.index))
        placed.append(Placed(r.committed[-1], "bonus", r.index))
        placed += (Placed(token, "forced", r.index) for token in r.forced)
        rejected |= {pair for node, pair in enumerate(pairs) if node not in r.accepted}
        last = r.text_tokens[-1]
    return placed


def _pairs(r: Round, root: int | None) -> Sequence[tuple[int | None, int]]:
    """Each draft node as (token before it, its token)."""
    before = [root if parent == ROOT else r.draft_tokens[parent] for parent in r.draft_parents]
    return list(zip(before, r.draft_tokens, strict=True))
