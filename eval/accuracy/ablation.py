"""Ablation: what each part of the agent is worth. The same questions are asked in every row's configuration.

A text that the model has written in one row is not decoded again in another (`eval.predict.reused_replies`). So rows have
no times, which `sqlagent eval` measures, but forwards: those of the first decoding of each text.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agent.assemble import LoadedModel, ModelChoice
from eval.accuracy.ablation_rows import Stage
from eval.accuracy.run import evaluate
from eval.accuracy.summary import mean, paired_difference
from eval.datasets.official import Example
from eval.predict.agent_predict import AgentPredict
from eval.predict.record import Predict, Prediction, Record, read_records
from eval.predict.reused_replies import ReusingDecoder
from eval.scoring.rules import Rules
from tools.result import Limits

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
    tables: Path | None
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
        tables=questions.tables,
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
