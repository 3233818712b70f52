"""`sqlagent train jacobi` trains a model to predict several tokens ahead; `sqlagent train jacobi collect` makes its data.

sqlagent train jacobi collect --data GROUPS --adapter SFT --block-size 16 --out ROUND1
sqlagent train jacobi --data ROUND1/trajectories.jsonl --init-adapter SFT --out JF1 --epochs 1
sqlagent train jacobi collect --data GROUPS --adapter JF1/adapter --block-size 32 --out ROUND2
sqlagent train jacobi --data ROUND2/trajectories.jsonl --init-adapter JF1/adapter --out JF2 --epochs 1

Without a collection, if decoding is expensive: sqlagent train jacobi --data GROUPS --sweeps 1 --init-adapter SFT --out JF
"""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from app.shared import exit_codes, options, output
from app.shared.options import spread
from app.train.run_options import Collection, PackedAs, PacksOnly, Recipe, StopToken, run, stop_on_signals
from training.jacobi.states import Guess, JacobiConfig, jacobi_objective
from training.jacobi.trajectory import FILE, Collecting, Trajectories, read_trajectories
from training.jacobi.trajectory import collect as collect_trajectories
from training.packs.collect import RecordLog, gather
from training.packs.groups import read_groups
from training.packs.prompts import ray_decoded
from training.run.base import load_base

app = typer.Typer()

Files = Annotated[
    list[Path] | None,
    typer.Option("--data", help="Trajectories (JSON Lines); repeatable.", exists=True, dir_okay=False),
]
HeldOut = Annotated[
    list[Path] | None,
    typer.Option("--held-out", help="Trajectories to measure on; repeatable.", exists=True, dir_okay=False),
]


@app.callback(invoke_without_command=True)
@spread
def jacobi(
    ctx: typer.Context,
    how: JacobiConfig,
    recipe: Recipe,
    data: Files = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for adapter, checkpoint and log.")] = None,
    held_out: HeldOut = None,
    gold: Annotated[
        list[Path] | None,
        typer.Option(
            "--gold",
            help="Groups of pairs as `train sft` takes: their answers are learnt as well; repeatable.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    stop_token: StopToken = None,
    model: options.Model = "embedded",
    packs_only: PacksOnly = False,
) -> None:
    """Train on trajectories (Consistency LLM or Jacobi Forcing). Options, signals and output are those of `train sft`."""
    if ctx.invoked_subcommand:
        return
    if not data or out is None:
        raise typer.BadParameter("training needs --data and --out; `collect` makes the data", ctx)
    with exit_codes.plain_errors():
        run(
            recipe,
            model,
            data,
            held_out or [],
            out,
            lambda path, base: read_groups(path) if how.sweeps is not None else read_trajectories(path, base.sha256),
            stop_token=stop_token,
            objective=partial(jacobi_objective, how, gold=(g for path in gold or [] for g in read_groups(path))),
            notes={"jacobi": asdict(how) | {"gold": [path.name for path in gold or []]}},
            packed_as=PackedAs("jacobi", asdict(how)) if packs_only else None,
        )


@app.command("collect")
@spread
def collect(
    of: Collection,
    block_size: Annotated[int, typer.Option("--block-size", min=2, help="Tokens of a block.")] = 16,
    first_guess: Guess = "prompt",
    ray: options.Ray = None,
    ray_workers: options.RayWorkers = None,
) -> None:
    """Decode the prompts greedily with Jacobi's method and keep every state. Progress on stderr; counts on stdout.

    Ctrl-C or SIGTERM ends it after a batch; the same command continues from there.
    """
    with exit_codes.plain_errors(), stop_on_signals() as stopped:
        states: dict[str, Any] = {"block_size": block_size, "first_guess": first_guess}
        how, base = Collecting(**states, **of.share()), load_base(of.model)
        log = RecordLog(of.out / FILE, of.origin() | states | {"adapter": of.adapter, "base": base.sha256})
        if ray is None:
            counts = collect_trajectories(of.load()(), of.groups(), log, how, output.report, stopped)
        else:
            decoded = partial(ray_decoded, ray, ray_workers, of.load(), partial(Trajectories, how=how))
            counts = gather(base.tokenizer, of.groups(), log, how, decoded, "trajectories", output.report, stopped)
        log.close()
        output.print_json({"out": str(log.path), **counts, "finished": not counts["remaining"]})
