"""`sqlagent bench tune`: finds the fastest options of one method by timing them on the agent's calls."""

import json
from typing import Annotated, Any

import typer

from app.measure.bench import Questions, machine
from app.shared import exit_codes, options, output
from app.shared.option_groups import Asking, Decoding, spread


@spread
def tune(
    asked: Questions,
    out: options.Out,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="OPTION=VALUE,VALUE,...",
            help="Option to vary; repeatable. Default: all that affect speed.",
        ),
    ] = None,
    sweeps: Annotated[int, typer.Option("--sweeps", min=1, help="Most sweeps over the options.")] = 2,
    decoding: Decoding = Decoding(),
    asking: Asking = Asking(),
    as_json: options.Json = False,
) -> None:
    """Find the fastest options of a decoding method on this machine, on the agent's own calls. Default: jacobi_forcing.

    An interrupted search in --out is continued. The last line on stdout is the summary as JSON.
    """
    with exit_codes.plain_errors(), exit_codes.own_heads_only():
        from eval.speed.replay.tune_options import SPACE, Tuning
        from eval.speed.replay.tune_options import tune as search

        decoder = decoding.decoder or "jacobi_forcing"
        space = _space(decoder, vary) or SPACE.get(decoder, {})
        if not space:
            known = ", ".join(SPACE)
            raise typer.BadParameter(
                f"--vary names no option of {decoder}; without it, these vary: {known}", param_hint="--vary"
            )
        if asking.samples > 1:
            raise typer.BadParameter("options are tuned on single samples", param_hint="--samples")
        tuning = Tuning(decoder, space, decoding.choice(), asking.agent_options(second_look=False), sweeps)
        with output.stderr.status("") as status:
            summary = search(tuning, asked.load(), out, status.update) | machine()
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        if not as_json:
            shown = [[t["trial"], t["options"], t["forwards"], f"{t['tokens_per_s']:.1f}"] for t in summary["trials"]]
            output.print_table(["trial", "options", "forwards", "tok/s"], shown)
            flags = " ".join(f"-o {name}={value}" for name, value in summary["best"].items())
            output.stdout.print(f"--decoder {decoder} {flags}", style="bold", highlight=False, soft_wrap=True)
        output.print_json(summary)


def _space(decoder: str, vary: list[str] | None) -> dict[str, list[Any]]:
    """Values by option from "option=value,value". Raises UnknownMethod."""
    from decoding.methods.registry import load_method, option_value

    space: dict[str, list[Any]] = {}
    for text in vary or []:
        name, values = options.named(text, "--vary")
        space[name] = [option_value(value.strip()) for value in values.split(",") if value]
        for value in space[name]:
            load_method(decoder, **{name: value})
    return space
