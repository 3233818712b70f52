"""`sqlagent train sft|jacobi|masks|beginnings|head|freeze|export`: trains a model and prepares the result for use.

To train in several processes: `torchrun --no-python --nproc-per-node 2 sqlagent train sft ...`.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from agent.prompts.compact import PROMPT_VERSION
from app.shared import exit_codes, options, output
from app.shared.options import spread
from app.train import export, train_confidence, train_head, train_jacobi, train_masks
from app.train.run_options import PackedAs, PacksOnly, Recipe, StopToken, run
from decoding.checkpoints.identity import target_identity
from decoding.heads import kinds
from training.packs.groups import read_groups
from training.run.base import load_base

app = typer.Typer(help="Train the model for the agent's steps.", no_args_is_help=True)
app.add_typer(train_jacobi.app, name="jacobi")
app.add_typer(train_head.app, name="head")
app.add_typer(train_confidence.app, name="verifier")
app.command("masks")(train_masks.masks)
app.command("export")(export.export)
app.command("beginnings")(train_masks.beginnings)

Files = Annotated[
    list[Path], typer.Option("--data", help="Groups of pairs (JSON Lines); repeatable.", exists=True, dir_okay=False)
]
HeldOut = Annotated[
    list[Path] | None,
    typer.Option("--held-out", help="Groups to measure on; repeatable.", exists=True, dir_okay=False),
]
OutFolder = Annotated[Path, typer.Option("--out", help="Folder for adapter, checkpoint and log.")]


@app.command("sft")
@spread
def sft(
    data: Files,
    out: OutFolder,
    recipe: Recipe,
    held_out: HeldOut = None,
    model: options.Model = "embedded",
    stop_token: StopToken = None,
    packs_only: PacksOnly = False,
) -> None:
    """Train on prompts and answers. Progress on stderr; the last line on stdout is the outcome as JSON.

    Ctrl-C or SIGTERM ends the run after its step, with a checkpoint from which --resume continues.
    """
    with exit_codes.plain_errors():
        run(
            recipe,
            model,
            data,
            held_out or [],
            out,
            lambda path, base: read_groups(path),
            stop_token=stop_token,
            packed_as=PackedAs("answers") if packs_only else None,
        )


@app.command("freeze")
def freeze(
    name: Annotated[str, typer.Argument(help="Name, such as target-v1.")],
    model: options.Model = "embedded",
    adapter: options.Adapter = "auto",
    listed: Annotated[
        Path | None, typer.Option("--list", help="File that lists the frozen targets. Default: the shipped one.")
    ] = None,
) -> None:
    """Freeze a model with its adapter and prompts under a permanent name; draft heads are trained on frozen targets."""
    with exit_codes.plain_errors():
        merged = train_head.adapter_of(model, adapter)
        target = target_identity(load_base(model).sha256, merged, PROMPT_VERSION)
        kinds.freeze(name, target, listed or kinds.TARGETS)
        output.print_json({"name": name, **asdict(target)})
