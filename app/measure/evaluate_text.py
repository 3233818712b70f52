"""`sqlagent eval humaneval` and `eval gsm8k`: accuracy on text that is no SQL, and what each decoder needed for it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.shared import exit_codes, options, output
from app.shared.option_groups import Decoding, spread

Decoders = Annotated[
    str, typer.Option("--decoders", help="Names with commas between; the texts of the first one are judged.")
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Only so many tasks, evenly spaced over the file.")]
Continues = Annotated[
    bool,
    typer.Option("--base/--chat", help="Let the model continue the start of the text instead of answering a chat."),
]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1)]


@spread
def humaneval(
    data: Annotated[Path, typer.Option("--data", help="HumanEval.jsonl.", dir_okay=False)],
    out: options.Out,
    decoding: Decoding = Decoding(),
    decoders: Decoders = "plain,jacobi_forcing",
    limit: Limit = None,
    base: Continues = False,
    max_new_tokens: NewTokens = 384,
    seed: options.Seed = 0,
) -> None:
    """Let the model write HumanEval's functions, and run their tests: pass@1, and what each decoder needed.

    Programs run in processes without network or files. The last line on stdout is the summary as JSON.
    """
    _measured("humaneval", data, out, decoding, decoders, limit, base, max_new_tokens, seed)


@spread
def gsm8k(
    data: Annotated[Path, typer.Option("--data", help="GSM8K's test set, one problem a line.", dir_okay=False)],
    out: options.Out,
    decoding: Decoding = Decoding(),
    decoders: Decoders = "plain,jacobi_forcing",
    limit: Limit = None,
    base: Continues = False,
    max_new_tokens: NewTokens = 320,
    seed: options.Seed = 0,
) -> None:
    """Let the model solve GSM8K's problems: pass@1 by the last number, and what each decoder needed.

    The last line on stdout is the summary as JSON.
    """
    _measured("gsm8k", data, out, decoding, decoders, limit, base, max_new_tokens, seed)


def _measured(
    kind: str,
    data: Path,
    out: Path,
    decoding: Decoding,
    decoders: str,
    limit: int | None,
    continues: bool,
    max_new_tokens: int,
    seed: int,
) -> None:
    from agent.assemble import load_model
    from decoding.methods.registry import load_method
    from decoding.serving.text_decoder import Settings
    from eval.text_tasks.study import solve_all, summary, write_summary
    from eval.text_tasks.tasks import read_tasks

    with exit_codes.plain_errors(), exit_codes.own_heads_only():
        methods = [name.strip() for name in decoders.split(",")]
        for name in methods:
            load_method(name)
        tasks, choice = read_tasks(kind, data, limit), decoding.choice()
        settings = Settings(temperature=decoding.temperature, seed=seed, max_new_tokens=max_new_tokens)
        asked = {**asdict(choice), "seed": seed, "max_new_tokens": max_new_tokens, "continues": continues}
        with output.stderr.status("loading the model") as status:
            decoder = load_model(choice).decoder
            records = solve_all(decoder, tasks, methods, settings, continues, out, asked, status.update)
        found = {"task": kind, "model": decoding.model} | summary(records)
        write_summary(out, found)
    rows = [[f"{each:.2f}" if isinstance(each, float) else each for each in row.values()] for row in found["rows"]]
    output.print_table(list(found["rows"][0]), rows)
    low, high = (f"{100 * end:.1f}" for end in found["pass_at_1_ci95"] or (0.0, 1.0))
    output.stdout.print(
        f"pass@1 {100 * found['pass_at_1']:.1f} % (95 % CI {low} to {high}, n = {found['n']})", highlight=False
    )
    output.print_json(found)
