"""`sqlagent ablate DATASET`: measures what each part of the agent adds."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from app.measure.evaluate import AnyData, AtOnce, OneDatabase, QuestionLimit, Sample
from app.shared import exit_codes, options, output
from app.shared.option_groups import Asking, Decoding, spread


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
    votes: Annotated[int, typer.Option("--votes", min=1, max=64, help="Candidates of the row with votes.")] = 4,
    at_once: AtOnce = 1,
    decoding: Decoding = Decoding(),
    timeout: options.Timeout = 30.0,
) -> None:
    """Measure the agent part by part, from the bare base model to the default agent and votes. Each part is a row, on the same
    questions, with the paired difference to the row before. The last line on stdout is the table as JSON.
    """
    from agent.assemble import load_model
    from eval.accuracy.ablation import Questions, ablate, markdown, stages
    from eval.datasets.registry import dataset_named, load_dataset

    with exit_codes.plain_errors():
        examples = load_dataset(dataset, data, limit=limit, sample=sample, db=db_id)
        found = dataset_named(dataset)
        questions = Questions(examples, dataset, found.rules, found.tables_file(data), engine)
        rows = stages(decoding.adapter, Asking().agent_options(), votes)
        measured = list(
            ablate(
                questions,
                decoding.choice(),
                load_model,
                rows,
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
