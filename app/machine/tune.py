"""`sqlagent tune`: finds the fastest decoding method on this machine, which is then used from now on."""

from dataclasses import asdict
from typing import Annotated

import typer

from app.shared import exit_codes, options, output
from app.shared.option_groups import Decoding, spread


@spread
def tune(
    decoding: Decoding = Decoding(),
    questions: Annotated[int, typer.Option("--questions", min=1, help="Example questions to learn from.")] = 4,
    as_json: options.Json = False,
) -> None:
    """Measure forwards and acceptance, and keep the fastest decoding method for this model on this machine.

    From then on it is used if --decoder is not given and the weights run in fp32, where the text does not depend on it.
    """
    if decoding.decoder or decoding.decoder_option:
        raise typer.BadParameter("the decoder is what is searched for", param_hint="--decoder")
    with exit_codes.plain_errors():
        from agent.assemble import tuned_key
        from app.shared.databases import open_named
        from eval.speed.replay.autotune import autotune
        from tools.example.questions import EXAMPLE_QUESTIONS

        choice = decoding.choice()
        database = open_named(None, "auto")
        try:
            with output.stderr.status("loading the model") as status:
                asked = [example.question for example in EXAMPLE_QUESTIONS[:questions]]
                found = autotune(choice, database, asked, status.update)
        finally:
            database.close()
        path = found.save(tuned_key(choice))
    if as_json:
        output.print_json({**asdict(found), "path": str(path)})
        return
    cost = found.cost
    rows = [
        [nodes, f"{cost.at(400, nodes):.1f}", f"{cost.at(400, nodes) / cost.at(400, 0):.2f}"] for nodes in cost.nodes
    ]
    output.print_table(["draft nodes", "ms at 400 tokens", "x plain step"], rows)
    flags = " ".join(f"-o {name}={value}" for name, value in found.options.items())
    output.stdout.print(f"--decoder {found.decoder} {flags}".rstrip(), style="bold", highlight=False, soft_wrap=True)
    output.stdout.print(f"{found.speedup:.2f} x plain decoding; the default has {found.speedup_of_default:.2f}")
