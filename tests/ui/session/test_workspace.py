"""Guards the house: who has left makes room, nobody fills it alone, and files have a quota. No page, no browser.

Guards that a conversation never runs its SQL on data that it is not about, and goes on once its own are open.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from decoding.errors import ModelError
from tests.ui.workspaces import bring, scripted_workspace
from tools.databases.files.export import ExportError
from tools.result import OpenError
from ui.session import workspace as workspaces
from ui.session.kept import OtherData, named
from ui.session.run import Question
from ui.session.services import KEPT_S, GuestRules
from ui.session.session import Session
from ui.session.workspace import Full, NotYours, Workspace
from ui.views.data_html import preview_html

COUNT = "How many albums?"
SLOW = "Slow?"
SCRIPT = {COUNT: "SELECT COUNT(*) FROM albums", SLOW: "SELECT COUNT(*) FROM range(100000) a, range(1000000) b"}
RULES = GuestRules(upload_mb=1, export_mb=1, chats_mb=1, models=False, most_sessions=4, most_sessions_each=2)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    made = scripted_workspace(tmp_path, SCRIPT, rules=RULES)
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test moves on."""
    now = [1000.0]
    monkeypatch.setattr(workspaces, "monotonic", lambda: now[0])
    monkeypatch.setattr("ui.session.session.monotonic", lambda: now[0])
    return now


def test_sessions_without_a_page_make_room(workspace: Workspace, clock: list[float]) -> None:
    for number in range(4):
        workspace.session(f"s{number}", f"owner {number}")
    with pytest.raises(Full):
        workspace.session("s4", "late")
    clock[0] += workspaces.NO_PAGE_S + 1
    workspace.session("s4", "late")
    assert workspace.find("s0", "owner 0") is None and workspace.find("s1", "owner 1") is not None
    clock[0] += workspaces.GONE_S + 1
    workspace.session("s5", "later")
    assert [name for name in ("s1", "s2", "s3", "s4") if workspace.find(name, "late" if name == "s4" else "")] == []


def test_a_session_whose_page_is_open_stays_until_it_was_idle_for_long(
    workspace: Workspace, clock: list[float]
) -> None:
    with ExitStack() as pages:
        for number in range(4):
            pages.enter_context(workspace.page_open(f"s{number}"))
            workspace.session(f"s{number}", f"owner {number}")
        clock[0] += workspaces.GONE_S + 1
        with pytest.raises(Full):
            workspace.session("s4", "late")
        clock[0] += workspaces.IDLE_S
        workspace.session("s4", "late")
        assert workspace.find("s0", "owner 0") is None and workspace.find("s1", "owner 1") is not None


def test_nobody_fills_the_house_alone(workspace: Workspace) -> None:
    with ExitStack() as pages:
        for number in range(6):
            pages.enter_context(workspace.page_open(f"s{number}"))
            workspace.session(f"s{number}", "eve")
        assert [name for name in (f"s{i}" for i in range(6)) if workspace.find(name, "eve")] == ["s4", "s5"]
        workspace.session("other", "ada")


def test_a_session_that_answers_is_not_closed(workspace: Workspace, clock: list[float]) -> None:
    run = workspace.session("busy", "ada").begin_run(Question(SLOW))
    clock[0] += workspaces.AWAY_S + 1
    workspace.session("new", "bo")
    assert workspace.find("busy", "ada") is not None
    run.stop()


def test_a_session_is_found_by_its_owner_alone(workspace: Workspace) -> None:
    workspace.session("one", "ada")
    assert workspace.find("one", "bo") is None
    with pytest.raises(NotYours):
        workspace.session("one", "bo")


def test_no_other_model_is_loaded_whatever_the_settings_say(workspace: Workspace) -> None:
    from dataclasses import replace

    session = workspace.session("one", "ada")
    session.settings = replace(session.settings, model="/tmp")
    with pytest.raises(ModelError, match="no other model"):
        workspace.toolbox(session.settings, session.database)
    list(session.ask(COUNT))
    failure = session.view.turns[-1].failure
    assert failure is not None and "no other model" in failure.message


def test_exports_have_a_quota_for_all_tabs_together(workspace: Workspace) -> None:
    first, second = workspace.session("one", "ada"), workspace.session("two", "ada")
    large, small = "SELECT repeat('x', 700000) AS x", "SELECT repeat('x', 300000) AS x"
    path = first.export(large, "csv")
    with pytest.raises(ExportError, match="MiB"):
        second.export(large, "csv")
    assert first.export(small, "csv") == path
    assert [file.name for file in path.parent.iterdir()] == ["result.csv"]
    workspace.leave("one")
    assert second.export(large, "csv").exists() and not path.exists()


def test_files_have_a_quota_and_leave_with_their_owner(workspace: Workspace) -> None:
    files = workspace.files
    workspace.session("one", "ada")
    (files.new_folder("ada") / "a.csv").write_bytes(b"x" * 600_000)
    with pytest.raises(OpenError, match="more than the 1 MiB"), files.room("ada", 600_000):
        pass
    with files.room("bo", 600_000), pytest.raises(OpenError), files.room("bo", 600_000):
        pass
    workspace.leave("one")
    assert files.used("ada") == 0


def test_all_owners_together_have_a_quota(workspace: Workspace) -> None:
    with ExitStack() as coming:
        for number in range(20):
            coming.enter_context(workspace.files.room(f"owner {number}", 1 << 20))
        with pytest.raises(OpenError, match="this server keeps"):
            coming.enter_context(workspace.files.room("one more", 1))


def test_files_that_are_no_longer_open_are_gone(workspace: Workspace, tmp_path: Path) -> None:
    session = workspace.session("one", "ada")
    (tmp_path / "good.csv").write_text("a\n1\n")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    bring(session, tmp_path / "good.csv")
    before = workspace.files.used("ada")
    with pytest.raises(OpenError):
        bring(session, tmp_path / "bad.parquet")
    assert workspace.files.used("ada") == before > 0
    session.open_example()
    assert workspace.files.used("ada") == 0


def test_conversations_beyond_the_quota_go_on_and_say_that_they_are_not_kept(workspace: Workspace) -> None:
    session = workspace.session("one", "ada")
    list(session.ask(COUNT))
    assert session.kept.trouble == "" and session.kept.id is not None
    for number in range(4):
        session.run_sql(f"SELECT repeat('x', 300000) AS x{number}", 0)
    assert "the 1 MiB that are kept for you" in session.kept.trouble
    stored = len(session.kept.events())
    list(session.ask("What is new?"))
    assert [turn.question for turn in session.view.turns] == [COUNT, "What is new?"]
    session.delete(session.kept.id)
    list(session.ask(COUNT))
    assert session.kept.trouble == "" and 0 < len(session.kept.events()) < stored


@pytest.fixture
def workspace_other_data(tmp_path: Path) -> Iterator[Workspace]:
    made = scripted_workspace(tmp_path, {COUNT: "SELECT COUNT(*) AS albums FROM albums"})
    yield made
    made.close()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A table of the same name as the example's, with other rows."""
    path = tmp_path / "albums.csv"
    path.write_text("album_id,title\n1,One\n2,Two\n")
    return path


@pytest.fixture
def back(workspace_other_data: Workspace, own: Path) -> Session:
    """Who asked of a file, and came back to the example when the file was kept no longer."""
    session = workspace_other_data.session("one", "ada")
    bring(session, own)
    list(session.ask(COUNT))
    asked = session.kept.id
    session.open_example()
    workspace_other_data.kept_files.forget("ada")
    assert asked is not None and not session.resume(asked)
    return session


def test_nothing_of_it_runs_on_other_data(back: Session) -> None:
    assert named(back.wants) == "files: albums.csv"
    for action in (
        lambda: list(back.ask(COUNT)),
        lambda: back.run_sql("SELECT 1", 0),
        lambda: back.export("SELECT 1", "csv"),
        lambda: back.branch(0),
    ):
        with pytest.raises(OtherData, match=r"albums\.csv"):
            action()
    assert len(back.view.turns) == 1


def test_it_goes_on_once_its_file_is_open(back: Session, own: Path) -> None:
    asked = back.kept.id
    bring(back, own)
    assert (back.wants, back.kept.id, len(back.view.turns)) == ("", asked, 1)
    assert back.run_sql("SELECT COUNT(*) FROM albums", 0).rows == ((2,),)


def test_other_files_begin_a_new_conversation(back: Session, tmp_path: Path) -> None:
    other = tmp_path / "shops.csv"
    other.write_text("shop_id\n1\n")
    bring(back, other)
    assert (back.wants, back.kept.id, back.view.turns) == ("", None, [])


def test_what_cannot_be_opened_changes_nothing(back: Session) -> None:
    before = (back.wants, back.kept.id, back.source, back.database)
    with pytest.raises(OpenError):
        back.open_url("not a url")
    assert before == (back.wants, back.kept.id, back.source, back.database)


def test_a_new_conversation_is_about_what_is_open(back: Session) -> None:
    back.begin()
    list(back.ask(COUNT))
    assert back.run_sql("SELECT COUNT(*) FROM albums", 0).rows == ((4,),)


@pytest.fixture
def shops(tmp_path: Path) -> Path:
    path = tmp_path / "shops.csv"
    path.write_text("Shops;;\nshop_id;city;rent\n1;Paris;1.200,50\n")
    return path


def test_a_second_file_goes_on_with_the_conversation(workspace_other_data: Workspace, own: Path, shops: Path) -> None:
    session = workspace_other_data.session("one", "ada")
    bring(session, own)
    list(session.ask(COUNT))
    asked = session.kept.id
    bring(session, shops)
    assert (session.kept.id, len(session.view.turns), session.wants) == (asked, 1, "")
    list(session.ask(COUNT))
    (entry,) = workspace_other_data.archive.search("ada")
    assert named(entry.source) == "files: albums.csv, shops.csv"
    session.open_example()
    assert asked is not None and session.resume(asked)
    assert session.source == entry.source and session.database.schema().table("shops") is not None


def test_taking_files_in_is_undone_with_its_conversation(
    workspace_other_data: Workspace, own: Path, shops: Path
) -> None:
    session = workspace_other_data.session("one", "ada")
    list(session.ask(COUNT))
    first = session.kept.id
    bring(session, own)
    assert session.view.turns == []
    session.undo()
    assert (session.source, session.kept.id, session.data.steps) == ("example", first, 0)
    bring(session, own)
    list(session.ask(COUNT))
    second = session.kept.id
    bring(session, shops)
    session.undo()
    assert (named(session.source), session.kept.id) == ("files: albums.csv", second)
    assert session.database.schema().table("shops") is None
    assert session.run_sql("SELECT COUNT(*) FROM albums", 0).rows == ((2,),)
    session.data.offer([shops])
    session.take(beside=False)
    session.undo()
    assert (named(session.source), session.kept.id, session.wants) == ("files: albums.csv", second, "")


def test_undo_goes_back_five_steps_and_keeps_the_files_that_these_need(
    workspace_other_data: Workspace, tmp_path: Path
) -> None:
    """It went back one step, to what was open before the newest files."""
    session = workspace_other_data.session("one", "ada")
    list(session.ask(COUNT))
    first = session.kept.id
    for number in range(7):
        (tmp_path / f"t{number}.csv").write_text(f"a\n{number}\n")
        session.data.offer([tmp_path / f"t{number}.csv"])
        session.take(beside=number in (3, 4))
    together = ["t2.csv", "t3.csv", "t4.csv"]
    opened = [["t6.csv"], ["t5.csv"], together, together[:2], together[:1], ["t1.csv"]]
    kept = sorted(file.name for file in session.folder.rglob("*.csv"))
    assert kept == [f"t{number}.csv" for number in range(1, 7)]
    for left, names in enumerate(opened):
        assert named(session.source) == f"files: {', '.join(names)}" and session.data.steps == 5 - left
        count = "SELECT COUNT(*) FROM " + ", ".join(name.removesuffix(".csv") for name in names)
        assert session.database.execute(count).rows == ((1,),)  # type: ignore[union-attr]
        session.undo()
    assert named(session.source) == "files: t1.csv" and session.kept.id != first
    assert [file.name for file in session.folder.rglob("*.csv")] == ["t1.csv"]
    session.open_example()
    assert list(session.folder.rglob("*.csv")) == [] and session.data.steps == 0


def test_large_files_do_not_stay_for_more_than_one_step_back(tmp_path: Path) -> None:
    workspace = scripted_workspace(tmp_path, {}, rules=GuestRules(upload_mb=1))
    session = workspace.session("one", "ada")
    for name in ("a.csv", "b.csv", "c.csv"):
        (tmp_path / name).write_text("a\n" + "x" * 300_000)
        session.data.offer([tmp_path / name])
        session.take(beside=False)
    assert session.data.steps == 1
    assert {file.name for file in session.folder.rglob("*.csv")} == {"b.csv", "c.csv"}
    workspace.close()


def test_undoing_what_a_conversation_waited_for_leaves_it_waiting(back: Session, own: Path) -> None:
    bring(back, own)
    back.undo()
    assert (back.source, named(back.wants), len(back.view.turns)) == ("example", "files: albums.csv", 1)


def test_an_offer_is_not_asked_until_it_is_taken(workspace_other_data: Workspace, shops: Path) -> None:
    session = workspace_other_data.session("one", "ada")
    (sheet,) = session.data.offer([shops]).sheets
    assert (sheet.header, session.source) == (1, "example")
    session.data.name_columns(0, None)
    assert session.data.offered is not None and session.data.offered.sheets[0].header is None
    session.data.decline()
    with pytest.raises(OpenError, match="drop them again"):
        session.take(beside=True)
    assert workspace_other_data.files.used("ada") == 0
    session.data.offer([shops])
    session.data.name_columns(0, 1)
    session.take(beside=True)
    assert session.run_sql("SELECT rent FROM shops", 0).rows == ((1200.5,),)


@pytest.mark.filterwarnings("ignore:the last row of sales.csv")
def test_a_row_of_totals_is_shown_and_kept_if_that_is_chosen(workspace_other_data: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "sales.csv"
    path.write_text("item,sold\npen,2\nink,3\nTotal,5\n")
    session = workspace_other_data.session("one", "ada")
    (sheet,) = session.data.offer([path]).sheets
    assert (sheet.total, sheet.row_count) == (("Total", "5"), 2)
    assert "The last row (Total, 5) adds up those above it, and is left out" in preview_html(sheet)
    assert f"{len(sheet.columns)} columns. Opened, it takes the place of shop" in preview_html(sheet, "shop")
    session.data.keep_total(0, True)
    session.data.name_columns(0, 0)
    assert session.data.offered is not None
    (sheet,) = session.data.offered.sheets
    assert (sheet.keeps_total, sheet.row_count) == (True, 3) and "is a row like any other" in preview_html(sheet)
    session.data.keep_total(0, False)
    session.take(beside=False)
    assert session.run_sql("SELECT SUM(sold) FROM sales", 0).rows == ((5,),)


def test_files_are_there_after_a_restart_as_they_were_read(tmp_path: Path, shops: Path) -> None:
    """A reload, a second tab or a restart once lost them, and locked the conversation about them."""
    script = {"Which cities?": "SELECT city, rent FROM shops"}
    first = scripted_workspace(tmp_path, script)
    ada = first.session("one", "ada")
    ada.data.offer([shops])
    ada.data.name_columns(0, 1)
    ada.take(beside=False)
    list(ada.ask("Which cities?"))
    asked = ada.kept.id
    first.close()
    shops.unlink()
    again = scripted_workspace(tmp_path, script)
    back = again.session("two", "ada")
    assert asked is not None and back.resume(asked) and back.view.turns[0].answer
    list(back.ask("Which cities?"))
    assert back.view.turns[1].answer and back.view.turns[1].answer["columns"] == ["city", "rent"]
    assert not again.session("three", "bo").resume(asked) or again.session("three", "bo").source == "example"
    assert again.kept_files.recent("bo") == [] and len(again.kept_files.recent("ada")) == 1
    again.close()


def test_two_files_of_one_name_are_not_mixed(workspace_other_data: Workspace, own: Path) -> None:
    session = workspace_other_data.session("one", "ada")
    asked = []
    for rows in (2, 5):
        own.write_text("album_id,title\n" + "".join(f"{row},Title\n" for row in range(rows)))
        session.data.offer([own])
        session.take(beside=False)
        list(session.ask(COUNT))
        asked.append(session.kept.id or "")
    for name, rows in zip(asked, (2, 5), strict=True):
        assert session.resume(name)
        assert session.run_sql("SELECT COUNT(*) FROM albums", 0).rows == ((rows,),)


def test_kept_files_end_after_a_week_and_within_their_room(workspace: Workspace, tmp_path: Path) -> None:
    kept, sources = workspace.kept_files, []
    for number in range(4):
        file = tmp_path / f"f{number}.csv"
        file.write_bytes(b"a\n" + b"1\n" * 200_000)
        sources.append(f"files: {file.name} #{number:016d}")
        kept.keep("ada", sources[-1], [file], {})
        for told in tmp_path.rglob("kept.json"):
            os.utime(told, (told.stat().st_mtime - 60,) * 2)  # a minute goes by
    assert [source for source, _ in kept.recent("ada")] == [sources[3], sources[2]], "1 MiB holds two of them"
    for told in tmp_path.rglob("kept.json"):
        os.utime(told, (told.stat().st_mtime - KEPT_S,) * 2)
    kept.keep("bo", sources[0], [tmp_path / "f0.csv"], {})
    assert kept.recent("ada") == [] and kept.find("ada", sources[3]) is None
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "kept").iterdir())
