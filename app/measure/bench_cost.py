"""`sqlagent bench cost`: measures how decoding's cost grows with context, draft, batch and schema."""

from dataclasses import asdict, replace
from typing import Annotated

import typer

from app.measure.bench import machine
from app.shared import exit_codes, options, output
from app.shared.option_groups import Decoding, spread


@spread
def cost(
    out: options.Out,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Forwards per size; the median counts.")] = 5,
    decoding: Decoding = Decoding(),
    with_torch: Annotated[
        bool, typer.Option("--with-torch", help="Time the rows on torch's operators as well, in turn with the default.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Time forwards by context, draft size, rows and batch size, and questions by schema size.

    Writes cost.json and cost.svg to `out`; the last line on stdout is everything as JSON.
    """
    with exit_codes.plain_errors():
        from agent.assemble import load_model
        from eval.speed.cost.forward_cost import measure_cost, write

        choice = decoding.choice()
        out.mkdir(parents=True, exist_ok=True)
        with output.stderr.status("loading the model") as status:
            loaded = load_model(choice)
            other = {"torch": load_model(replace(choice, target="fast")).decoder.target} if with_torch else {}
            points = measure_cost(loaded, out, repeats, status.update, other)
        write(points, out)
        if not as_json:
            shown = [
                [p.varied, p.size, f"{p.ms:.1f}", ", ".join(f"{name} {value:.4g}" for name, value in p.detail.items())]
                for p in points
            ]
            output.print_table(["varied", "size", "ms", "beside"], shown)
        output.print_json({"model": choice.model, "points": [asdict(p) for p in points]} | machine())
