"""`sqlagent logs`, and where the log lies that it shows: who asked what, which SQL ran, rows, time, refused or not."""

import getpass
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from app import exits, options, output

if TYPE_CHECKING:
    from agent.audit import AuditLog, Entry, Trail, Wanted

OFF = "off"
POLL_S = 0.5


def log_path() -> Path | None:
    """`$SQLAGENT_LOG`, else `log.sqlite` in the cache folder; None when it is switched off."""
    from decoding.cache import cache_root

    named = os.environ.get("SQLAGENT_LOG")
    if named == OFF:
        return None
    return Path(named).expanduser() if named else cache_root() / "log.sqlite"


def open_log() -> "AuditLog | None":
    """The log; None, with a line on stderr, when it cannot be opened: that costs nobody an answer."""
    from agent.audit import AuditLog

    path = log_path()
    if path is None:
        return None
    try:
        return AuditLog(path)
    except (OSError, sqlite3.Error) as error:
        print(f"sqlagent: no log is kept, for {path} cannot be written: {error}", file=sys.stderr)
        return None


def trail(way: str) -> "Trail | None":
    """What this user does from here on, by the command `way`."""
    return trails(way)()


def trails(way: str) -> "Callable[[], Trail | None]":
    """The same for each of several askers; the log is opened once."""
    from agent.audit import Trail

    log, user = open_log(), _user()
    return lambda: Trail(log, user, way) if log else None


def logs(
    who: Annotated[str, typer.Option("--who", help="Only what this person asked.")] = "",
    outcome: Annotated[
        str, typer.Option("--outcome", help="Only these: asked, running, ok, refused, timeout, syntax, ...")
    ] = "",
    text: Annotated[str, typer.Option("--text", help="Only with this text in question, SQL or message.")] = "",
    since: Annotated[datetime | None, typer.Option("--since", help="Only from this time on.")] = None,
    most: Annotated[int, typer.Option("--most", "-n", min=1, help="How many, the newest.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as entries come, until Ctrl+C.")] = False,
    as_json: options.Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV on stdout.")] = False,
) -> None:
    """Show who asked what, which SQL ran, and what came of it."""
    from agent.audit import AuditLog, Entry, Wanted

    path = log_path()
    if path is None or not path.exists():
        raise exits.fail("there is no log yet" if path else "the log is switched off (SQLAGENT_LOG=off)", exits.USAGE)
    wanted = Wanted(who, outcome, text, since.timestamp() if since else 0.0)
    with exits.plain_errors():
        try:
            found = _entries(AuditLog(path), wanted, most, follow)
            if as_csv:
                output.print_csv(
                    [field.name for field in fields(Entry)], (tuple(asdict(each).values()) for each in found)
                )
                return
            for entry in found:
                print(_line(entry)) if not as_json else output.print_json(asdict(entry))
        except (OSError, sqlite3.Error) as error:
            raise exits.fail(f"cannot read the log {path}: {error}", exits.FAILED) from error


def _entries(log: "AuditLog", wanted: "Wanted", most: int, follow: bool) -> "Iterator[Entry]":
    last = 0
    for entry in log.entries(wanted, most=most):
        last = entry.id
        yield entry
    while follow:
        sys.stdout.flush()
        sleep(POLL_S)
        for entry in log.entries(wanted, after=last):
            last = entry.id
            yield entry


def _line(entry: "Entry") -> str:
    """One entry as one line, whatever is in it: nobody who asks may forge another."""
    at = datetime.fromtimestamp(entry.at_s).isoformat(" ", "seconds")
    said = entry.question if entry.sql is None else entry.sql
    rows = "" if entry.row_count is None else f" {entry.row_count} rows"
    time = "" if entry.wall_ms is None else f" {entry.wall_ms:.0f} ms"
    note = f" ({entry.message})" if entry.message else ""
    shown = "".join(letter if letter.isprintable() else " " for letter in f"{said}{note}")
    return f"{at} {entry.who} {entry.way} {entry.source}: {entry.outcome}{rows}{time}: {' '.join(shown.split())}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return f"user {os.getuid()}"
