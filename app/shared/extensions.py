"""Loads extensions: modules that register decoding methods, kinds of databases, nodes of the agent and data sets.

An installed package names its module in the entry-point group `sqlagent.extensions`; other modules are named by
`--extension` or `SQLAGENT_EXTENSIONS`. EXTENDING.md shows how to write one.
"""

import os
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points

GROUP, VARIABLE = "sqlagent.extensions", "SQLAGENT_EXTENSIONS"


class ExtensionError(Exception):
    """An extension cannot be imported; the message is one line that says which and why."""


def load_extensions(named: Iterable[str] = ()) -> None:
    """Import the extensions of installed packages, those that the environment names, and those `named`.

    Processes that are started from now on find all of these in their environment. Raises ExtensionError.
    """
    if given := dict.fromkeys([*_from_environment(), *named]):
        os.environ[VARIABLE] = ",".join(given)
    for module in extensions():
        _load(module)


def extensions() -> list[str]:
    """The modules that installed packages and the environment name."""
    installed = [each.value for each in entry_points(group=GROUP)]
    return list(dict.fromkeys([*installed, *_from_environment()]))


def _from_environment() -> list[str]:
    return os.environ.get(VARIABLE, "").replace(",", " ").split()


def _load(module: str) -> None:
    try:
        import_module(module)
    except Exception as error:  # an extension's module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        what_to_do = "install it, or put its folder into PYTHONPATH" if is_absent else "correct it, or leave it out"
        raise ExtensionError(f"the extension {module} cannot be imported ({reason}): {what_to_do}") from error
