"""Exit codes. Only here does an exception become one line on stderr and an exit code."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec

import typer

from app.shared.terminal.terminal_text import shown
from decoding.errors import pip_install, told_what_is_missing

OK, FAILED, USAGE, NO_ANSWER, REFUSED, DATABASE, MODEL, INCOMPLETE = 0, 1, 2, 3, 4, 5, 6, 7
INTERRUPTED = 130

MEANING = {
    OK: "answered",
    FAILED: "unexpected failure",
    USAGE: "wrong usage",
    NO_ANSWER: "no working SQL was found",
    REFUSED: "refused: only reading is allowed",
    DATABASE: "the database cannot be opened, or the query failed there",
    MODEL: "the model cannot be had or loaded",
    INCOMPLETE: "not every row was written",
}
_DATABASE_KINDS = {"timeout", "memory", "interrupted", "connection"}


def code_of(kind: str | None) -> int:
    """The exit code for an answer's error kind (None if it was answered)."""
    if kind is None:
        return OK
    if kind == "refused":
        return REFUSED
    return DATABASE if kind in _DATABASE_KINDS else NO_ANSWER


def fail(message: str, code: int) -> typer.Exit:
    """Print one line and return the exit to raise."""
    print(f"sqlagent: {shown(message)}", file=sys.stderr)
    return typer.Exit(code)


def needs(module: str, extra: str) -> None:
    """Exit with one line if a package that only this command needs is not installed."""
    if find_spec(module) is None:
        raise fail(f"this needs the package {module}; install it with: {pip_install(extra)}", USAGE)


@contextmanager
def own_heads_only() -> Iterator[None]:
    """Make the warning about another target's draft head an error, because figures measured with it would mean nothing."""
    from decoding.heads.head import OtherTarget

    with warnings.catch_warnings():
        warnings.simplefilter("error", OtherTarget)
        yield


_CODES = {  # by name, so that commands need not import what they do not use
    "app.shared.extensions.ExtensionError": USAGE,
    "tools.result.OpenError": DATABASE,
    "decoding.errors.ModelError": MODEL,
    "openai.OpenAIError": MODEL,  # a remote model
    "decoding.engine.method.UnknownMethod": USAGE,
    "agent.observe.node_table.UnknownNode": USAGE,
    "agent.conversation.conversation.EmptyQuestion": USAGE,
    "tools.databases.files.export.ExportError": USAGE,
    "agent.prompts.profiles.profile.UnknownProfile": USAGE,
    "agent.assemble.OptionRefused": USAGE,
    "agent.prompts.knowledge.KnowledgeError": USAGE,
    "decoding.engine.loop.PromptTooLong": USAGE,
    "decoding.training.config.TrainingError": USAGE,
    "decoding.training.data.groups.TrainingDataError": USAGE,
    "decoding.heads.frozen_targets.NameTaken": USAGE,
    "eval.datasets.official.DatasetError": USAGE,
    "eval.predict.record.ResumeError": USAGE,
    "eval.speed.gpu.kernels.NoGpu": USAGE,
    "eval.speed.gpu.run.UnknownShape": USAGE,
    "eval.scoring.referee_pool.WorkerError": FAILED,
    "app.train.train_all.StageError": FAILED,
}


@contextmanager
def plain_errors(as_json: bool = False) -> Iterator[None]:
    """Errors that a user can cause end in one line that says what to do; all others keep their traceback. `as_json`: stdout
    gets an object with the error, too."""
    try:
        with told_what_is_missing():
            yield
    except KeyboardInterrupt as error:
        raise fail("stopped", INTERRUPTED) from error
    except BrokenPipeError as error:
        drop_output()
        raise typer.Exit(FAILED) from error
    except Exception as error:
        if _is_want_of_memory(error):
            raise fail(f"there is not enough memory ({str(error) or 'no more is given'})", FAILED) from error
        names = [f"{each.__module__}.{each.__qualname__}" for each in type(error).__mro__]
        code = next((_CODES[name] for name in names if name in _CODES), None)
        if code is None:
            raise
        if as_json:
            from app.shared.output import print_json

            print_json({"error": {"kind": _JSON_KINDS.get(code, "failure"), "message": str(error)}})
        raise fail(str(error), code) from error


def drop_output() -> None:
    """Nobody reads our output any more: what Python still flushes at its end goes nowhere, without a complaint on stderr."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_JSON_KINDS = {USAGE: "usage", DATABASE: "connection", MODEL: "model"}


def _is_want_of_memory(error: Exception) -> bool:
    """Whether memory ran out, for which torch and threads raise RuntimeError."""
    told = ("Cannot allocate memory", "can't allocate memory", "can't start new thread")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in told)
    )
