"""`sqlagent data build`: builds training data for the agent's steps from the training parts of Spider, Spider-Syn and BIRD.

`sqlagent data invent` and `passages`: prompts for draft heads of any chat model, without data.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from app.shared import exit_codes, options, output
from app.shared.options import spread
from app.train.run_options import stop_on_signals
from decoding.checkpoints.catalog import resolve
from decoding.serving.load import load_text_decoder
from decoding.tokenizer import Tokenizer
from eval.datasets import authored
from training.data.build import build as build_files
from training.data.options import Options
from training.heads.responses import read_responses
from training.packs.groups import TrainingDataError, group_line
from training.packs.prompts import Inventing, prompts_to_read
from training.packs.prompts import invent as invent_prompts
from training.run.base import load_base

app = typer.Typer(help="Build training data for the model.", no_args_is_help=True)


@app.callback()
def _data() -> None:
    """Build training data for the model."""


@app.command("build")
@spread
def build(
    data: Annotated[
        Path, typer.Option("--data", help="Folder with spider/, spider_syn/, bird/, wikisql/.", file_okay=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the files; an interrupted build there goes on.")],
    chosen: Options,
    model: options.Model = "embedded",
) -> None:
    """Write OUT/train.jsonl, OUT/held_out.jsonl and OUT/manifest.json. Progress on stderr; the manifest's sums on stdout.

    Only the tokenizer of the model is used, to leave out answers that the agent would cut off.
    """
    with exit_codes.plain_errors():
        tokenizer = load_base(model).tokenizer
        manifest = build_files(data, out, chosen, lambda text: len(tokenizer.encode(text)), output.report)
        output.print_json({"out": str(out), "train": manifest["train"], "held_out": manifest["held_out_counts"]})


@app.command("check")
def check(
    folder: Annotated[
        Path, typer.Argument(help="Folder of authored data, such as training/authored.", exists=True, file_okay=False)
    ],
) -> None:
    """Build authored databases, run all SQL of their questions and dialogues, and count. Faults and progress on stderr; the
    counts on stdout as JSON; exit code 1 where there are faults.
    """
    with exit_codes.plain_errors():
        faults, counts = authored.check(folder, output.report)
        for fault in faults:
            output.report(fault)
        output.print_json(counts.summary() | {"faults": len(faults)})
        if faults:
            raise typer.Exit(exit_codes.FAILED)


@app.command("pack")
def pack(
    folders: Annotated[
        Path,
        typer.Argument(help="Folder of NAME/{build,questions.jsonl,dialogues.jsonl}.", exists=True, file_okay=False),
    ],
    file: Annotated[Path, typer.Argument(help="The file to write, such as training/authored/train-2.jsonl.xz.")],
) -> None:
    """Pack authored databases into one file of authored data. `unpack` does the reverse."""
    with exit_codes.plain_errors():
        output.print_json({"out": str(file), "databases": authored.pack(folders, file)})


@app.command("unpack")
def unpack(
    file: Annotated[Path, typer.Argument(help="A file of authored data.", exists=True, dir_okay=False)],
    folders: Annotated[Path, typer.Argument(help="The folder to write into.", file_okay=False)],
) -> None:
    """Write a file's authored databases as folders, to read or change them."""
    with exit_codes.plain_errors():
        output.print_json({"out": str(folders), "databases": authored.unpack(file, folders)})


@app.command("invent")
def invent(
    out: Annotated[Path, typer.Option("--out", help="File of prompts (JSON Lines); one that is there goes on.")],
    count: Annotated[int, typer.Option("--count", min=1, help="Prompts in all.")] = 2000,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="Of the invented messages.")] = 1.0,
    opening: Annotated[str, typer.Option("--opening", help="Words with which every message begins.")] = "",
    model: options.Model = "embedded",
    adapter: options.Adapter = "none",
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    seed: options.Seed = 0,
) -> None:
    """Let a chat model invent users' messages: prompts for `train head collect --free-text`. Progress on stderr.

    Ctrl-C or SIGTERM ends it; the same command continues from there.
    """
    with exit_codes.plain_errors(), stop_on_signals() as stopped:
        chosen: Any = adapter if adapter in ("auto", "none") else Path(adapter)
        decoder = load_text_decoder(model, dtype=dtype, device=device, adapter=chosen)
        how = Inventing(count, temperature, seed=seed, opening=opening)
        there = invent_prompts(decoder, out, how, output.report, stopped)
        output.print_json({"out": str(out), "prompts": there, "finished": there >= count})


@app.command("passages")
def passages(
    responses: Annotated[list[Path], typer.Option("--responses", help="A file of responses; repeatable.")],
    out: Annotated[Path, typer.Option("--out", help="New file of prompts (JSON Lines).")],
    count: Annotated[int, typer.Option("--count", min=1, help="Most prompts.")] = 2000,
    model: options.Model = "embedded",
    seed: options.Seed = 0,
) -> None:
    """Make prompts with something to read of a model's answers to invented messages: to sum up, to translate, to answer from.

    `train head collect --free-text` answers them. The same responses and seed give the same file.
    """
    with exit_codes.plain_errors():
        answered = ((each.prompt, each.answers[0]) for each in read_responses(responses)[1])
        groups = list(prompts_to_read(Tokenizer(resolve(model)), answered, count, seed))
        text = "".join(map(group_line, groups))
        if out.exists() and out.read_text(encoding="utf-8") != text:
            raise TrainingDataError(f"{out} is there already and holds other prompts: name another file with --out")
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
        output.print_json({"out": str(out), "prompts": len(groups)})
