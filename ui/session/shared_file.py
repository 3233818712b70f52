"""Conversations as files that people hand to each other: events, one a line."""

from collections.abc import Sequence
from pathlib import Path

from agent.observe.event_json import EventError, from_json, to_json
from agent.observe.events import Asked, Event, Judged, Measured, Ran

LONGEST_SHARED_MB = 32


def write_shared(events: Sequence[Event], path: Path) -> None:
    """Write events to a new file."""
    path.write_text("".join(to_json(event) + "\n" for event in events), encoding="utf-8")


def read_shared(path: Path) -> list[Event]:
    """The events of a file. Raises EventError where it is too long, holds no conversation, or a line is no event."""
    try:
        if path.stat().st_size > LONGEST_SHARED_MB << 20:
            raise EventError(f"{path.name} is longer than the {LONGEST_SHARED_MB} MiB that a conversation may have")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise EventError(f"cannot read {path.name}: it is not a text file") from error
    events = [from_json(line) for line in lines if line.strip()]
    if not any(isinstance(event, Asked) for event in events):
        raise EventError(f"{path.name} holds no conversation")
    return events


def first_turns(events: Sequence[Event], turns: int) -> list[Event]:
    """The events of the first turns, with what was later said of them."""
    kept: list[Event] = []
    turn = -1
    for event in events:
        turn += isinstance(event, Asked)
        late = isinstance(event, Judged | Ran | Measured)
        if (event.turn if isinstance(event, Judged | Ran | Measured) else turn) < turns and (late or turn < turns):
            kept.append(event)
    return kept
