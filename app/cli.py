"""The command line. Commands are in their own files, which are imported when they are run; this file lists them."""

import atexit
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from app.shared import exit_codes, output
from app.shared.process import load_extensions
from decoding.checkpoints.cache_folder import made_cache_root
from decoding.errors import MissingPackage, told_what_is_missing
from decoding.serving.processes import join, processes_wanted
from sqlagent import __version__

# Where each command is: a function, or a group, whose further commands GROUPS names.
COMMANDS = {
    "ask": "app.ask.ask:ask",
    "chat": "app.ask.ask:chat",
    "ui": "app.serve.ui:ui",
    "sql": "app.ask.inspect:sql",
    "check": "app.ask.check:check",
    "test": "app.ask.check:run_questions",
    "schema": "app.ask.inspect:schema",
    "serve": "app.serve.serve:serve",
    "mcp": "app.serve.mcp:mcp",
    "logs": "app.ask.inspect:logs",
    "learn": "app.ask.learn:learn",
    "models": "app.doctor:app",
    "doctor": "app.doctor:doctor",
    "eval": "app.measure.evaluate:app",
    "ablate": "app.measure.evaluate:ablate",
    "bench": "app.measure.bench:app",
    "data": "app.train.data:app",
    "train": "app.train.train:app",
}
# What the list of commands says, which needs none of their packages.
PANELS = {
    "Use": {
        "ask": "Answer a question about a database.",
        "chat": "Ask one question after another; a follow-up may refer to earlier ones.",
        "ui": "Chat with a database in the browser. Nothing leaves this machine.",
        "sql": "Run a SQL query, read-only.",
        "check": "Give a second opinion on SQL that somebody else wrote.",
        "test": "Ask the questions in a file and compare the answers with those it expects.",
        "schema": "Show the tables, or the columns of one table.",
        "serve": "Serve the model over HTTP as OpenAI's chat completions; with --db also questions about it.",
        "mcp": "Serve the database to other agents over MCP (Model Context Protocol).",
        "logs": "Show who asked what, which SQL ran, and how it ended.",
        "learn": "Add liked question-SQL pairs of the web chat, or descriptions of dbt and others, to a knowledge folder.",
        "models": "The models that can be used.",
        "doctor": "Show what is installed here and what will be used.",
    },
    "Laboratory": {
        "eval": "Measure accuracy.",
        "ablate": "Measure what each part of the agent is worth.",
        "bench": "Compare decoding methods: same target, same prompts, one run.",
        "data": "Build training data for the model.",
        "train": "Train the model for the agent's steps.",
    },
}
GROUPS = {
    "eval": {
        "conversation": "app.measure.evaluate_others:conversation",
        "file": "app.measure.evaluate_others:file",
        "humaneval": "app.measure.evaluate_others:humaneval",
        "gsm8k": "app.measure.evaluate_others:gsm8k",
        "dialogues": "app.measure.evaluate_others:dialogues",
        "translation": "app.measure.evaluate_others:translation",
    },
    "bench": {
        "cost": "app.measure.bench:cost",
        "gpu": "app.measure.bench:gpu",
    },
    "train": {"all": "app.train.train_all:train_all", "confidence": "app.train.train_confidence:confidence"},
    "data": {"linking": "app.measure.evaluate:linking"},
}


TRAIN_TOGETHER = {"train", "data"}  # whose processes share out data; those of other commands compute a model together


def _named(place: str) -> Any:
    module, name = place.split(":")
    return getattr(import_module(module), name)


@cache
def _command(name: str) -> Any:
    """The command as typer makes it. Raises KeyError."""
    found, parent = _named(COMMANDS[name]), typer.Typer()
    if isinstance(found, typer.Typer):
        for inner, place in GROUPS.get(name, {}).items():
            found.command(inner)(_named(place))
        parent.add_typer(found, name=name)
    else:
        parent.command(name)(found)
    return typer.main.get_group(parent).commands[name]


class _Commands(Mapping[str, Any]):
    """The commands by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands()

    def format_help(self, *arguments: Any) -> None:
        self.commands = {
            name: TyperCommand(name, help=told, rich_help_panel=panel)
            for panel, commands in PANELS.items()
            for name, told in commands.items()
        }
        super().format_help(*arguments)

    def main(self, *arguments: Any, **settings: Any) -> Any:
        """Run a command. Whatever it does not expect ends in one line, too."""
        try:
            with exit_codes.plain_errors():
                return super().main(*arguments, **settings)
        except typer.Exit as ended:
            sys.exit(ended.exit_code)


app = typer.Typer(
    name="sqlagent",
    cls=_Group,
    help="Ask a database questions in plain words. A language model on this machine writes the SQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
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
        with suppress(OSError):  # the code that needs it says what is wrong with it
            made_cache_root()
        load_extensions(extension or ())
        if (
            processes_wanted() > 1
            and context.invoked_subcommand not in TRAIN_TOGETHER
            and not join(context.call_on_close)
        ):
            raise typer.Exit  # not the first of the processes, which has ended


def main() -> None:
    """Entry point of the `sqlagent` script."""
    output.ready()
    code: int | str | None = 0
    try:
        with told_what_is_missing():
            app()
    except MissingPackage as error:  # of a command's own imports
        code = exit_codes.fail(str(error), exit_codes.MODEL).exit_code
    except SystemExit as ended:
        code = ended.code
    finally:
        if told := output.finish():
            code = exit_codes.fail(told, exit_codes.INCOMPLETE).exit_code
    _leave(code)


def _leave(code: int | str | None) -> None:
    """End the process without taking the interpreter down: nothing need be looked through for cycles, and the bindings of
    DuckDB and Triton would print what they call leaks."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(1 if isinstance(code, str) else code or 0)
