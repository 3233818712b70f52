"""`sqlagent train export`: what is shipped of a trained adapter or model. `app.train.on_gpu` has it, too."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agent.calibration import forget_calibration, forget_verifier
from app.shared import exit_codes, options, output
from decoding.checkpoints.adapter import About, check_base, read_adapter, write_adapter
from training.low_rank import averaged, compressed
from training.run.base import factorised, load_base


def export(
    trained: Annotated[Path, typer.Argument(help="An adapter (ours or peft's) or a whole trained model.", exists=True)],
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
        output.print_json(export_adapter(trained, out, model, rank, fine, average))


def export_adapter(
    trained: Path, out: Path, model: str, rank: int | None, fine: int | None, average: Path | None
) -> dict[str, Any]:
    """Write it; returns where, with its rank and size. Raises ModelError."""
    base = load_base(model)
    if (trained / "config.json").exists():
        from agent.prompts.compact import PROMPT_VERSION

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
        output.report(f"deleted the confidence of another adapter in {out}; sqlagent train confidence fits it again")
    if forget_verifier(out):
        output.report(f"deleted the verifier of another adapter in {out}; sqlagent train verifier fits it again")
    return {"out": str(out), "rank": adapter.rank, "bytes": size_bytes}
