"""The figures of a load test."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median, quantiles


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and what it took. first_s: until its first text; pause_s: the longest time between two of its texts; both are
    None where it was not streamed.
    """

    text: str
    prompt_tokens: int
    tokens: int
    whole_s: float
    first_s: float | None = None
    pause_s: float | None = None


@dataclass(slots=True)
class Tally:
    """What came of the requests of some clients."""

    answers: list[Answer] = field(default_factory=list)
    wrong: int = 0
    refused: int = 0
    failed: int = 0

    def add(self, answer: Answer, expected: str) -> None:
        """Note an answer."""
        self.answers.append(answer)
        self.wrong += answer.text != expected


@dataclass(frozen=True, slots=True)
class Newcomers:
    """The clients with long prompts. prompt_tokens: the median. The times are those until the first token."""

    clients: int
    answered: int
    wrong: int
    refused: int
    failed: int
    prompt_tokens: float | None
    first_p50_ms: float | None
    first_p95_ms: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of the clients without the newcomers, whose own are in `newcomers`.

    `tokens_per_s` are generated tokens of all clients together; latencies are of answered requests, refusals apart.
    first: until the first token, with the wait for a seat; pause: the longest one within an answer; None where nothing was
    streamed.
    """

    clients: int
    wall_s: float
    answered: int
    wrong: int
    refused: int
    failed: int
    requests_per_s: float
    tokens_per_s: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    first_p50_ms: float | None = None
    first_p95_ms: float | None = None
    pause_p50_ms: float | None = None
    pause_p95_ms: float | None = None
    newcomers: Newcomers | None = None

    @property
    def is_good(self) -> bool:
        """Whether there were answers, to the newcomers as well, all of them were right, and no request failed."""
        parts: list[Report | Newcomers] = [self, self.newcomers] if self.newcomers else [self]
        return all(part.answered and not part.wrong and not part.failed for part in parts)


def report_of(tally: Tally, clients: int, wall_s: float, long: Tally | None = None, newcomers: int = 0) -> Report:
    """The figures of a run. long: the tally of so many newcomers."""
    answers = tally.answers
    p50, p95, p99 = _percentiles((each.whole_s for each in answers), 50, 95, 99)
    firsts = _percentiles((each.first_s for each in answers), 50, 95)
    pauses = _percentiles((each.pause_s for each in answers), 50, 95)
    return Report(
        clients=clients,
        wall_s=wall_s,
        answered=len(answers),
        wrong=tally.wrong,
        refused=tally.refused,
        failed=tally.failed,
        requests_per_s=len(answers) / wall_s,
        tokens_per_s=sum(each.tokens for each in answers) / wall_s,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        first_p50_ms=firsts[0],
        first_p95_ms=firsts[1],
        pause_p50_ms=pauses[0],
        pause_p95_ms=pauses[1],
        newcomers=_newcomers(long, newcomers) if long and newcomers else None,
    )


def _newcomers(tally: Tally, clients: int) -> Newcomers:
    answers = tally.answers
    return Newcomers(
        clients,
        len(answers),
        tally.wrong,
        tally.refused,
        tally.failed,
        median(each.prompt_tokens for each in answers) if answers else None,
        *_percentiles((each.first_s for each in answers), 50, 95),
    )


def _percentiles(times_s: Iterable[float | None], *wanted: int) -> list[float | None]:
    """In milliseconds; None where there are fewer than two times."""
    known = [each for each in times_s if each is not None]
    if len(known) < 2:
        return [None for _ in wanted]
    cuts = quantiles(known, n=100, method="inclusive")
    return [1e3 * cuts[each - 1] for each in wanted]
