"""The standard streams of this process: those that were closed before it began, and signs that stdout's encoding lacks."""

import os
import sys
from codecs import lookup
from contextlib import suppress
from errno import EBADF, EDQUOT, EFBIG, EIO, ENOSPC
from io import TextIOWrapper

_NO_ROOM = {EBADF, EDQUOT, EFBIG, EIO, ENOSPC}


def ready() -> None:
    """Make the streams usable. One that is closed would be None, and its number would go to the next file that is opened:
    reading then finds nothing, and writing to stdout fails. Where stdout's encoding lacks a sign, it is spelled out.
    """
    for number, name, access in ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, access)
            setattr(sys, name, os.fdopen(nothing, "w" if number else "r", encoding="utf-8"))
    if not takes_every_sign():
        _lacking("backslashreplace")


def takes_every_sign() -> bool:
    """Whether stdout's encoding is one of Unicode's."""
    return _encoding().startswith("utf")


def exact() -> None:
    """From here on stdout is for programs: a sign that its encoding lacks is an error, and not spelled out."""
    if not takes_every_sign():
        _lacking("strict")


def _lacking(errors: str) -> None:
    if isinstance(sys.stdout, TextIOWrapper):
        with suppress(OSError):
            sys.stdout.reconfigure(errors=errors)


def finish() -> str:
    """Write what is still to be written; returns what is told where not all can be, and drops it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop()
    except OSError as error:
        drop()
        return _not_all(error)
    return ""


def drop() -> None:
    """Nobody reads our output any more: what Python still flushes at its end goes nowhere, without a complaint on stderr."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def trouble(error: Exception) -> str:
    """What is told where an error is about what stdout takes; nothing where it is not."""
    if isinstance(error, UnicodeEncodeError):
        own, lacks = _encoding(), ascii(error.object[error.start : error.end])
        told = f"stdout takes only {own}, which has no {lacks}: set PYTHONIOENCODING=utf-8"
        return told if lookup(error.encoding).name == own else ""
    if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:
        return _not_all(error)  # of a file that is named, the message says which
    return ""


def _not_all(error: OSError) -> str:
    return f"not all could be written: {error.strerror or error}"


def _encoding() -> str:
    return lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name
