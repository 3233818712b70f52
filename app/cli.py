"""The command line. Commands are in their own files; this file lists them."""

import gc
import sys
from typing import Annotated

import typer

from app.ask import ask, learn, logs, schema, sql
from app.machine import doctor, models, tune
from app.measure import (
    ablate,
    bench,
    bench_cost,
    bench_kernels,
    bench_tune,
    evaluate,
    evaluate_chats,
    evaluate_file,
    evaluate_text,
)
from app.serve import load_test, mcp, serve, ui
from app.shared import exit_codes
from app.shared.extensions import load_extensions
from app.train import data, train, train_all, train_confidence

app = typer.Typer(
    name="sqlagent",
    help="Ask a database questions in plain words. A language model on this machine writes the SQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("ask")(ask.ask)
app.command("chat")(ask.chat)
app.command("ui")(ui.ui)
app.command("learn")(learn.learn)
app.command("load")(load_test.load)
app.command("mcp")(mcp.mcp)
app.command("serve")(serve.serve)
app.command("sql")(sql.sql)
app.command("schema")(schema.schema)
app.command("logs")(logs.logs)
app.command("ablate")(ablate.ablate)
evaluate.app.command("conversation")(evaluate_chats.conversation)
evaluate.app.command("file")(evaluate_file.file)
evaluate.app.command("humaneval")(evaluate_text.humaneval)
evaluate.app.command("gsm8k")(evaluate_text.gsm8k)
evaluate.app.command("dialogues")(evaluate_chats.dialogues)
data.app.command("linking")(evaluate.linking)
train.app.command("all")(train_all.train_all)
train.app.command("confidence")(train_confidence.confidence)
bench.app.command("tune")(bench_tune.tune)
bench.app.command("cost")(bench_cost.cost)
bench.app.command("kernels")(bench_kernels.kernels)
app.add_typer(evaluate.app, name="eval")
app.add_typer(bench.app, name="bench")
app.add_typer(models.app, name="models")
app.add_typer(train.app, name="train")
app.add_typer(data.app, name="data")
app.command("tune")(tune.tune)
app.command("doctor")(doctor.doctor)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(version("sqlagent"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    extension: Annotated[
        list[str] | None,
        typer.Option(
            "--extension",
            metavar="MODULE",
            help="Import a Python module that adds methods, databases, nodes or data sets; repeatable. "
            "SQLAGENT_EXTENSIONS names several.",
        ),
    ] = None,
) -> None:
    """Options that come before every command."""
    with exit_codes.plain_errors():
        load_extensions(extension or ())


def main() -> None:
    """Entry point of the `sqlagent` script."""
    try:
        app()
    finally:
        if "duckdb" not in sys.modules:  # which reports as leaked what is not collected
            gc.disable()
            gc.freeze()  # the process ends, so nothing need be looked through for cycles
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            exit_codes.drop_output()
