"""The decoding benchmark: every method on the same prompts, with the same target, in one run.

The methods take turns at each prompt, so that drifts of the machine's speed affect all equally. Times are wall time of the
decode, including prefill; prefill is the time to the first token, which for our methods includes their first draft. The
prefix cache is off.

Collects prompts for the decoding benchmark: the agent's prompts for real questions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median
from time import perf_counter
from typing import Any

from agent.assemble import LoadedModel
from agent.context import AgentOptions
from decoding.engine.method import LookupCorpus
from decoding.engine.rounds import Metrics, Round, acceptance_by_depth, commit_histogram, measure
from decoding.serving.text_decoder import SamplingParams, TextDecoder
from eval.datasets.official import Example
from eval.speed.agent_calls import agent_calls


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt to decode. `recall`: what drafts may copy from, in addition to the prompt."""

    text: str
    family: str = "sql"
    recall: LookupCorpus = field(default_factory=LookupCorpus)


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt decoded with one method."""

    prompt: int
    decoder: str  # the method's name in the table, with its options
    tokens: tuple[int, ...]  # without a stop token
    rounds: tuple[Round, ...]
    wall_ms: float
    prefill_ms: float  # until the first token

    @property
    def ms_per_token(self) -> float | None:
        """Milliseconds per token after the prefill; None if the prefill made the only token."""
        made = len(self.rounds[0].text_tokens) if self.rounds else 1
        return (self.wall_ms - self.prefill_ms) / (len(self.tokens) - made) if len(self.tokens) > made else None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the benchmark. Times are in milliseconds and summed over the prompts; medians are over the prompts."""

    decoder: str
    n: int
    tokens: int
    target_forwards: int
    tokens_per_forward: float | None  # None if the decoder does not say (peers)
    tokens_per_s: float
    decode_tokens_per_s: float | None
    speedup_vs_plain: float | None
    median_ms: float
    median_prefill_ms: float
    median_ms_per_token: float | None  # without prefill
    draft_ms: float
    target_ms: float
    verify_ms: float
    acceptance_by_depth: tuple[
        float, ...
    ]  # from depth 1: of the rounds that drafted to this depth, the share that accepted a token there
    equal_to_plain: bool | None
    first_difference: dict[str, int] | None  # {"prompt": i, "token": j} of the first text that differs from plain

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_bench(
    decoder: TextDecoder,
    prompts: Sequence[Prompt],
    methods: Mapping[str, SamplingParams],
    on_run: Callable[[Run], None] = lambda run: None,
) -> list[Run]:
    """Decode every prompt with every method, by name. `on_run` is called with each run as it ends."""
    for name, settings in methods.items():
        _timed(decoder, 0, prompts[0], name, settings)  # warm-up, not counted
    runs: list[Run] = []
    for index, prompt in enumerate(prompts):
        for name, settings in methods.items():
            runs.append(_timed(decoder, index, prompt, name, settings))
            on_run(runs[-1])
    return runs


def _timed(decoder: TextDecoder, index: int, prompt: Prompt, name: str, settings: SamplingParams) -> Run:
    settings = replace(settings, recall=prompt.recall.copy())
    start = perf_counter()
    generation = decoder.generate(prompt.text, settings)
    wall_ms = 1e3 * (perf_counter() - start)
    prefill_ms = measure(generation.rounds[:1]).wall_ms
    return Run(index, name, generation.tokens, generation.rounds, wall_ms, prefill_ms)


def rows(runs: Iterable[Run], baseline: str = "plain") -> list[Row]:
    """One row per method, in the order of first appearance."""
    by_method: dict[str, list[Run]] = {}
    for run in runs:
        by_method.setdefault(run.decoder, []).append(run)
    plain = {run.prompt: run for run in by_method.get(baseline, [])}
    return [_row(name, mine, plain) for name, mine in by_method.items()]


def _row(name: str, runs: Sequence[Run], plain: dict[int, Run]) -> Row:
    metrics = measure(r for run in runs for r in run.rounds)
    rate = _tokens_per_s(runs)
    plain_rate = _tokens_per_s([plain[run.prompt] for run in runs]) if plain else None
    per_token = [ms for run in runs if (ms := run.ms_per_token) is not None]
    differences = [d for run in runs if plain and (d := _difference(run, plain[run.prompt]))]
    return Row(
        decoder=name,
        n=len(runs),
        tokens=sum(len(run.tokens) for run in runs),
        target_forwards=metrics.target_forwards,
        tokens_per_forward=metrics.tokens_per_forward or None,
        tokens_per_s=rate,
        decode_tokens_per_s=_after_prefill(runs).tokens_per_s or None,
        speedup_vs_plain=rate / plain_rate if plain_rate else None,
        median_ms=median(run.wall_ms for run in runs),
        median_prefill_ms=median(run.prefill_ms for run in runs),
        median_ms_per_token=median(per_token) if per_token else None,
        draft_ms=metrics.draft_ms,
        target_ms=metrics.target_ms,
        verify_ms=metrics.verify_ms,
        acceptance_by_depth=tuple(acceptance_by_depth(r for run in runs for r in run.rounds).values()),
        equal_to_plain=not differences if plain else None,
        first_difference=differences[0] if differences else None,
    )


def _tokens_per_s(runs: Sequence[Run]) -> float:
    return 1e3 * sum(len(run.tokens) for run in runs) / sum(run.wall_ms for run in runs)


def _after_prefill(runs: Sequence[Run]) -> Metrics:
    return measure(r for run in runs for r in run.rounds[1:])


def _difference(run: Run, plain: Run) -> dict[str, int] | None:
    if run.tokens == plain.tokens:
        return None
    pairs = zip(run.tokens, plain.tokens, strict=False)
    shorter = min(len(run.tokens), len(plain.tokens))
    return {"prompt": run.prompt, "token": next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)}


def histogram(runs: Iterable[Run], name: str) -> dict[int, int]:
    """How often a round of this method committed 1, 2, ... tokens."""
    return commit_histogram(r for run in runs if run.decoder == name for r in run.rounds)


def mean_prompt_tokens(runs: Iterable[Run]) -> float:
    """Mean prompt length in tokens: what the first rounds fed, because the prefix cache is off."""
    return fmean(run.rounds[0].pending for run in runs if run.rounds)


_TIMEOUT_S = 30.0  # deadline of each query that the agent runs


def agent_prompts(
    loaded: LoadedModel, examples: Sequence[Example], say: Callable[[str], None] = lambda text: None
) -> Iterator[Prompt]:
    """Prompt and recall of every text that the agent asks for when it answers the executable examples on SQLite."""
    executable = [example for example in examples if example.executable]
    answered = agent_calls(loaded, executable, AgentOptions(), _TIMEOUT_S)
    for number, (_, _, _, calls) in enumerate(answered, 1):
        say(f"prompts of question {number} of {len(executable)}")
        for call in calls:
            yield Prompt(call.prompt, call.step, call.settings.recall)
