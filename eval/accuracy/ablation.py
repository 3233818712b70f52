"""Ablation: what each part of the agent is worth. The same questions are asked with one part more in every row, starting
with the bare base model.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from agent.assemble import LoadedModel, ModelChoice
from agent.graph.toolbox import AgentOptions
from eval.accuracy.run import evaluate
from eval.accuracy.summary import paired_difference
from eval.datasets.official import Example
from eval.predict.agent_predict import AgentPredict
from eval.predict.record import Record, read_records
from eval.scoring.rules import Rules
from tools.result import Limits

BARE = AgentOptions(
    max_attempts=1, samples=1, refine_empty=False, constrain=False, values=False, hints=False, repair=False, mends=()
)


@dataclass(frozen=True, slots=True)
class Stage:
    """A row's configuration: all parts of the row before, and one more."""

    name: str
    adapter: str
    options: AgentOptions


@dataclass(frozen=True, slots=True)
class Row:
    """A stage's figures. `gain`: paired difference to the row before (Agresti and Min 2005); None in the first row."""

    name: str
    n: int
    ex: float
    ex_ci95: list[float]
    gain: float | None
    gain_ci95: tuple[float, float] | None
    invalid_sql_rate: float
    mean_s: float  # per question, with whatever else was decoded at the same time


@dataclass(frozen=True, slots=True)
class Questions:
    """The questions to ask and how the answers are scored."""

    examples: Sequence[Example]
    dataset: str
    rules: Rules
    tables: Path | None
    engine: Literal["duckdb", "sqlite"]


def stages(adapter: str, default: AgentOptions, samples: int) -> list[Stage]:
    """The rows, each with one part more. The last but one is the complete default agent; the last adds `samples` votes."""
    made = [Stage("base model, plan and SQL", "none", BARE), Stage("+ fine-tuning", adapter, BARE)]
    parts: list[tuple[str, dict[str, Any]]] = [
        ("+ cell values", {"values": default.values}),
        ("+ grammar", {"constrain": default.constrain}),
        ("+ linking", {"hints": default.hints}),
        ("+ repair", {"repair": default.repair}),
        ("+ refine", {"max_attempts": default.max_attempts, "refine_empty": default.refine_empty}),
        ("+ second look", {"second_look": default.second_look}),
        (f"+ {samples} votes", {"samples": samples}),
    ]
    parts[-3:-3] = [(f"+ {mend}", {"mends": default.mends[: number + 1]}) for number, mend in enumerate(default.mends)]
    options = replace(BARE, seed=default.seed)
    for name, change in parts:
        options = replace(options, **change)
        made.append(Stage(name, adapter, options))
    return [
        stage for before, stage in zip([None, *made], made, strict=False) if before is None or differs(before, stage)
    ]


def differs(before: Stage, stage: Stage) -> bool:
    """Whether a row would measure anything new."""
    return (before.adapter, before.options) != (stage.adapter, stage.options)


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
    loaded: dict[str, LoadedModel] = {}

    def model(adapter: str) -> LoadedModel:
        if adapter not in loaded:
            loaded.clear()
            loaded[adapter] = load(replace(choice, adapter=adapter))
        return loaded[adapter]

    before: dict[str, bool] | None = None
    for number, stage in enumerate(rows):
        say(stage.name)
        folder = out / f"{number}-{stage.name.replace('+', '').replace(',', '').strip().replace(' ', '-')}"
        predict = AgentPredict(
            lambda stage=stage: model(stage.adapter),  # type: ignore[misc]
            questions.engine,
            stage.options,
            Limits(deadline_s=timeout_s),
        )
        try:
            summary = evaluate(
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
        finally:
            predict.close()
        correct = {record.id: record.correct for record in _records(folder) if record.executed}
        yield _row(stage.name, summary, correct, before)
        before = correct


def _records(folder: Path) -> list[Record]:
    return read_records(folder / "records.jsonl", Record)


def _row(name: str, summary: dict[str, Any], correct: dict[str, bool], before: dict[str, bool] | None) -> Row:
    gain = (
        paired_difference([(correct[key], before[key]) for key in correct.keys() & before.keys()]) if before else None
    )
    return Row(
        name,
        summary["executed"],
        summary["ex"],
        summary["ex_ci95"],
        gain[0] if gain else None,
        (gain[1], gain[2]) if gain else None,
        summary["invalid_sql_rate"],
        summary["mean_ms"] / 1e3,
    )


def markdown(rows: Sequence[Row]) -> str:
    """The table in Markdown, for a model card."""
    lines = [
        "| agent | n | EX | 95 % CI | gain | 95 % CI | invalid SQL | s a question |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        gain = "" if row.gain is None else f"{100 * row.gain:+.1f}"
        interval = f"{100 * row.gain_ci95[0]:+.1f} to {100 * row.gain_ci95[1]:+.1f}" if row.gain_ci95 else ""
        low, high = row.ex_ci95
        lines.append(
            f"| {row.name} | {row.n} | {100 * row.ex:.1f} % | {100 * low:.1f} to {100 * high:.1f} | {gain} | {interval} "
            f"| {100 * row.invalid_sql_rate:.1f} % | {row.mean_s:.2f} |"
        )
    return "\n".join(lines)
