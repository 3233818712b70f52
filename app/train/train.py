"""`sqlagent train sft|jacobi|masks|beginnings|head|freeze|export`: trains a model, and prepares the result for shipping.

To train in several processes: `torchrun --no-python --nproc-per-node 2 sqlagent train sft ...`.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from agent.calibration import forget_calibration, forget_verifier
from agent.prompts.compact import PROMPT_VERSION
from app.shared import exit_codes, options, output
from app.shared.options import spread
from app.train import train_confidence, train_head, train_jacobi, train_masks
from app.train.run_options import Recipe, StopToken, run
from decoding.checkpoints.adapter import About, check_base, read_adapter, write_adapter
from decoding.checkpoints.identity import target_identity
from decoding.heads import kinds
from training.low_rank import averaged, compressed
from training.packs.groups import read_groups
from training.run.base import factorised, load_base

app = typer.Typer(help="Train the model for the agent's steps.", no_args_is_help=True)
app.add_typer(train_jacobi.app, name="jacobi")
app.add_typer(train_head.app, name="head")
app.add_typer(train_confidence.app, name="verifier")
app.command("masks")(train_masks.masks)
app.command("beginnings")(train_masks.beginnings)

Files = Annotated[
    list[Path], typer.Option("--data", help="Groups of pairs (JSON Lines); repeatable.", exists=True, dir_okay=False)
]
HeldOut = Annotated[
    list[Path] | None,
    typer.Option("--held-out", help="Groups to measure on; repeatable.", exists=True, dir_okay=False),
]
OutFolder = Annotated[Path, typer.Option("--out", help="Folder for adapter, checkpoint and log.")]
Folder = Annotated[Path, typer.Argument(help="An adapter (ours or peft's) or a whole trained model.", exists=True)]


@app.command("sft")
@spread
def sft(
    data: Files,
    out: OutFolder,
    recipe: Recipe,
    held_out: HeldOut = None,
    model: options.Model = "embedded",
    stop_token: StopToken = None,
) -> None:
    """Train on prompts and answers. Progress on stderr; the last line on stdout is the outcome as JSON.

    Ctrl-C or SIGTERM ends the run after its step, with a checkpoint from which --resume continues.
    """
    with exit_codes.plain_errors():
        run(recipe, model, data, held_out or [], out, lambda path, base: read_groups(path), stop_token=stop_token)


@app.command("export")
def export(
    trained: Folder,
    out: Annotated[Path, typer.Option("--out", help="Folder for the int8 adapter.")],
    model: options.Model = "embedded",
    rank: Annotated[
        int | None,
        typer.Option("--rank", min=1, help="Rank to write. Default: the adapter's; 32 for a whole model."),
    ] = None,
    fine: Annotated[
        int | None,
        typer.Option("--fine", min=1, help="Components in int8, the strongest; the others take 4 bits. Default: all."),
    ] = None,
    average: Annotated[
        Path | None,
        typer.Option("--average", help="Take the mean of its change and this adapter's (WiSE-FT).", exists=True),
    ] = None,
) -> None:
    """Write the adapter that is shipped, in int8 or with --fine partly in 4 bits, from a trained adapter or a whole model."""
    with exit_codes.plain_errors():
        base = load_base(model)
        if (trained / "config.json").exists():
            adapter = factorised(base, trained, rank or 32, About(base.name, base.sha256, PROMPT_VERSION))
        else:
            adapter = read_adapter(trained)
            check_base(adapter, base.sha256)
        if average is not None:
            other = read_adapter(average)
            check_base(other, base.sha256)
            adapter = averaged(adapter, other)
            rank = rank or other.rank
        if fine is not None or rank not in (None, adapter.rank):
            adapter = compressed(adapter, rank or adapter.rank, fine)
        size_bytes = write_adapter(adapter, out, fine)
        if forget_calibration(out):
            output.report(
                f"deleted the confidence of another adapter in {out}; sqlagent train confidence fits it again"
            )
        if forget_verifier(out):
            output.report(f"deleted the verifier of another adapter in {out}; sqlagent train verifier fits it again")
        output.print_json({"out": str(out), "rank": adapter.rank, "bytes": size_bytes})


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
