"""Guards that a run writes into its own conversation alone, whatever is shown meanwhile, and always ends with a sentence."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.context import AgentContext
from agent.nodes import answer
from agent.observe.events import Failed
from tests.ui.session.conftest import COUNT, PER_COUNTRY, SCRIPT, ask, rows
from tests.ui.workspaces import bring, scripted_workspace
from tools.result import Limits, OpenError, QueryError
from ui.session import open_data
from ui.session.conversation_view import ConversationView
from ui.session.kept import Busy
from ui.session.run import OTHER_DATA, SORRY, Question
from ui.session.services import GuestRules
from ui.session.session import Session
from ui.session.workspace import Workspace

SLOW = "Slow?"


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Workspace]:
    """Its model takes some tenths of a second for a question."""
    workspace = scripted_workspace(tmp_path, SCRIPT, pause_s=0.05)
    yield workspace
    workspace.close()


def test_a_run_answers_in_its_own_conversation_whatever_is_shown(slow: Workspace) -> None:
    """The answer of the second once stood under the question of the first, for good."""
    ada = slow.session("one", "ada")
    ask(ada, COUNT)
    first = ada.kept
    ada.begin()
    run = ada.begin_run(Question(PER_COUNTRY))
    assert first.id is not None and ada.resume(first.id) and ada.kept is first
    run.join(60)
    assert [turn.answer["rows"] for turn in first.view.turns if turn.answer] == [[[4]]]
    assert run.kept.id is not None and ada.resume(run.kept.id) and sorted(rows(ada)) == [["France", 3], ["Spain", 1]]
    for kept in (first, run.kept):
        assert ConversationView(slow.archive.events("ada", kept.id or "")).turns == kept.view.turns


def test_a_new_conversation_may_ask_while_another_is_answered(slow: Workspace) -> None:
    ada = slow.session("one", "ada")
    run = ada.begin_run(Question(PER_COUNTRY))
    ada.begin()
    ask(ada, COUNT)
    assert rows(ada) == [[4]] and len(ada.view.turns) == 1
    run.join(60)
    assert run.kept.view.turns[0].answer is not None


def test_deleting_a_conversation_ends_what_runs_in_it(slow: Workspace) -> None:
    ada = slow.session("one", "ada")
    run = ada.begin_run(Question(PER_COUNTRY))
    ada.delete(run.kept.id or "")
    assert (ada.view.turns, ada.running, slow.archive.search("ada")) == ([], 0, [])
    ada.restore()
    assert ada.view.turns[0].failure == Failed("Stopped.", stopped=True)


def test_what_runs_on_the_first_data_goes_on_when_others_are_opened(slow: Workspace, tmp_path: Path) -> None:
    """It once was stopped. Its database is closed after it."""
    (tmp_path / "shops.csv").write_text("shop_id,city\n1,Paris\n")
    ada = slow.session("one", "ada")
    run = ada.begin_run(Question(PER_COUNTRY))
    bring(ada, tmp_path / "shops.csv")
    ada.open_kept(ada.source)  # there is no way back to the first data
    assert ada.view.turns == []
    ask(ada, "How many shops?")
    assert rows(ada) == [[1]]
    run.join(60)
    assert run.kept.view.turns[0].answer and len(run.kept.view.turns[0].answer["rows"]) == 2
    _until(lambda: isinstance(run.grounds.database.execute("SELECT 1", Limits()), QueryError))


def test_a_file_that_joins_ends_what_runs_in_the_same_conversation(slow: Workspace, tmp_path: Path) -> None:
    (tmp_path / "shops.csv").write_text("shop_id,city\n1,Paris\n")
    (tmp_path / "towns.csv").write_text("town\nParis\n")
    ada = slow.session("one", "ada")
    bring(ada, tmp_path / "shops.csv")
    run = ada.begin_run(Question(SLOW))
    bring(ada, tmp_path / "towns.csv")
    assert run.kept.view.turns[0].failure == Failed(OTHER_DATA, stopped=True)
    assert ada.kept is run.kept and ada.running == 0


def test_a_run_goes_on_when_its_page_is_gone_and_is_there_on_return(tmp_path: Path) -> None:
    """Closing the tab once stopped the answer. Coming back opens the data, which takes longer than a quick answer."""
    slow = scripted_workspace(tmp_path, SCRIPT, pause_s=0.5)
    run = slow.session("one", "ada").begin_run(Question(PER_COUNTRY))
    slow.leave("one")
    back = slow.session("two", "ada")
    assert back.resume(run.kept.id or "") and back.kept is run.kept and back.kept.run is run
    with pytest.raises(Busy):
        back.begin_run(Question(COUNT))
    run.join(60)
    assert sorted(rows(back)) == [["France", 3], ["Spain", 1]]
    _until(lambda: slow.find("one", "ada") is None)


def test_two_tabs_on_one_conversation_write_one_after_the_other(slow: Workspace) -> None:
    one, two = slow.session("one", "ada"), slow.session("two", "ada")
    ask(one, COUNT)
    two.resume(one.kept.id or "")
    run = one.begin_run(Question(PER_COUNTRY))
    with pytest.raises(Busy):
        two.begin_run(Question(COUNT))
    run.join(60)
    ask(two, COUNT)
    assert [turn.question for turn in one.view.turns] == [COUNT, PER_COUNTRY, COUNT]
    assert ConversationView(slow.archive.events("ada", one.kept.id or "")).turns == one.view.turns


def test_an_owner_has_so_many_runs_at_a_time(tmp_path: Path) -> None:
    workspace = scripted_workspace(tmp_path, SCRIPT, rules=GuestRules(most_runs_each=2))
    for number in range(2):
        session = workspace.session(f"s{number}", "ada")
        session.settings = replace(session.settings, deadline_s=120)  # both are still under way at the end
        session.begin_run(Question(SLOW))
    with pytest.raises(Busy, match="other questions"):
        workspace.session("late", "ada").begin_run(Question(COUNT))
    ask(workspace.session("bo", "bo"), COUNT)
    workspace.most_runs = 2
    with pytest.raises(Busy, match="in a minute"):
        workspace.session("bo", "bo").begin_run(Question(COUNT))
    workspace.close()


def test_stopping_one_run_leaves_the_query_of_another_alone(workspace: Workspace, ada: Session) -> None:
    first = ada.begin_run(Question(SLOW))
    ada.begin()
    second = ada.begin_run(Question(SLOW))
    _until(lambda: all(run.kept.view.turns[0].steps[-1:] for run in (first, second)))
    ada.stop()
    time.sleep(0.5)
    assert first.kept.run is first and second.kept.view.turns[0].answer is None
    first.stop("Stopped.")
    for run in (first, second):
        run.join(60)
        assert run.kept.view.turns[0].failure == Failed("Stopped.", stopped=True)


def test_whatever_goes_wrong_is_a_failed_turn(ada: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """An AttributeError of a library once left the turn without an end, and "Error" over the chat."""

    def broken(*given: Any) -> AgentContext:
        raise AttributeError("'Column' object has no attribute 'x'")

    with monkeypatch.context() as patch:
        patch.setattr(type(ada.workspace), "toolbox", broken)
        ask(ada, COUNT)
    failure = ada.view.turns[-1].failure
    assert failure == Failed(f"{SORRY}\nAttributeError: 'Column' object has no attribute 'x'")
    list(ada.ask(COUNT, again=0))
    assert rows(ada) == [[4]]
    assert ada.kept.toolbox is not None and ada.kept.toolbox.options.seed == 0, "the first real try is no random one"


def test_choosing_a_row_while_files_are_taken_in(workspace: Workspace, tmp_path: Path, monkeypatch: Any) -> None:
    """The open data were once those that the choice had closed, and Cancel then deleted their files."""
    (tmp_path / "shops.csv").write_text("Shops;;\nshop_id;city;rent\n1;Paris;1\n2;Rome;2\n")
    ada = workspace.session("one", "ada")
    loaded = open_data._loaded

    def slowly(*given: Any) -> Any:
        time.sleep(0.05)
        return loaded(*given)

    monkeypatch.setattr(open_data, "_loaded", slowly)
    for number in range(4):
        ada.data.offer([tmp_path / "shops.csv"])
        choosing = threading.Thread(target=ada.data.name_columns, args=(0, 1))
        acts = [choosing.start, lambda: ada.take(beside=False)]
        for act in acts if number % 2 else reversed(acts):
            act()
        choosing.join()
        ada.data.name_columns(0, 0)
        ada.data.decline()
        assert all(file.exists() for file in ada.data.now.files)
        ask(ada, "How many shops?")
        assert rows(ada) == [[2]], number
    with pytest.raises(OpenError, match="drop them again"):
        ada.take(beside=False)


def _until(true: Any) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it never came so far")


def test_follow_ups_are_offered_after_they_have_run(workspace: Workspace, ada: Session) -> None:
    ask(ada, PER_COUNTRY)
    answer = ada.view.turns[-1].answer or {}
    (share,) = [each for each in answer["follow_ups"] if each["label"] == "As shares of the whole"]
    list(ada.ask(PER_COUNTRY, chosen=share["sql"], reply=share["label"]))
    assert sorted(rows(ada)) == [["France", 3, 75.0], ["Spain", 1, 25.0]]
    stored = workspace.archive.events("ada", ada.kept.id or "")
    assert (ConversationView(stored).turns[0].answer or {})["follow_ups"] == answer["follow_ups"]
    ask(ada, COUNT)
    assert "For each title" in [each["label"] for each in (ada.view.turns[-1].answer or {})["follow_ups"]]


def test_a_query_that_begins_after_the_stop_is_stopped_too(ada: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt once came between two nodes, and the query that began then ran to its deadline."""
    executing, go_on = threading.Event(), threading.Event()
    run_sql = answer.run_sql

    def late(*given: Any) -> Any:
        executing.set()
        go_on.wait(60)
        return run_sql(*given)

    monkeypatch.setattr(answer, "run_sql", late)
    run = ada.begin_run(Question(SLOW))
    assert executing.wait(60)
    ada.stop()
    go_on.set()
    began = time.monotonic()
    run.join(60)
    assert time.monotonic() - began < 15
    assert run.kept.view.turns[0].failure == Failed("Stopped.", stopped=True)
