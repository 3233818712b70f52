"""What the endpoint counts, for Prometheus at /metrics."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from decoding.engine.records.metrics import measure

if TYPE_CHECKING:
    from decoding.serving.text_decoder import Generation

_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_COUNTED = {
    "prompt_tokens": "Prompt tokens.",
    "cached_tokens": "Prompt tokens found in the prefix cache.",
    "completion_tokens": "Tokens written.",
    "target_forwards": "Forwards of the model, counted for each text.",
    "plain_forwards": "Forwards that plain decoding takes for the same texts.",
    "drafted_tokens": "Tokens guessed by the decoding method.",
    "accepted_tokens": "Guesses that the model accepted.",
}


class ServiceMetrics:
    """Counters and times of one service. `under_way`: how many requests hold seats or wait for them."""

    def __init__(self, under_way: Callable[[], int]) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = CollectorRegistry()
        self._counts = {
            name: Counter(f"sqlagent_{name}", said, registry=self._registry) for name, said in _COUNTED.items()
        }
        self._requests = Counter("sqlagent_requests", "Requests by HTTP status.", ["status"], registry=self._registry)
        self._first_s, self._whole_s = (
            Histogram(f"sqlagent_{name}_seconds", said, registry=self._registry, buckets=_BUCKETS_S)
            for name, said in (("first_token", "Until the first text."), ("request", "Until the last text."))
        )
        gauge = Gauge("sqlagent_requests_under_way", "Requests that decode or wait.", registry=self._registry)
        gauge.set_function(under_way)

    def answered(self, status: int) -> None:
        """Count a request."""
        self._requests.labels(str(status)).inc()

    @contextmanager
    def timed(self) -> Iterator[Callable[[], None]]:
        """Time a request; call what it yields when the first text has come."""
        start = perf_counter()
        yield lambda: self._first_s.observe(perf_counter() - start)
        self._whole_s.observe(perf_counter() - start)

    def decoded(self, done: Sequence["Generation"]) -> None:
        """Count what the texts of a request took."""
        totals = measure(r for each in done for r in each.rounds)
        self._counts["prompt_tokens"].inc(done[0].prompt_tokens)
        self._counts["cached_tokens"].inc(done[0].cached_tokens)
        self._counts["completion_tokens"].inc(sum(len(each.tokens) for each in done))
        for name in ("target_forwards", "plain_forwards", "drafted_tokens", "accepted_tokens"):
            self._counts[name].inc(getattr(totals, name))

    def exposition(self) -> tuple[bytes, str]:
        """The page that Prometheus reads, and its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self._registry), CONTENT_TYPE_LATEST
