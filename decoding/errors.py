"""Errors about models that a user can cause; each message is one line that says what to do.

Packages that asking the embedded model does without are extras of the distribution; here is which one brings what.
"""

from collections.abc import Iterator
from contextlib import contextmanager

DISTRIBUTION = "sqlagent-local"  # on the package index, where `sqlagent` is another project
_EXTRAS = {"torch": "models", "transformers": "models", "triton": "gpu"}


class ModelError(Exception):
    """A model cannot be used."""


class ModelUnavailable(ModelError):
    """A model's files are missing, unreachable or damaged, or there is no room for them."""


class UnsupportedModel(ModelError):
    """A model's files are there, but its architecture, format or tokenizer is not one that this code reads."""


def is_want_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, for which torch and threads raise RuntimeError."""
    told = ("Cannot allocate memory", "can't allocate memory", "can't start new thread")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in told)
    )


class MissingPackage(ModelUnavailable):
    """A package is not installed that an extra would bring."""


def pip_install(extra: str) -> str:
    """The command that installs what an extra brings."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@contextmanager
def told_what_is_missing() -> Iterator[None]:
    """Raises MissingPackage where an import fails of what an extra brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise MissingPackage(
            f"this needs the package {package}; install it with: {pip_install(_EXTRAS[package])}"
        ) from error
