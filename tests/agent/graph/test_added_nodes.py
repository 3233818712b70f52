"""Nodes that are added to the graph: where they stand, what they may say about the way, and that they are seen."""

from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.types import Command

from agent.candidates import Tools, recorded
from agent.observe.events import Finished, Started
from agent.observe.step_record import NODES, Node, UnknownNode, register_node, tool_step
from agent.state import State
from tests.agent.conftest import Talk

COUNT = "SELECT COUNT(*) FROM singer"


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    before = dict(NODES)
    yield
    NODES.clear()
    NODES.update(before)


def nothing(state: State, runtime: Tools) -> dict[str, Any]:
    return {}


def to_the_end(state: State, runtime: Tools) -> Command[Any]:
    return Command(update={"sql": ""}, goto="answer")


def with_a_detail(state: State, runtime: Tools) -> dict[str, Any]:
    return recorded(state, runtime, tool_step("told", 1.0, "a detail"))


def add(name: str, before: str, run: str = "nothing") -> None:
    register_node(name, Node(f"{__name__}:{run}", name.title(), before=before))


def steps(talk: Talk, *lines: str) -> list[str]:
    return [step["name"] for step in talk(*lines).ask("How many singers are there?").steps]


def test_added_nodes_stand_where_they_say_in_the_order_of_registration(talk: Talk) -> None:
    for name, before in (("one", "plan"), ("two", "plan"), ("first", "relate"), ("late", "answer"), ("mid", "check")):
        add(name, before)
    assert steps(talk, "plan", COUNT) == [
        "first", "link", "one", "two", "plan", "generate", "mid", "check", "execute", "late", "answer",
    ]  # fmt: skip


def test_a_node_may_name_another_way_which_leads_through_added_nodes_too(talk: Talk) -> None:
    add("stop", "plan", "to_the_end")
    add("late", "answer")
    assert steps(talk) == ["link", "stop", "late", "answer"]


def test_each_way_to_a_node_leads_through_the_one_before_it(talk: Talk) -> None:
    """SQL that does not run comes to `check` a second time, from `refine`."""
    add("mid", "check")
    names = steps(talk, "plan", "SELECT nothing FROM nowhere", COUNT)
    assert names.count("mid") == names.count("check") == 2 and names.count("refine") == 1


def test_a_node_is_seen_once_whether_or_not_it_records_itself(talk: Talk) -> None:
    add("told", "plan", "with_a_detail")
    add("silent", "plan")
    events = list(talk("plan", COUNT).events("How many singers are there?"))
    for name, detail in (("told", "a detail"), ("silent", "")):
        assert events.count(Started(name)) == 1
        records = [event.record for event in events if isinstance(event, Finished) and event.record["name"] == name]
        assert [record["detail"] for record in records] == [detail]


@pytest.mark.parametrize(
    ("name", "before", "says"),
    [
        ("plan", "answer", "cannot be called 'plan'"),
        ("two words", "answer", "cannot be called"),
        ("new", "nowhere", "choose one of: relate"),
        ("new", "", "choose one of: relate"),
        ("new", "added", "choose one of: relate"),
    ],
)
def test_what_cannot_stand_in_the_graph_is_told(name: str, before: str, says: str) -> None:
    add("added", "plan")
    with pytest.raises(ValueError, match=says):
        add(name, before)


def test_a_node_that_cannot_be_imported_is_told(talk: Talk) -> None:
    add("gone", "plan", "no_such_function")
    with pytest.raises(UnknownNode, match="the node gone cannot be imported"):
        talk()


def test_every_node_of_the_project_has_a_title_and_stands_by_itself() -> None:
    assert all(node.title and not node.before for node in NODES.values())
