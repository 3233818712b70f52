"""Ablation: what each part of the agent is worth. The same questions are asked in every row's configuration.

A text that the model has written in one row is not decoded again in another. So rows have
no times, which `sqlagent eval` measures, but forwards: those of the first decoding of each text.
"""

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agent.assemble import LoadedModel, ModelChoice
from agent.context import AgentOptions
from decoding.engine.rounds import Round
from decoding.serving.model_queue import never
from decoding.serving.text_decoder import Completion, SamplingParams, TextDecoder, TextDelta
from eval.accuracy.predict import AgentPredict
from eval.accuracy.record import Predict, Prediction, Record, read_records
from eval.accuracy.run import evaluate
from eval.accuracy.summary import mean, paired_difference
from eval.datasets.official import Example
from eval.scoring.rules import Rules
from tools.repair.rules import RULE_NAMES
from tools.result import Limits

Reply = tuple[TextDelta | Completion, ...]


class ReusingDecoder(TextDecoder):
    """Decodes like `inner` and keeps every finished text in memory; what was decoded before is given again at once, with the
    records of its rounds. The times in these are those of the first decoding, and so are the numbers of forwards, which
    copied drafts change. Texts are told apart by all that they depend on; one under a constraint without a `key` is not kept.
    """

    def __init__(self, inner: TextDecoder) -> None:
        vars(self).update(vars(inner))
        self._kept: dict[Hashable, Reply] = {}

    def stream(
        self, prompt: str, settings: Sequence[SamplingParams], cancelled: Callable[[], bool] = never
    ) -> Iterator[TextDelta | Completion]:
        """See `TextDecoder.stream`; only the texts that are not known take part in the forwards."""
        keys = [key_of(prompt, each) for each in settings]
        missing = [number for number, key in enumerate(keys) if key not in self._kept]
        for number in set(range(len(keys))).difference(missing):
            yield from (_numbered(piece, number) for piece in self._kept[keys[number]])
        if missing:
            asked = [settings[number] for number in missing]
            yield from self._new_texts(prompt, asked, missing, [keys[number] for number in missing], cancelled)

    def _new_texts(
        self,
        prompt: str,
        settings: Sequence[SamplingParams],
        numbers: Sequence[int],
        keys: Sequence[Hashable],
        cancelled: Callable[[], bool],
    ) -> Iterator[TextDelta | Completion]:
        """The texts of these settings, whose sequences get these numbers and which are kept under these keys."""
        made: list[list[TextDelta | Completion]] = [[] for _ in settings]
        for piece in super().stream(prompt, settings, cancelled):
            first = piece.round if isinstance(piece, TextDelta) else next(iter(piece.rounds), None)
            if first is None:  # cancelled before it began
                yield piece
                continue
            made[first.sequence].append(piece)
            if isinstance(piece, Completion) and piece.finish != "cancelled" and keys[first.sequence] is not None:
                self._kept[keys[first.sequence]] = tuple(made[first.sequence])
            yield _numbered(piece, numbers[first.sequence])


def key_of(prompt: str, settings: SamplingParams) -> Hashable:
    """All that a text depends on, by value; None where the constraint does not tell what it is made of. What drafts are copied
    from is left out, since it changes the number of forwards only.
    """
    constraint = settings.constraint and getattr(settings.constraint, "key", None)
    if settings.constraint is not None and constraint is None:
        return None
    seed = settings.seed if settings.temperature > 0 else None
    method = (settings.decoder, repr(sorted(settings.options.items())))
    drawn = (settings.temperature, seed, settings.max_new_tokens, settings.stop, settings.likelihood)
    return prompt, settings.other_prompts, constraint, method, drawn


def _numbered(piece: TextDelta | Completion, sequence: int) -> TextDelta | Completion:
    def numbered(each: Round) -> Round:
        return each if each.sequence == sequence else replace(each, sequence=sequence)

    if isinstance(piece, TextDelta):
        return TextDelta(sequence, piece.text, numbered(piece.round))
    return replace(piece, rounds=tuple(map(numbered, piece.rounds)))


KINDS = ("parts", "rules", "without")
OFF: dict[str, Any] = {
    "max_attempts": 1, "orders": 1, "constrain": False, "values": False, "hints": False,
    "repair": False, "without_rules": RULE_NAMES, "rerank": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stage:
    """A row's configuration. `against`: the name of the row that it is compared with; None for the first."""

    name: str
    adapter: str
    options: AgentOptions
    against: str | None = None


def stages(adapter: str, default: AgentOptions, kinds: Collection[str]) -> list[Stage]:
    """The rows of these `KINDS`. "parts": the bare base model, then one part more in every row up to the default agent, with
    all rewrite rules in one row; "rules": the same with each rule in a row of its own. "without": the default agent without
    one of its rules, compared with the default agent, which always has a row.
    """
    with_parts = "parts" in kinds or "rules" in kinds
    made = (
        list(_parts(adapter, default, "rules" in kinds)) if with_parts else [Stage("default agent", adapter, default)]
    )
    own = made[-1].name
    changes: list[tuple[str, dict[str, Any]]] = []
    if "without" in kinds:
        changes += [(f"without {name}", {"without_rules": (name,)}) for name in RULE_NAMES]
    return made + [Stage(name, adapter, replace(default, **change), own) for name, change in changes]


def _parts(adapter: str, default: AgentOptions, each_rule: bool) -> Iterator[Stage]:
    """The rows with one part more each; a part that is off by default has none."""
    before = Stage("base model, plan and SQL", "none", replace(default, **OFF))
    yield before
    changes: list[tuple[str, dict[str, Any]]] = [
        ("+ fine-tuning", {}),
        ("+ cell values", {"values": default.values}),
        ("+ grammar", {"constrain": default.constrain}),
        ("+ linking", {"hints": default.hints}),
        ("+ schema orders", {"orders": default.orders}),
        ("+ repair", {"repair": default.repair}),
        *_rule_parts(each_rule),
        ("+ refine", {"max_attempts": default.max_attempts}),
        ("+ second look", {"rerank": default.rerank}),
    ]
    for name, change in changes:
        stage = Stage(name, adapter, replace(before.options, **change), before.name)
        if (stage.adapter, stage.options) != (before.adapter, before.options):
            yield stage
            before = stage


def _rule_parts(each_rule: bool) -> list[tuple[str, dict[str, Any]]]:
    if each_rule:
        return [(f"+ {name}", {"without_rules": RULE_NAMES[number:]}) for number, name in enumerate(RULE_NAMES, 1)]
    return [(f"+ {len(RULE_NAMES)} rules", {"without_rules": ()})]


TIMES = frozenset({"wall_ms", "plain_ms", "plain_ms_source"})
NO_TIMES = (
    "Texts that were decoded for one row are reused in others, so there are no times; forwards are those of the first "
    "decoding."
)


@dataclass(frozen=True, slots=True)
class Row:
    """A stage's figures. `gain`: paired difference to the row `against` (Agresti and Min 2005), of which it answers `won` more
    questions rightly and `lost` others wrongly; None in the first row. `forwards`: of the model, per question.
    """

    name: str
    n: int
    ex: float
    ex_ci95: list[float]
    against: str | None
    gain: float | None
    gain_ci95: tuple[float, float] | None
    won: int | None
    lost: int | None
    invalid_sql_rate: float
    forwards: float


@dataclass(frozen=True, slots=True)
class Questions:
    """The questions to ask and how the answers are scored."""

    examples: Sequence[Example]
    dataset: str
    rules: Rules
    engine: Literal["duckdb", "sqlite"]


def ablate(
    questions: Questions,
    choice: ModelChoice,
    load: Callable[[ModelChoice], LoadedModel],
    rows: Sequence[Stage],
    out: Path,
    *,
    timeout_s: float = 30.0,
    at_once: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Row]:
    """Measure row after row, each in its own folder inside `out`; questions that have a record there are not asked again."""
    model = _loading(choice, load)
    correct: dict[str, dict[str, bool]] = {}
    for stage in rows:
        say(stage.name)
        folder = out / re.sub(r"\W+", "-", stage.name).strip("-")
        agent = AgentPredict(
            partial(model, stage.adapter), questions.engine, stage.options, Limits(deadline_s=timeout_s)
        )
        with closing(agent):
            summary = _evaluated(questions, choice, stage, partial(_untimed, agent), folder, timeout_s, at_once)
        records = [record for record in read_records(folder / "records.jsonl", Record) if record.executed]
        correct[stage.name] = {record.id: record.correct for record in records}
        forwards = mean([record.target_forwards for record in records])
        yield _row(stage, summary, correct, forwards or 0.0)


def _evaluated(
    questions: Questions,
    choice: ModelChoice,
    stage: Stage,
    predict: Predict,
    folder: Path,
    timeout_s: float,
    at_once: int,
) -> dict[str, Any]:
    """The summary of a row's run."""
    return evaluate(
        questions.examples,
        predict,
        questions.engine,
        folder,
        dataset=questions.dataset,
        rules=questions.rules,
        model=choice.model,
        decoder=choice.decoder_name,
        settings={"stage": stage.name, "adapter": stage.adapter, "at_once": at_once} | asdict(stage.options),
        timeout_s=timeout_s,
        timed_runs=0,
        at_once=at_once,
    )


def _loading(choice: ModelChoice, load: Callable[[ModelChoice], LoadedModel]) -> Callable[[str], LoadedModel]:
    """The model with an adapter, which reuses its replies; only the newest is kept."""
    loaded: dict[str, LoadedModel] = {}

    def model(adapter: str) -> LoadedModel:
        if adapter not in loaded:
            loaded.clear()
            fresh = load(replace(choice, adapter=adapter))
            loaded[adapter] = replace(fresh, decoder=ReusingDecoder(fresh.decoder))
        return loaded[adapter]

    return model


def _untimed(agent: Predict, example: Example) -> Prediction:
    """The prediction without times, which would be those of looking replies up."""
    prediction = agent(example)
    steps = [{name: value for name, value in step.items() if name not in TIMES} for step in prediction.steps]
    return replace(prediction, wall_ms=0.0, steps=steps)


def _row(stage: Stage, summary: dict[str, Any], correct: Mapping[str, Mapping[str, bool]], forwards: float) -> Row:
    own, other = correct[stage.name], correct[stage.against] if stage.against else {}
    pairs = [(own[key], other[key]) for key in own.keys() & other.keys()]
    gain, *interval = paired_difference(pairs) if stage.against else (None,)
    return Row(
        name=stage.name,
        n=summary["executed"],
        ex=summary["ex"],
        ex_ci95=summary["ex_ci95"],
        against=stage.against,
        gain=gain,
        gain_ci95=(interval[0], interval[1]) if interval else None,
        won=pairs.count((True, False)) if stage.against else None,
        lost=pairs.count((False, True)) if stage.against else None,
        invalid_sql_rate=summary["invalid_sql_rate"],
        forwards=forwards,
    )


def markdown(rows: Sequence[Row]) -> str:
    """The table in Markdown. "Against" is the row that a row's gain is measured against."""
    lines = [
        "| agent | n | EX | 95 % CI | against | gain | 95 % CI | won, lost | invalid SQL | forwards a question |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = (100 * end for end in row.ex_ci95)
        figures = f"{row.n} | {100 * row.ex:.1f} % | {low:.1f} to {high:.1f} | {_gain(row)}"
        lines.append(f"| {row.name} | {figures} | {100 * row.invalid_sql_rate:.1f} % | {row.forwards:.1f} |")
    return "\n".join([*lines, "", NO_TIMES])


def _gain(row: Row) -> str:
    """The cells that compare a row with another; empty ones in the first row."""
    if row.gain is None or row.gain_ci95 is None:
        return " |  |  | "
    low, high = (100 * end for end in row.gain_ci95)
    return f"{row.against} | {100 * row.gain:+.1f} | {low:+.1f} to {high:+.1f} | {row.won}, {row.lost}"
