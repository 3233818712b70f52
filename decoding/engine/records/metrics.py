"""Every figure about a decode, as a function of its `Round` records. Such figures are computed nowhere else."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from decoding.engine.records.rounds import Round


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


def commit_histogram(rounds: Iterable[Round]) -> dict[int, int]:
    """How many rounds committed 1, 2, ... tokens."""
    return dict(sorted(Counter(len(r.committed) for r in rounds).items()))


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
