"""`sqlagent eval spider|bird` and `sqlagent bench`: accuracy and speed, measured and written to files."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from app import exits, options, output
from app.arguments import Asking, Decoding, spread

if TYPE_CHECKING:
    from eval.agent_predict import AgentPredict

Data = Annotated[Path, typer.Option("--data", help="The dataset's official folder.", exists=True, file_okay=False)]
QuestionLimit = Annotated[int | None, typer.Option("--limit", min=1, help="Only the first N executable questions.")]
OneDatabase = Annotated[str | None, typer.Option("--db-id", help="Only the questions on this database.")]


@spread
def evaluate(
    dataset: Annotated[Literal["spider", "bird"], typer.Argument(help="Which rules and which layout.")],
    data: Data,
    out: options.Out,
    engine: Annotated[Literal["sqlite", "duckdb"], typer.Option("--engine", help="What runs the SQL.")] = "sqlite",
    limit: QuestionLimit = None,
    db_id: OneDatabase = None,
    decoding: Decoding = Decoding(),
    asking: Asking = Asking(),
    timeout: options.Timeout = 30.0,
    no_evidence: Annotated[bool, typer.Option("--no-evidence", help="Leave out BIRD's evidence.")] = False,
    gold: Annotated[
        bool, typer.Option("--gold", help="Score the gold queries: a check of the harness itself.")
    ] = False,
) -> None:
    """Measure accuracy on Spider or BIRD, by the official rules. The last line on stdout is the summary as JSON."""
    from eval.dataset import load_dataset
    from eval.gold import check_gold
    from eval.run import evaluate as run_evaluation

    with exits.plain_errors():
        examples = load_dataset(dataset, data, limit=limit, db=db_id)
        if no_evidence:
            examples = [replace(example, evidence="") for example in examples]
        if gold:
            output.print_json(asdict(check_gold(examples, dataset, timeout_s=timeout)))
            return
        tables = data / "tables.json" if dataset == "spider" else None
        settings = asdict(decoding) | asdict(asking) | {"no_evidence": no_evidence}
        with _predictor(decoding, asking, engine, timeout) as predict:
            summary = run_evaluation(
                examples,
                predict,
                engine,
                out,
                dataset=dataset,
                tables=tables,
                model=decoding.model,
                decoder=decoding.choice().decoder_name,
                settings=settings | {"profile": decoding.choice().profile_name},
                timeout_s=timeout,
            )
        output.print_json(summary)


@contextmanager
def _predictor(
    decoding: Decoding, asking: Asking, engine: Literal["sqlite", "duckdb"], timeout: float
) -> Iterator["AgentPredict"]:
    from agent.assemble import load_model
    from eval.agent_predict import AgentPredict
    from tools.result import Limits

    predict = AgentPredict(load_model(decoding.choice()), engine, asking.agent_options(), Limits(deadline_s=timeout))
    try:
        yield predict
    finally:
        predict.close()


@spread
def bench(
    data: Data,
    out: options.Out,
    decoders: Annotated[str, typer.Option("--decoders", help="Names with commas between them, or all.")] = "all",
    questions: Annotated[int, typer.Option("--questions", min=1, help="Spider dev questions to decode SQL for.")] = 30,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 96,
    decoding: Decoding = Decoding(),
    seed: options.Seed = 0,
    peers: Annotated[bool, typer.Option("--peers", help="Also transformers' generate, on the same weights.")] = False,
    as_json: options.Json = False,
) -> None:
    """Compare decoding methods: same target, same prompts, one run. The last line on stdout is the summary as JSON."""
    from decoding.method import METHODS, load_method
    from decoding.text import Settings
    from eval.bench_run import benchmark
    from eval.dataset import load_dataset

    with exits.plain_errors():
        names = list(METHODS) if decoders == "all" else [name.strip() for name in decoders.split(",")]
        names = ["plain", *(name for name in names if name != "plain")]
        for name in names:
            load_method(name)
        settings = [Settings(name, {}, decoding.temperature, seed, max_new_tokens) for name in names]
        examples = load_dataset("spider", data, limit=questions)
        with output.stderr.status("loading the model") as status:
            summary = benchmark(decoding.choice(), examples, settings, out, peers=peers, say=status.update)
    if not as_json:
        _print_rows(summary["rows"])
    output.print_json(summary)


def _print_rows(rows: list[dict[str, Any]]) -> None:
    columns = {
        "decoder": "decoder",
        "tokens": "tokens",
        "tok/fwd": "tokens_per_forward",
        "tok/s": "tokens_per_s",
        "x plain": "speedup_vs_plain",
        "equal": "equal_to_plain",
    }
    shown = [[f"{row[c]:.2f}" if isinstance(row[c], float) else row[c] for c in columns.values()] for row in rows]
    output.print_rows(list(columns), shown)
