"""Exit codes. Only here does an exception become one line on stderr and an exit code."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import typer

from app.shared import output
from decoding.errors import pip_install, told_what_is_missing

OK, FAILED, USAGE, NO_ANSWER, REFUSED, DATABASE, MODEL, INCOMPLETE, UNSURE, FOUND = range(10)
INTERRUPTED = 130

MEANING = {
    OK: "answered",
    FAILED: "unexpected failure",
    USAGE: "wrong usage",
    NO_ANSWER: "no working SQL was found",
    REFUSED: "refused: only reading is allowed",
    DATABASE: "the database cannot be opened, or the query failed there",
    MODEL: "the model cannot be found or loaded",
    INCOMPLETE: "not every row was written",
    UNSURE: "the confidence is below what --at-least asks for",
    FOUND: "check warns of something, or a test failed",
}
_CODE_OF_KIND = {None: OK, "refused": REFUSED, "failure": FAILED, "model": MODEL, "usage": USAGE, "unsure": UNSURE}
_CODE_OF_KIND |= dict.fromkeys(("timeout", "memory", "interrupted", "connection"), DATABASE)


def code_of(kind: str | None) -> int:
    """The exit code for an answer's error kind (None if it was answered)."""
    return _CODE_OF_KIND.get(kind, NO_ANSWER)


def fail(message: str, code: int) -> typer.Exit:
    """Print one line, without the passwords of URLs, and return the exit to raise."""
    from tools.result import without_passwords

    print(f"sqlagent: {output.shown(without_passwords(message))}", file=sys.stderr)
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
    "app.shared.process.ExtensionError": USAGE,
    "tools.result.OpenError": DATABASE,
    "decoding.errors.ModelError": MODEL,
    "openai.OpenAIError": MODEL,  # a remote model
    "decoding.engine.method.UnknownMethod": USAGE,
    "agent.observe.step_record.UnknownNode": USAGE,
    "agent.conversation.EmptyQuestion": USAGE,
    "tools.databases.files.export.ExportError": USAGE,
    "agent.prompts.slots.UnknownProfile": USAGE,
    "agent.assemble.OptionRefused": USAGE,
    "agent.question_tests.TestsError": USAGE,
    "agent.prompts.knowledge.KnowledgeError": USAGE,
    "decoding.engine.target.PromptTooLong": USAGE,
    "agent.conversation.AnswerFailed": FAILED,
    "training.config.TrainingError": USAGE,
    "training.packs.groups.TrainingDataError": USAGE,
    "decoding.heads.kinds.NameTaken": USAGE,
    "eval.datasets.official.DatasetError": USAGE,
    "eval.accuracy.record.ResumeError": USAGE,
    "eval.speed.gpu_kernels.NoGpu": USAGE,
    "eval.speed.gpu_kernels.UnknownShape": USAGE,
    "eval.scoring.referee_pool.WorkerError": FAILED,
    "app.train.train_all.StageError": FAILED,
}


@contextmanager
def plain_errors(as_json: bool = False) -> Iterator[None]:
    """Every error ends in one line: one that a user can cause says what to do, and the traceback of all others is in the log.
    `as_json`: stdout gets an object with the error, too."""
    try:
        with told_what_is_missing():
            yield
    except KeyboardInterrupt as error:
        raise fail("stopped", INTERRUPTED) from error
    except BrokenPipeError as error:
        output.drop()
        raise typer.Exit(FAILED) from error
    except (typer.Exit, typer.Abort, typer.TyperException):
        raise
    except Exception as error:
        told, code = told_of(error)
        if as_json and code != INCOMPLETE:
            from app.shared.output import print_json

            print_json({"error": {"kind": _JSON_KINDS.get(code, "failure"), "message": told}})
        raise fail(told, code) from error


def told_of(error: Exception) -> tuple[str, int]:
    """What people are told of an error, in one line, and the exit code. What nobody expected is written to the log."""
    from decoding.errors import is_want_of_memory

    if is_want_of_memory(error):
        return f"there is not enough memory ({str(error) or 'no more is given'})", FAILED
    if said := output.trouble(error):
        output.drop()
        return said, INCOMPLETE
    names = [f"{each.__module__}.{each.__qualname__}" for each in type(error).__mro__]
    code = next((_CODES[name] for name in names if name in _CODES), None)
    if code is not None:
        return " ".join(str(error).split("\n")), code
    if isinstance(error, ModuleNotFoundError):
        return f"this needs the package {error.name}, which is not installed: pip install {error.name}", USAGE
    return _written_down(error), FAILED


def _written_down(error: Exception) -> str:
    from agent.observe.audit import in_one_line, logger
    from app.shared.databases import trail

    logger.error("a command failed", exc_info=error)
    log = trail("sqlagent")
    if log:
        log.failed("", error)
    where = "`sqlagent logs --outcome failure` says where" if log else "with a log (SQLAGENT_LOG) it is kept where"
    return f"this failed unexpectedly ({in_one_line(error)}); {where}"


_JSON_KINDS = {USAGE: "usage", DATABASE: "connection", MODEL: "model"}
