"""`sqlagent train confidence` fits how sure answers are; `sqlagent train verifier` what chooses among several readings.

sqlagent eval held_out --no-rerank --data DIR --out RECORDS
sqlagent train confidence --records RECORDS --adapter FOLDER
sqlagent train verifier collect --data DIR --plans 10 --out POOLS          questions on the training databases
sqlagent train verifier collect --dataset held_out --data DIR --out MEASURED
sqlagent train verifier collect --dataset authored --data training/authored --sample 500 --out AUTHORED
sqlagent train verifier --pools POOLS --held-out MEASURED --held-out AUTHORED --adapter FOLDER
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from agent.assemble import ModelChoice, load_model
from agent.calibration import read_calibration
from app.shared import exit_codes, options, output
from decoding.checkpoints.identity import adapter_sha256
from decoding.checkpoints.model_config import read_json
from eval.accuracy.record import Record, read_records
from eval.datasets.official import DatasetError
from eval.datasets.selection import load_dataset
from training.fit_confidence import fit

app = typer.Typer()  # of the verifier

Records = Annotated[
    list[Path],
    typer.Option("--records", help="Folder that `sqlagent eval ... --no-rerank --out` wrote, on held-out databases; "
                 "repeatable.", exists=True, file_okay=False),
]  # fmt: skip
AdapterFolder = Annotated[
    Path,
    typer.Option("--adapter", help="The adapter with which the records were made; the file is written into it.",
                 exists=True, file_okay=False),
]  # fmt: skip
FITTED_ON = ("held_out", "authored")  # data sets of databases that training left out; of `authored` the choosing part


def confidence(adapter: AdapterFolder, records: Records) -> None:
    """Fit the confidence of first answers. The last line on stdout has the figures, cross-validated by database, as JSON."""
    with exit_codes.plain_errors():
        settings = [_settings(folder) for folder in records]
        about = {
            name: " and ".join(dict.fromkeys(str(each[name]) for each in settings))
            for name in ("dataset", "engine", "questions")
        }
        about["adapter"] = adapter.name  # a folder means nothing on other machines
        fitted = fit([each for folder in records for each in read_records(folder / "records.jsonl", Record)], about)
        output.report(f"wrote {fitted.calibration.write(adapter)}; `sqlagent train verifier` fits how --at-least bounds it")
        output.print_json(fitted.cross_validated)


def _settings(folder: Path) -> dict[str, Any]:
    """The settings of a run. Raises DatasetError where it must not be fitted on."""
    settings = read_json(folder / "settings.json")
    dataset = str(settings["dataset"])
    if not dataset.startswith(FITTED_ON) or dataset.endswith(("/train", "/sealed")):
        raise DatasetError(
            f"{folder} was measured on {dataset}; confidence is fitted on {' and '.join(FITTED_ON)} alone"
        )
    if settings.get("rerank"):
        raise DatasetError(f"{folder} has the whole agent's answers: give a folder of first answers (--no-rerank)")
    return settings


Pools = typer.Option("--pools", help="Folder that `collect` wrote; repeatable.", exists=True, file_okay=False)


@app.callback(invoke_without_command=True)
def verifier(
    ctx: typer.Context,
    pools: Annotated[list[Path] | None, Pools] = None,
    held_out: Annotated[
        list[Path] | None,
        typer.Option("--held-out", help="Pools to measure on, and to fit how sure the chosen answers are; repeatable.",
                     exists=True, file_okay=False),
    ] = None,
    adapter: Annotated[
        Path | None,
        typer.Option("--adapter", help="The adapter that wrote the candidates; the file is written into its folder.",
                     exists=True, file_okay=False),
    ] = None,
    look_below: Annotated[
        float, typer.Option("--look-below", min=0.0, max=1.0, help="Look for other readings where the confidence is lower.")
    ] = 0.7,
    margin: Annotated[
        float, typer.Option("--margin", min=0.0, help="By how much another reading's worth must be higher.")
    ] = 0.3,
) -> None:  # fmt: skip
    """Fit the verifier of readings. The last line on stdout has its figures on --held-out as JSON.

    With --held-out the confidence in the adapter's folder gets the bounds of `--at-least`.
    """
    if ctx.invoked_subcommand:
        return
    if not pools or adapter is None:
        raise typer.BadParameter("a verifier needs --pools and --adapter; `collect` makes the pools", ctx)
    with exit_codes.plain_errors():
        from training.fit_verifier import Pool, calibrated, figures, fit

        settings = [read_json(folder / "settings.json") for folder in (*pools, *(held_out or ()))]
        for name in ("adapter", "tap"):
            if len(found := {str(each[name]) for each in settings}) > 1:
                raise DatasetError(
                    f"the pools have different {name}s, {' and '.join(sorted(found))}: collect them again"
                )
        if any(look_below > each["look_below"] for each in settings):
            lowest = min(each["look_below"] for each in settings)
            raise DatasetError(
                f"the pools have other readings below {lowest:g} alone: give --look-below {lowest:g} or less"
            )
        read = [pool for folder in pools for pool in read_records(folder / "records.jsonl", Pool)]
        measured = [pool for folder in held_out or () for pool in read_records(folder / "records.jsonl", Pool)]
        shared = {pool.db_id for pool in read} & {pool.db_id for pool in measured}
        if shared:
            raise DatasetError(f"--held-out has databases of --pools ({', '.join(sorted(shared))}): choose others")
        about = {"questions": [each["questions"] for each in settings[: len(pools)]], "adapter": settings[0]["adapter"]}
        made = fit(read, settings[0]["tap"], look_below, margin, about)
        figured: dict[str, Any] = {}
        if measured:
            after = calibrated(made, measured)
            made = after.verifier
            each = {folder.name: read_records(folder / "records.jsonl", Pool) for folder in held_out or ()}
            figured = {name: figures(own, made) for name, own in each.items()}
            figured |= {"confidence": after.trusted, "answer_from": after.answer_from}
            if first := read_calibration(adapter):
                output.report(f"wrote {replace(first, answer_from=after.answer_from).write(adapter)}")
        output.report(f"wrote {made.write(adapter)}")
        output.print_json(figured)


@app.command("collect")
def collect(
    data: Annotated[
        Path,
        typer.Option("--data", help="Folder with spider/ and spider_syn/, or training/authored.", exists=True, file_okay=False),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the pools; a collection there goes on.")],
    dataset: Annotated[
        Literal["held_out", "authored"] | None,
        typer.Option("--dataset", help="Ask about databases that training leaves out, to measure on."),
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="Only N questions of --dataset, drawn as in `eval`.")
    ] = None,
    per_database: Annotated[
        int, typer.Option("--per-database", min=1, help="Most questions on each training database.")
    ] = 5,
    tap: Annotated[
        int, typer.Option("--tap", min=0, help="Layer whose states are read, of 30 in the embedded model.")
    ] = 24,
    look_below: Annotated[
        float, typer.Option("--look-below", min=0.0, max=1.0, help="Have other plans written below this confidence.")
    ] = 0.85,
    plans: Annotated[int, typer.Option("--plans", min=1, help="Other plans for each; the agent has 4.")] = 4,
    at_once: Annotated[int, typer.Option("--at-once", min=1, help="Questions that share the model's forwards.")] = 4,
    model: options.Model = "embedded",
    adapter: options.Adapter = "auto",
    seed: options.Seed = 0,
) -> None:
    """Have other plans written for questions and record which readings are right.

    The last line on stdout has their number as JSON.
    """
    with exit_codes.plain_errors():
        from training.fit_verifier import collect, training_examples

        examples = load_dataset(dataset, data, sample=sample) if dataset else training_examples(data, per_database, seed)
        loaded = load_model(ModelChoice(model=model, adapter=adapter))
        known = loaded.decoder.adapter
        settings = {"adapter": adapter_sha256(known) if known else "none", "dataset": dataset, "seed": seed}
        made = collect(examples, loaded, tap, out, settings, look_below=look_below, plans=plans, at_once=at_once)
        output.print_json({"questions": len(made), "candidates": sum(len(pool.candidates) for pool in made)})
