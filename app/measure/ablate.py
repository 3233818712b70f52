"""`sqlagent ablate DATASET`: measures what each part of the agent adds."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from app.measure.evaluate import AnyData, AtOnce, OneDatabase, QuestionLimit, Sample
from app.shared import exit_codes, options, output
from app.shared.option_groups import Asking, Decoding, spread

Rows = Annotated[
    str,
    typer.Option(
        "--rows",
        help="Rows to measure, separated by commas. parts: from the bare base model to the default agent, one part more "
        "in each row, and all rewrite rules in one; rules: the same with a row for each rule; "
        "without: the default agent without one of its rules, compared with the default agent.",
    ),
]


@spread
def ablate(
    dataset: Annotated[str, typer.Argument(help="A data set, as `sqlagent eval --help` lists them.")],
    data: AnyData,
    out: options.Out,
    engine: Annotated[
        Literal["sqlite", "duckdb"], typer.Option("--engine", help="Engine that runs the SQL.")
    ] = "sqlite",
    limit: QuestionLimit = None,
    sample: Sample = None,
    db_id: OneDatabase = None,
    rows: Rows = "parts,without",
    at_once: AtOnce = 1,
    decoding: Decoding = Decoding(),
    timeout: options.Timeout = 30.0,
) -> None:
    """Measure what each part of the agent is worth. Every row asks the same questions and has the paired difference to another
    row. Rows share the model's replies, so they have no times. The last line on stdout is the table as JSON.
    """
    kinds = _kinds(rows)
    from agent.assemble import load_model
    from eval.accuracy.ablation import Questions, ablate, markdown
    from eval.accuracy.ablation_rows import stages
    from eval.datasets.registry import dataset_named, load_dataset

    with exit_codes.plain_errors():
        examples = load_dataset(dataset, data, limit=limit, sample=sample, db=db_id)
        found = dataset_named(dataset)
        measured = list(
            ablate(
                Questions(examples, dataset, found.rules, found.tables_file(data), engine),
                decoding.choice(),
                load_model,
                stages(decoding.adapter, Asking().agent_options(), kinds),
                out,
                timeout_s=timeout,
                at_once=at_once,
                say=lambda text: output.stderr.print(text, style="dim"),
            )
        )
        table = markdown(measured)
        (Path(out) / "table.md").write_text(table + "\n", encoding="utf-8")
    print(table)
    output.print_json([asdict(row) for row in measured])


def _kinds(text: str) -> tuple[str, ...]:
    """The kinds of rows in a comma-separated text. Raises BadParameter for an unknown one."""
    from eval.accuracy.ablation_rows import KINDS

    wanted = options.names(text)
    unknown = [name for name in wanted if name not in KINDS]
    if unknown or not wanted:
        raise typer.BadParameter(f"--rows: {', '.join(unknown) or 'nothing'} is none of {', '.join(KINDS)}")
    return wanted
