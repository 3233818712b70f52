"""The table of checkpoints and decoding methods on the agent's calls, and what near-ties explain.

Checks losslessness despite rounding: a text may diverge from plain decoding's only at near-ties of the target.

In bf16, and in int8 on torch's operators, a forward's rounding depends on its number of rows, and so do the last bits of
its logits (in fp32 no text diverges; a test checks that). A divergence is harmless if the target itself scores the two
tokens almost equally.

For each checkpoint, the agent answers each question with plain decoding, and its SQL is scored. Then every text that it asked
for is decoded with every method, including plain. The methods take turns, so that drifts of the machine's speed affect all
equally. They have the same prompt, grammar and recall, and find the prompt in the prefix cache, so that times do not include
prefill, neither the target's nor a head's (the agent's own prefill time is recorded separately). A method must produce plain
decoding's text, so the accuracy is the checkpoint's; whether it does is recorded.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import zip_longest
from pathlib import Path
from time import perf_counter
from typing import Any, Self

from torch.nn import Module

from agent.assemble import ModelChoice
from agent.context import AgentOptions
from decoding.engine.draft import Draft
from decoding.engine.method import Method
from decoding.engine.rounds import measure, rounds_by_depth
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget, ForwardInput
from decoding.serving.text_decoder import Completion, TextDecoder
from eval.accuracy.predict import FirstTurn
from eval.accuracy.record import RecordLog
from eval.accuracy.run import Scorer, fingerprint
from eval.datasets.official import Example
from eval.datasets.selection import dataset_named
from eval.scoring.rules import Rules
from eval.speed.agent_calls import Call, CallRecorder, agent_calls, plain_model

TOLERANCE = 0.5
"""The widest gap, in logits, that counts as a near-tie: two steps of bf16 between logits of 32 and 64."""


def parting_gap(decoder: TextDecoder, prompt: str, plain: Completion, other: Completion, sampler: Sampler) -> float:
    """The gap between the target's scores for the first tokens in which two texts differ, in a forward without a draft.

    In logits; above temperature 0, scores include the sampler's noise and are multiplied by the temperature. 0 if the tokens
    are the same.
    """
    pairs = zip_longest(plain.tokens, other.tokens)
    at = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if at is None:
        return 0.0
    before = [*decoder.tokenizer.encode(prompt), *plain.tokens[:at]]
    rests = [each.tokens[at:] for each in (plain, other)]
    places = [[rest[0]] if rest else sorted(decoder.tokenizer.stop_ids) for rest in rests]
    return decoder.alone(lambda target: _gap(target, before, places, sampler))


def _gap(target: AnyTarget, before: list[int], places: list[list[int]], sampler: Sampler) -> float:
    """The gap between the best tokens of the two sets in `places`, each as a continuation of `before`."""
    sequence = target.open(before, Sampler())
    try:
        logits = target.score([ForwardInput(sequence, before[sequence.cached :], Draft())])[0].logits[0]
    finally:
        target.close(sequence)
    ranks = sampler.rank(logits, len(before)) * (sampler.temperature or 1.0)
    ours, theirs = (float(ranks[ids].max()) for ids in places)
    return abs(ours - theirs)


# Decoded before a method's clock runs. A head needs hidden states of the prompt, which methods before it did not leave in the
# cache, and reads them when it drafts first: in a text's second round, which leaves room for a draft.
_WARM_TOKENS = 4


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A line of the table: a method with options, and its name there."""

    name: str
    decoder: str
    options: Mapping[str, Any] = field(default_factory=dict)


PLAIN = MethodSpec("plain", "plain")
# CLLM's own decoder, windows next to blocks of the same width, and variants that show what each source of candidates adds.
DEFAULT_METHODS: Sequence[str] = (
    "jacobi:refill=false,block_size=16",
    "jacobi:block_size=16",
    "lookahead",
    "prompt_lookup",
    "jacobi_forcing",
    "jacobi_forcing:blocks=1,block_size=16",
    "jacobi_forcing:blocks=2,block_size=16",
    "jacobi_forcing:blocks=4,block_size=16",
    "jacobi_forcing:blocks=1,block_size=32",
    "jacobi_forcing:blocks=1,block_size=64",
    "jacobi_forcing:blocks=2,block_size=16,candidates=0",
    "jacobi_forcing:from_recall=false",
    "jacobi_forcing:from_recall=false,from_prompt=false",
    "jacobi_forcing:blocks=2,block_size=16,candidates=0,first_guess=prompt",
    "mask_tokens",
    "mask_tokens:copies=0",
    "adaptive",
    "adaptive:masks=0",
    "adaptive:head=auto",
    "adaptive:head=auto,copies=0",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A text decoded with a method. `tokens`: committed ones without forced ones; `text_tokens`: both, up to the text's end."""

    step: str
    method: str
    tokens: int
    text_tokens: int
    forced_tokens: int
    forwards: int
    wall_ms: float  # with the prompt in the prefix cache
    prefill_ms: float  # time of the agent's own first forward for this text
    equal: bool  # whether the text equals plain decoding's
    drafted_tokens: int  # nodes that were verified
    draft_ms: float
    target_ms: float
    verify_ms: float
    drafted_rounds: Sequence[int]  # rounds that drafted to each depth, from 1
    accepted_rounds: Sequence[int]  # of these, rounds that accepted a token at that depth
    gap: float = 0.0  # `near_ties.parting_gap`, if the text differs from plain decoding's


@dataclass(frozen=True, slots=True)
class Asked:
    """A question put to a checkpoint. `correct` is None if it could not be scored."""

    id: str  # checkpoint and question
    checkpoint: str
    question: str
    sql: str
    correct: bool | None
    runs: tuple[Measured, ...]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The record in a line. Raises KeyError for a missing field."""
        runs = tuple(Measured(**run) for run in values["runs"])
        return cls(**{item.name: values[item.name] for item in fields(cls)} | {"runs": runs})


@dataclass(frozen=True, slots=True)
class Study:
    """What a table is made from. `checkpoints`: by name; the others are compared with the first."""

    checkpoints: Mapping[str, ModelChoice]
    methods: Sequence[MethodSpec]
    dataset: str
    agent: AgentOptions = field(default_factory=AgentOptions)
    steps: tuple[str, ...] = ()  # the steps to decode again; all if empty
    first_turn: FirstTurn = "own"
    timeout_s: float = 30.0

    @property
    def rules(self) -> Rules:
        return dataset_named(self.dataset).rules

    def settings(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Everything on which the records depend, as JSON values."""
        given = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "checkpoints"}
        given |= {"agent": asdict(self.agent), "methods": [asdict(method) for method in self.methods]}
        checkpoints = {name: asdict(choice) for name, choice in self.checkpoints.items()}
        return given | {"checkpoints": checkpoints, "questions": fingerprint(examples)}


def run_methods(
    study: Study,
    examples: Sequence[Example],
    out: Path,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> list[Asked]:
    """The records of every checkpoint and question. Writes records.jsonl and settings.json to `out`.

    Called again on the same `out`, it continues with what has no record yet. Raises ResumeError if `out` holds another
    run, and what loading and asking raise.
    """
    log = RecordLog(out, study.settings(examples), Asked)
    scorer = Scorer(study.rules, "sqlite", study.timeout_s, 0)
    try:
        for name, choice in study.checkpoints.items():
            done = {record.id for record in log.records}
            todo = [example for example in examples if example.executable and _key(name, example) not in done]
            if todo:
                _ask_all(study, name, choice, todo, log, scorer, say)
    finally:
        scorer.close()
        log.close()
    keys = [_key(name, example) for name in study.checkpoints for example in examples if example.executable]
    return log.in_order(keys)


def _ask_all(
    study: Study,
    name: str,
    choice: ModelChoice,
    examples: Sequence[Example],
    log: RecordLog[Asked],
    scorer: Scorer,
    say: Callable[[str], None],
) -> None:
    """Ask and record one checkpoint's questions. The methods take turns at going first."""
    say(f"{name}: loading the model")
    answered = agent_calls(plain_model(choice), examples, study.agent, study.timeout_s, study.first_turn)
    for number, (recorder, example, prediction, calls) in enumerate(answered, 1):
        verdict = scorer.verdict(example, prediction.sql)
        turn = number % len(study.methods)
        methods = [*study.methods[turn:], *study.methods[:turn]]
        chosen = [call for call in calls if call.step in (study.steps or (call.step,))]
        runs = tuple(run for call in chosen for run in replay(recorder, call, methods))
        correct = verdict.correct if verdict.gold_error is None else None
        log.append(Asked(_key(name, example), name, example.id, prediction.sql, correct, runs))
        say(f"{name}: {number} of {len(examples)} questions")


def replay(decoder: CallRecorder, call: Call, methods: Sequence[MethodSpec]) -> list[Measured]:
    """Decode a call with each method in turn."""
    return [_measured(decoder.inner, call, method) for method in methods]


def _measured(decoder: TextDecoder, call: Call, method: MethodSpec) -> Measured:
    recall = call.settings.recall.copy()
    settings = replace(call.settings, decoder=method.decoder, options=method.options, recall=recall)
    decoder.generate(call.prompt, replace(settings, max_new_tokens=_WARM_TOKENS, recall=recall.copy()))
    with _uncollected():
        start = perf_counter()
        again = decoder.generate(call.prompt, settings)
        wall_ms = 1e3 * (perf_counter() - start)
    equal = again.text == call.generation.text
    # A method may commit tokens past a stop string in its last forward; these do not count.
    beyond = max(len(again.tokens) - len(call.generation.tokens), 0) if equal else 0
    metrics, (drafted, accepted) = measure(again.rounds), rounds_by_depth(again.rounds)
    return Measured(
        step=call.step,
        method=method.name,
        tokens=metrics.tokens - beyond,
        text_tokens=len(again.tokens) - beyond,
        forced_tokens=metrics.forced_tokens,
        forwards=metrics.target_forwards,
        wall_ms=wall_ms,
        prefill_ms=call.generation.rounds[0].target_ms,
        equal=equal,
        drafted_tokens=metrics.drafted_tokens,
        draft_ms=metrics.draft_ms,
        target_ms=metrics.target_ms,
        verify_ms=metrics.verify_ms,
        drafted_rounds=[drafted[depth] for depth in sorted(drafted)],
        accepted_rounds=[accepted[depth] for depth in sorted(drafted)],
        gap=0.0 if equal else parting_gap(decoder, call.prompt, call.generation, again, settings.sampler),
    )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Python's collections, each of which takes as long as ten forwards, wait until the text is decoded, as in `timeit`."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def extra_parameters(method: Method) -> int:
    """Number of parameters of the heads with which a method drafts."""
    heads = [part for part in vars(method).values() if isinstance(part, Module)]
    return sum(weights.numel() for head in heads for weights in head.parameters())


def _key(checkpoint: str, example: Example) -> str:
    return f"{checkpoint}/{example.id}"
