"""Guards the page against files from strangers: an event is refused, or everything that is shown of it can be shown."""

import json
import random
from typing import Any

import pytest

from agent.observe.events import Event, EventError, Finished, from_json, to_json
from ui.session.conversation_view import ConversationView
from ui.session.run import remembered
from ui.views.charts import suggest
from ui.views.messages import messages
from ui.views.passes import decoding_html
from ui.views.savings_html import savings_html

ODD: list[Any] = [None, "", "x", -1, 0, 10**400, 1e308, True, [], ["x"], {}, {"a": 1}, [[1], [2, 3]]]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in items for place in places(each, (*path, key)))]


def damaged(line: str, random_: random.Random) -> str:
    body = json.loads(line)
    path = random_.choice(places(body)[1:])
    inside = body
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = random_.choice(ODD)
    return json.dumps(body)


def show(events: list[Event]) -> None:
    view = ConversationView(events)
    messages(view.turns)
    remembered(view.turns)
    for turn in view.turns:
        savings_html(turn, view.turns)
        answer = turn.answer or {}
        suggest(answer.get("columns", []), answer.get("rows", []))
        for step in turn.steps:
            decoding_html(step)


def test_a_count_that_no_step_can_have_is_refused(albums: list[Event]) -> None:
    """One did not fit a float, and the page could not be drawn."""
    line = next(to_json(event) for event in albums if isinstance(event, Finished))
    body = json.loads(line)
    body["record"]["plain_forwards"] = 10**400
    with pytest.raises(EventError):
        from_json(json.dumps(body))


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_event_is_refused_or_can_be_shown(albums: list[Event], seed: int) -> None:
    random_ = random.Random(seed)
    lines = [to_json(event) for event in albums]
    refused = 0
    for _ in range(40):
        place = random_.randrange(len(lines))
        line = damaged(lines[place], random_)
        try:
            event = from_json(line)
        except EventError:
            refused += 1
            continue
        try:
            show([*albums[:place], event, *albums[place + 1 :]])
        except Exception as error:
            raise AssertionError(line[:2000]) from error
    assert refused > 5
