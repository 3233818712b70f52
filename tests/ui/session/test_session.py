"""Guards a person's session: own data, memory, stop, editing, export, and conversations that stay. No page, no browser.

Guards conversations that stay: after a restart, when deleted, edited in a copy, and shared as a file.

Guards what a session remembers: follow-ups, retry, asking afresh, starting over.
"""

import csv
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agent.observe.events import Asked, Event, EventError, Failed, Started, Wrote
from agent.race import NoRace
from decoding.methods.registry import METHODS
from tests.decoding.models.random_heads import TAPPING
from tests.ui.session.conftest import COUNT, MANY, PER_COUNTRY, PER_COUNTRY_OF_THEM, SCRIPT, WRONG, ask, rows
from tests.ui.workspaces import bring, scripted_workspace, tiny_workspace
from tools.result import OpenError
from ui.session.conversation_view import OWN_QUERY, ConversationView
from ui.session.kept import Busy
from ui.session.run import Question, retry_of
from ui.session.services import GuestRules
from ui.session.session import Session
from ui.session.workspace import Workspace
from ui.views.data_html import ASKED_BACK, rows_of
from ui.views.messages import messages


def test_a_question_gives_rows(ada: Session) -> None:
    ask(ada, PER_COUNTRY)
    assert sorted(rows(ada)) == [["France", 3], ["Spain", 1]]


def test_settings_hold_from_the_next_question_on(ada: Session) -> None:
    ada.settings = replace(ada.settings, max_rows=2)
    ask(ada, MANY)
    assert ada.view.turns[-1].answer is not None and ada.view.turns[-1].answer["truncated"]
    with pytest.raises(ValueError, match="no option"):
        replace(ada.settings, decoder="plain", options="x=1").check()


def test_stop_ends_a_running_query(ada: Session) -> None:
    events = ada.ask("Slow?")
    for event in events:
        if isinstance(event, Started) and event.step == "execute":
            threading.Timer(0.2, ada.stop).start()
    last = ada.view.turns[-1].failure
    assert last == Failed("Stopped.", stopped=True)


def test_stop_ends_a_decode_in_the_middle(tmp_path: Path) -> None:
    workspace = tiny_workspace(tmp_path)
    session = workspace.session("one", "ada")
    written = 0
    for event in session.ask("How many albums?"):
        if isinstance(event, Wrote):
            written += 1
            session.stop()
    assert session.view.turns[-1].failure is not None
    assert session.view.turns[-1].failure.stopped
    assert written < 20
    workspace.close()


def test_one_question_at_a_time_in_a_conversation(ada: Session) -> None:
    run = ada.begin_run(Question("Slow?"))
    with pytest.raises(Busy):
        next(ada.ask(COUNT))
    ada.begin()
    ask(ada, COUNT)
    assert rows(ada) == [[4]] and run.kept.run is run
    run.stop()
    run.join(30)
    assert run.kept.view.turns[-1].failure == Failed("Stopped.", stopped=True)


def test_sql_by_hand_runs_under_the_same_guard(ada: Session) -> None:
    ask(ada, COUNT)
    ran = ada.run_sql("SELECT title FROM albums ORDER BY 1", 0)
    assert [row[0] for row in ran.rows] == ["Away", "Home", "Low", "Up"]
    for hostile in ("DROP TABLE albums", "SELECT * FROM read_csv('/etc/passwd')", "SELECT 1; DELETE FROM albums"):
        refused = ada.run_sql(hostile, 0).error
        assert refused is not None and refused["kind"] == "refused"
    assert ada.view.turns[0].ran is not None


def test_sql_of_ones_own_needs_no_question_and_begins_no_conversation(workspace: Workspace, ada: Session) -> None:
    ran = ada.run_sql("SELECT COUNT(*) FROM albums", OWN_QUERY)
    assert ran.rows == ((4,),) and ada.view.query.ran == ran and not ada.view.turns
    assert ada.kept.id is None, "nothing was asked, so nothing is stored"
    ask(ada, COUNT)
    ran = ada.run_sql("SELECT COUNT(*) FROM artists", OWN_QUERY)
    assert ada.view.turns[0].ran is None, "it belongs to no answer"
    assert ConversationView(workspace.archive.events("ada", ada.kept.id or "")).query.ran == ran


def test_an_answer_has_its_own_result_back(workspace: Workspace, ada: Session) -> None:
    ask(ada, COUNT)
    before = ada.view.turns[0].ran
    ada.run_sql("SELECT title FROM albums", 0)
    assert ada.view.turns[0].ran is not None
    ada.show_own(0)
    assert ada.view.turns[0].ran is before is None
    assert ConversationView(workspace.archive.events("ada", ada.kept.id or "")).turns == ada.view.turns


def test_an_export_has_all_rows(ada: Session) -> None:
    ask(ada, MANY)
    assert len(rows(ada)) == 200
    with ada.export(SCRIPT[MANY], "csv").open(newline="") as file:
        assert sum(1 for _ in csv.reader(file)) == 100_001


def test_files_join_as_tables_and_are_ones_own(workspace: Workspace, ada: Session, tmp_path: Path) -> None:
    (tmp_path / "shops.csv").write_text("shop_id,city\n1,Paris\n2,Rome\n")
    (tmp_path / "staff.csv").write_text("name\nEve\n")
    bo = workspace.session("two", "bo")
    bring(ada, tmp_path / "shops.csv")
    bring(ada, tmp_path / "staff.csv")
    assert [table.name for table in ada.database.schema().tables] == ["shops", "staff"]
    ask(ada, "How many shops?")
    assert rows(ada) == [[2]]
    ask(bo, COUNT)
    assert rows(bo) == [[4]]
    assert bo.database.schema().table("shops") is None


def test_a_bad_file_changes_nothing(ada: Session, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("")
    with pytest.raises(OpenError, match="empty"):
        bring(ada, tmp_path / "x.csv")
    ask(ada, COUNT)
    assert rows(ada) == [[4]]


def test_too_large_files_and_urls_can_be_forbidden(tmp_path: Path) -> None:
    workspace = scripted_workspace(tmp_path, SCRIPT, rules=GuestRules(upload_mb=0, urls=False))
    session = workspace.session("one", "ada")
    (tmp_path / "x.csv").write_text("a\n1\n")
    with pytest.raises(OpenError, match="0 MiB"):
        bring(session, tmp_path / "x.csv")
    with pytest.raises(OpenError, match="no database URLs"):
        session.open_url("sqlite:////etc/passwd")
    workspace.close()


def test_the_race_gives_every_lane_the_same_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp32 all methods write what plain decoding writes; each lane's clock is its own, and shows no prompt being read."""
    monkeypatch.setitem(METHODS, "tapping", TAPPING)
    workspace = tiny_workspace(tmp_path)
    session = workspace.session("one", "ada")
    with pytest.raises(NoRace):
        next(session.race("generate", ["plain", "lookahead"]))
    ask(session, COUNT)
    *_, lanes = session.race("plan", ["plain", "lookahead", "prompt_lookup", "tapping"])
    plain = lanes[0]
    assert all(lane.done and lane.text == plain.text for lane in lanes)
    assert plain.metrics.tokens_per_forward == 1.0
    assert [lane.rounds[0].pending for lane in lanes] == [1] * len(lanes)
    workspace.close()


def test_what_was_estimated_can_be_measured(tmp_path: Path) -> None:
    workspace = tiny_workspace(tmp_path)
    session = workspace.session("one", "ada")
    with pytest.raises(NoRace):
        session.measure()
    ask(session, COUNT)
    turn = session.view.turns[-1]
    estimated = turn.estimated
    assert session.can_measure and estimated
    before = [(turn.steps[place].record or {})["plain_ms"] for place in estimated]
    session.measure()
    after = [turn.steps[place].record or {} for place in estimated]
    assert {record["plain_ms_source"] for record in after} == {"measured"}
    assert all(record["plain_ms"] > 0 for record in after) and [r["plain_ms"] for r in after] != before
    assert not session.can_measure
    assert ConversationView(workspace.archive.events("ada", session.kept.id or "")).turns == session.view.turns
    workspace.close()


def test_an_unclear_question_can_be_settled_or_answered_as_it_stands(workspace: Workspace, ada: Session) -> None:
    unclear, artist = "How many are called Home?", "Home refers to artists.name = 'Home'"
    ask(ada, unclear)
    asked_back = ada.view.turns[-1].unclear
    assert asked_back is not None and artist in asked_back.options.values()
    assert rows_of(ada, ada.view.turns[-1], 0).told == ASKED_BACK
    list(ada.ask(unclear, artist))
    list(ada.ask(unclear, ask_back=False))
    assert rows_of(ada, ada.view.turns[-1], 2).told != ASKED_BACK
    ada.settings = replace(ada.settings, clarify=False)
    ask(ada, unclear)
    assert [turn.unclear for turn in ada.view.turns[1:]] == [None] * 3
    assert ConversationView(workspace.archive.events("ada", ada.kept.id or "")).turns == ada.view.turns


def test_a_question_goes_on_from_the_one_that_was_asked_back(tmp_path: Path) -> None:
    """It continued the newest answer instead. A page that comes back goes on as well."""
    home, artist = "How many are called Home?", "Home refers to artists.name = 'Home'"
    said = {
        COUNT: SCRIPT[COUNT],
        "How many are called Away?": "SELECT 'Away'",
        f"{home} [{artist}]": "SELECT 'an artist'",
    }
    workspace = scripted_workspace(tmp_path, said)
    session = workspace.session("one", "ada")
    for question in (COUNT, home, "And Away?", home):
        ask(session, question)
    assert [(turn.answer or {}).get("continues") for turn in session.view.turns] == [None, None, 2, None]
    assert (session.view.turns[2].answer or {})["rows"] == [["Away"]]
    returned = workspace.session("two", "ada")
    returned.resume(session.kept.id or "")
    ask(returned, "the artist")
    assert rows(returned) == [["an artist"]]
    assert (returned.view.turns[-1].answer or {})["continues"] == 4
    workspace.close()


def test_ten_ask_at_once_and_all_are_answered(tmp_path: Path) -> None:
    """Their steps take turns at the model, so nobody waits for all of another's question."""
    workspace = scripted_workspace(tmp_path, SCRIPT, pause_s=0.002)
    waits: list[float] = []

    def work(number: int) -> None:
        session = workspace.session(f"s{number}", f"user{number}")
        begun = time.monotonic()
        for event in session.ask(COUNT):
            if isinstance(event, Wrote) and len(waits) <= number:
                waits.append(time.monotonic() - begun)
        answers.append(rows(session))

    answers: list[list[list[object]]] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [[[4]]] * 10
    workspace.close()


def test_another_reading_is_a_turn_of_its_own(ada: Session) -> None:
    ask(ada, COUNT)
    other = "SELECT COUNT(*) FROM artists"
    list(ada.ask(COUNT, chosen=other))
    assert [turn.question for turn in ada.view.turns] == [COUNT, COUNT]
    assert (ada.view.turns[-1].sql, rows(ada)) == (other, [[3]])


def _prompt(session: Session) -> str:
    assert session.kept.toolbox is not None
    return str(session.kept.toolbox.calls["plan"].messages[0].text)


def test_a_conversation_is_found_after_a_restart(tmp_path: Path) -> None:
    workspace = scripted_workspace(tmp_path, SCRIPT)
    session = workspace.session("one", "ada")
    ask(session, COUNT)
    session.judge(0, True)
    session.run_sql("SELECT 1 AS one", 0)
    workspace.close()
    workspace = scripted_workspace(tmp_path, SCRIPT)
    again = workspace.session("new", "ada")
    (entry,) = workspace.archive.search("ada")
    assert again.resume(entry.id)
    turn = again.view.turns[0]
    assert (turn.question, turn.liked) == (COUNT, True)
    assert turn.ran is not None and turn.ran.rows == ((1,),)
    ask(again, PER_COUNTRY_OF_THEM)
    assert COUNT in _prompt(again)
    assert len(workspace.archive.search("ada")) == 1
    workspace.close()


def test_a_deleted_conversation_can_be_brought_back(workspace: Workspace, ada: Session) -> None:
    ask(ada, COUNT)
    before = ada.view.turns
    assert ada.kept.id is not None
    workspace.archive.rename("ada", ada.kept.id, "Counted")
    workspace.archive.pin("ada", ada.kept.id, True)
    ada.delete(ada.kept.id)
    assert (ada.view.turns, workspace.archive.search("ada")) == ([], [])
    bo = workspace.session("two", "bo")
    bo.restore()
    assert bo.view.turns == []
    ada.restore()
    assert ada.view.turns == before and ada.deleted is None
    ask(ada, PER_COUNTRY)
    assert [len(workspace.archive.search("ada")), len(ada.view.turns)] == [1, 2]
    ada.restore()
    assert [(entry.title, entry.pinned) for entry in workspace.archive.search("ada")] == [("Counted", 1)]


def test_an_edited_question_goes_on_in_a_copy(workspace: Workspace, ada: Session) -> None:
    ask(ada, COUNT)
    ask(ada, WRONG)
    ada.judge(0, True)
    original = ada.kept.id
    ada.branch(1)
    ask(ada, PER_COUNTRY)
    assert [turn.question for turn in ada.view.turns] == [COUNT, PER_COUNTRY]
    assert ada.view.turns[0].liked
    assert original is not None
    ada.resume(original)
    assert [turn.question for turn in ada.view.turns] == [COUNT, WRONG]


def test_a_shared_file_plays_back_without_a_model(workspace: Workspace, ada: Session, tmp_path: Path) -> None:
    ask(ada, PER_COUNTRY)
    file = tmp_path / "shared.jsonl"
    file.write_bytes(ada.share().read_bytes())
    bo = workspace.session("two", "bo")
    bo.replay(file)
    assert bo.view.turns == ada.view.turns
    assert workspace.archive.search("bo")[0].source == "shared file: shared.jsonl"
    file.write_text("nonsense\n")
    with pytest.raises(EventError, match="not an event"):
        bo.replay(file)
    assert bo.view.turns == ada.view.turns


def test_later_questions_see_earlier_ones(ada: Session) -> None:
    ask(ada, COUNT)
    ask(ada, PER_COUNTRY_OF_THEM)
    assert f"history: {COUNT} => {SCRIPT[COUNT]}" in _prompt(ada)
    assert _continues(ada) == 1


def test_retry_takes_the_other_reading_and_then_another_query(ada: Session) -> None:
    ask(ada, COUNT)
    ask(ada, PER_COUNTRY_OF_THEM)
    list(ada.ask(PER_COUNTRY_OF_THEM, again=1))
    assert "history:" not in _prompt(ada)
    answer = ada.view.turns[-1].answer
    assert answer is not None and "you have seen" in answer["answer"]  # the script knows one query for a question
    list(ada.ask(PER_COUNTRY_OF_THEM, again=2))
    assert f"history: {COUNT} => {SCRIPT[COUNT]}" in _prompt(ada)


def test_a_question_is_asked_by_itself_where_the_asker_wants_it_so(ada: Session) -> None:
    ask(ada, COUNT)
    list(ada.ask(PER_COUNTRY_OF_THEM, reading="standalone"))
    assert "history:" not in _prompt(ada) and _continues(ada) is None


def test_starting_over_forgets_what_came_before(ada: Session) -> None:
    ask(ada, COUNT)
    ask(ada, "Start over")
    assert ada.view.turns[-1].answer is not None and ada.view.turns[-1].answer["error"] is None
    ask(ada, PER_COUNTRY_OF_THEM)
    assert "history:" not in _prompt(ada)


def test_a_question_that_was_stopped_is_tried_as_at_first_and_in_its_place(ada: Session) -> None:
    """The first real try was once a sampled one, and stood below the stopped one."""
    stopped: list[Event] = [Asked(COUNT), Failed("Stopped.", stopped=True)]
    view = ConversationView([Asked("Names?"), Failed("Stopped.", stopped=True), *stopped])
    assert len(messages(view.turns)) == 4
    retry = retry_of(view.turns, 1)
    assert not retry.sampled and not retry.again.refused
    view.apply(Asked(COUNT))
    shown = messages(view.turns)
    assert [each["metadata"]["id"] for each in shown] == ["0:question", "0:answer", "2:question", "2:answer"]


def _continues(session: Session) -> int | None:
    answer = session.view.turns[-1].answer
    assert answer is not None
    return answer["continues"]  # type: ignore[no-any-return]
