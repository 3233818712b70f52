"""`sqlagent bench kernels`: times the GPU's kernels and forwards against their references and the machine's limits."""

from pathlib import Path
from typing import Annotated, Any

import typer

from app.shared import exit_codes, options, output


def kernels(
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write the results here, as JSON.", dir_okay=False)
    ] = None,
    models: Annotated[
        str, typer.Option("--models", help="Model sizes to time, separated by commas; 'none' for none.")
    ] = "all",
    as_json: options.Json = False,
) -> None:
    """Time every GPU kernel against its reference and its floor, and forwards of 135M, 7B and 8B models with random weights.

    Needs a CUDA GPU with 20 GB for the 8B model. The last line on stdout is the results as JSON.
    """
    with exit_codes.plain_errors():
        from eval.speed.gpu.kernels import require_gpu
        from eval.speed.gpu.run import chosen_models, run

        require_gpu()
        with output.stderr.status("measuring the machine") as status:
            results = run(chosen_models(models), status.update)
    if not as_json:
        for part in ("kernels", "forwards"):
            _print_table(results[part])
    if out:
        import json

        out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    output.print_json(results)


def _print_table(rows: list[dict[str, Any]]) -> None:
    if rows:
        shown = [[f"{cell:.3g}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
        output.print_table(list(rows[0]), shown)
