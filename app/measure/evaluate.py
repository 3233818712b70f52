"""`sqlagent eval DATASET`, `sqlagent ablate` and `sqlagent data linking`.

`eval` and `data linking` measure accuracy and write it to files; `ablate` measures what each part of the agent adds.
`evaluate_others` measures whole conversations and other tasks.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup
from typer.main import get_command

from agent.assemble import load_model
from agent.context import AgentOptions
from app.shared import exit_codes, options, output
from app.shared.options import Asking, Decoding, fixed, spread
from app.shared.process import load_extensions
from eval.accuracy.ablation import KINDS
from eval.accuracy.harness import CASES, check_gold, measure
from eval.accuracy.predict import AgentPredict, ray_predict
from eval.accuracy.run import evaluate as run_evaluation
from eval.datasets.registry import DATASETS
from eval.datasets.selection import dataset_named, load_dataset
from tools.repair.rules import RULE_NAMES
from tools.result import Limits

AnyData = Annotated[
    Path,
    typer.Option(
        "--data",
        help="The dataset's official folder; for held_out and follow_ups the one that holds spider/ and spider_syn/; "
        "for authored training/authored.",
        exists=True,
        file_okay=False,
    ),
]


def _engine(text: str) -> str:
    if text not in ("sqlite", "duckdb") and "://" not in text:
        raise typer.BadParameter(f"{text} is none of sqlite, duckdb, or the URL of a server")
    return text


AnyEngine = Annotated[
    str,
    typer.Option(
        "--engine",
        callback=_engine,
        help="Engine that runs the SQL: sqlite, duckdb, or the URL of a PostgreSQL or MySQL server whose account may make "
        "databases. Each file is copied there once, as a database of its own.",
    ),
]
QuestionLimit = Annotated[int | None, typer.Option("--limit", min=1, help="Only the first N executable questions.")]
Sample = Annotated[
    int | None,
    typer.Option("--sample", min=1, help="Only N executable questions, drawn at random but always the same."),
]
OneDatabase = Annotated[str | None, typer.Option("--db-id", help="Only the questions on this database.")]
Wording = Annotated[
    Literal["spider", "spider_syn"], typer.Option("--questions", help="Whose wording the questions of held_out have.")
]
Part = Annotated[
    Literal["train", "choosing", "sealed"], typer.Option("--part", help="Which part of authored is asked.")
]
FirstTurn = Annotated[
    Literal["own", "gold"],
    typer.Option(
        "--first-turn", help="SQL that stands as the first turn of follow_ups: the agent's own, or the gold query."
    ),
]
WithoutRules = Annotated[
    str, typer.Option("--without-rules", hidden=True, help="Rewrite rules to switch off, separated by commas.")
]

AtOnce = Annotated[
    int,
    typer.Option(
        "--at-once",
        min=1,
        help="Questions that are asked together and share the model's forwards; faster, but single times mean little.",
    ),
]


@spread
def evaluate(
    dataset: str,
    data: AnyData,
    out: options.Out,
    engine: AnyEngine = "sqlite",
    limit: QuestionLimit = None,
    sample: Sample = None,
    db_id: OneDatabase = None,
    questions: Wording = "spider",
    part: Part = "choosing",
    first_turn: FirstTurn = "own",
    at_once: AtOnce = 1,
    ray: options.Ray = None,
    ray_workers: options.RayWorkers = None,
    decoding: Decoding = Decoding(),
    asking: Asking = Asking(),
    timeout: options.Timeout = 30.0,
    no_evidence: Annotated[bool, typer.Option("--no-evidence", help="Leave out the questions' evidence.")] = False,
    without_rules: WithoutRules = "",
    gold: Annotated[
        bool, typer.Option("--gold", help="Score the gold queries: a check of the harness itself.")
    ] = False,
) -> None:
    """Measure accuracy by a data set's own rules. The last line on stdout is the summary as JSON."""
    without = _rules(without_rules)
    with exit_codes.plain_errors():
        name = _full_name(dataset, questions, part)
        examples = load_dataset(name, data, limit=limit, sample=sample, db=db_id)
        found = dataset_named(name)
        if no_evidence:
            examples = [replace(example, evidence="") for example in examples]
        if gold:
            output.print_json(asdict(check_gold(examples, found.rules, timeout_s=timeout)))
            return
        settings = asdict(decoding) | asdict(asking) | {"no_evidence": no_evidence, "first_turn": first_turn}
        settings |= {"at_once": at_once, "rerank": asking.rerank is not False, "without_rules": without}
        make = partial(_predictor, decoding, asking, engine, timeout, first_turn, without)
        with _here(make, at_once) if ray is None else ray_predict(ray, ray_workers, make) as (predict, threads):
            summary = run_evaluation(
                examples,
                predict,
                engine,
                out,
                dataset=name,
                rules=found.rules,
                model=decoding.model,
                decoder=decoding.choice().decoder_name,
                settings=settings | {"profile": decoding.choice().profile_name},
                timeout_s=timeout,
                at_once=threads,
            )
        output.print_json(summary)


def _full_name(dataset: str, questions: str, part: str) -> str:
    """The name of a data set in the table, with the wording or the part that options choose."""
    if part != "choosing":
        return f"{dataset}/{part}"
    return dataset if questions == "spider" else f"{dataset}/{questions}"


class _Datasets(TyperGroup):
    """The commands of the group, and one for each data set of the table, including those of extensions."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in DATASETS if name.isidentifier()] + super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if not cmd_name.isidentifier() or cmd_name not in DATASETS:
            return super().get_command(ctx, cmd_name)
        command = typer.Typer(add_completion=False)
        command.command(cmd_name, help=DATASETS[cmd_name].help)(fixed(evaluate, dataset=cmd_name))
        return get_command(command)


app = typer.Typer(
    cls=_Datasets, help="Measure accuracy. The last line on stdout is the summary as JSON.", no_args_is_help=True
)


def _predictor(
    decoding: Decoding,
    asking: Asking,
    engine: str,
    timeout: float,
    first_turn: Literal["own", "gold"],
    without_rules: tuple[str, ...],
) -> "AgentPredict":
    load_extensions()  # a cluster's worker has not loaded them yet
    load, agent = partial(load_model, decoding.choice()), replace(asking.agent_options(), without_rules=without_rules)
    return AgentPredict(load, engine, agent, Limits(deadline_s=timeout), first_turn)


def _rules(text: str) -> tuple[str, ...]:
    """The rules in a comma-separated text. Raises BadParameter for an unknown one."""
    wanted = options.names(text)
    if unknown := [name for name in wanted if name not in RULE_NAMES]:
        raise typer.BadParameter(f"--without-rules: {unknown[0]} is none of {', '.join(RULE_NAMES)}")
    return wanted


@contextmanager
def _here(make: Callable[[], "AgentPredict"], at_once: int) -> Iterator[tuple["AgentPredict", int]]:
    """An agent in this process, and the number of threads that may ask it."""
    with closing(make()) as predict:
        yield predict, at_once


def linking(
    data: Annotated[Path, typer.Option("--data", help="Folder with spider/, spider_syn/ and bird/.", file_okay=False)],
    budget: Annotated[
        list[int] | None, typer.Option("--budget", min=1, help="Most columns of a prompt's schema; repeatable.")
    ] = None,
    sample: Annotated[int | None, typer.Option("--sample", min=1, help="Questions of each dataset.")] = None,
) -> None:
    """Measure which tables and columns of the gold SQL are missing from the prompts' schemas. Needs no model.

    Without --budget, it measures the agent's own and smaller ones. The last line on stdout is the table as JSON.
    """
    rows = []
    with exit_codes.plain_errors(), output.stderr.status("linking") as status:
        for name, cases in CASES.items():
            status.update(f"linking: {name}")
            known = list(cases(data, sample))
            rows += [
                asdict(measure(name, known, most)) for most in budget or (AgentOptions().schema_budget, 100, 50, 25)
            ]
    output.print_table(list(rows[0]), [list(row.values()) for row in rows])
    output.print_json(rows)


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
    from eval.accuracy.ablation import Questions, ablate, markdown, stages

    with exit_codes.plain_errors():
        examples = load_dataset(dataset, data, limit=limit, sample=sample, db=db_id)
        found = dataset_named(dataset)
        measured = list(
            ablate(
                Questions(examples, dataset, found.rules, engine),
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
    wanted = options.names(text)
    unknown = [name for name in wanted if name not in KINDS]
    if unknown or not wanted:
        raise typer.BadParameter(f"--rows: {', '.join(unknown) or 'nothing'} is none of {', '.join(KINDS)}")
    return wanted
