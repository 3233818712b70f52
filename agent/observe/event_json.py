"""Converts events to lines of a `.jsonl` file and back. All such conversions happen here; no files are opened here.

A line may come from a stranger's file, so the type of every field is checked before it becomes an event. What is read here
can be shown without further checks.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from math import isfinite
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json as parsed

from agent.observe.event_shapes import check_answer, check_error, check_round, check_rows, check_step
from agent.observe.events import Answered, Event, Finished, Measured, Ran, Wrote

_KINDS: dict[str, TypeAdapter[Any]] = {kind.__name__.lower(): TypeAdapter(kind) for kind in Event.__args__}


class EventError(ValueError):
    """A line is not an event; the message says why."""


def to_json(event: Event) -> str:
    """The event as one line."""
    body = {"event": type(event).__name__.lower()} | asdict(event)
    return json.dumps(body, ensure_ascii=False, default=str)


def from_json(line: str) -> Event:
    """The event in a line. Raises EventError."""
    try:
        body = parsed(line)
        event: Event = _KINDS[body.pop("event")].validate_python(body)
        return _checked(event)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise EventError(f"not an event of a conversation: {line[:60]!r} ({type(error).__name__})") from error


def read_events(lines: Iterator[str]) -> Iterator[Event]:
    """The events in lines that this program stored; damaged lines are left out."""
    for line in lines:
        try:
            yield from_json(line)
        except EventError:
            continue


def _checked(event: Event) -> Event:
    """The event, after checking the parts that its type leaves open. Raises ValueError."""
    match event:
        case Finished():
            return replace(event, record=check_step(event.record))
        case Answered():
            return replace(event, answer=check_answer(event.answer))
        case Measured() if not isfinite(event.plain_ms):
            raise ValueError("a time that is no number")
        case Ran():
            check_rows(event.columns, event.rows)
            return replace(event, error=event.error and check_error(event.error))
        case Wrote():
            for each in event.rounds:
                check_round(each)
    return event
