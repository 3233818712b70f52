"""Finds and opens the audit log, and makes the trail of what a command's user does."""

import getpass
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.observe.audit import AuditLog, Trail


OFF = "off"


def log_path() -> Path | None:
    """`$SQLAGENT_LOG`, otherwise `log.sqlite` in the cache folder; None if the log is switched off."""
    from decoding.checkpoints.fetch.cache_folder import cache_root

    named = os.environ.get("SQLAGENT_LOG")
    if named == OFF:
        return None
    return Path(named).expanduser() if named else cache_root() / "log.sqlite"


def open_log() -> "AuditLog | None":
    """The log; None, with a line on stderr, if it cannot be opened, so that questions are answered all the same."""
    from agent.observe.audit import AuditLog

    path = log_path()
    if path is None:
        return None
    try:
        return AuditLog(path)
    except (OSError, sqlite3.Error) as error:
        print(f"sqlagent: no log is kept, for {path} cannot be written: {error}", file=sys.stderr)
        return None


def trail(way: str) -> "Trail | None":
    """A trail for what this user does from now on with the command `way`."""
    return trails(way)()


def trails(way: str) -> "Callable[[], Trail | None]":
    """A function that makes such a trail for each of several askers; the log is opened once."""
    from agent.observe.audit import Trail

    log, user = open_log(), _user()
    return lambda: Trail(log, user, way) if log else None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user id may have no name
        return f"user {os.getuid()}"
