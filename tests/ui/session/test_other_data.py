"""Guards that a conversation never runs its SQL on data that it is not about, and goes on once its own are open."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ui.workspaces import bring, scripted_workspace
from tools.result import OpenError
from ui.session.kept import OtherData
from ui.session.session import Session
from ui.session.workspace import Workspace
from ui.views.data_html import preview_html

COUNT = "How many albums?"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
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
def back(workspace: Workspace, own: Path) -> Session:
    """Who asked of a file, and came back to the example."""
    session = workspace.session("one", "ada")
    bring(session, own)
    list(session.ask(COUNT))
    asked = session.kept.id
    session.open_example()
    assert asked is not None and not session.resume(asked)
    return session


def test_nothing_of_it_runs_on_other_data(back: Session) -> None:
    assert back.wants == "files: albums.csv"
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


def test_a_second_file_goes_on_with_the_conversation(workspace: Workspace, own: Path, shops: Path) -> None:
    session = workspace.session("one", "ada")
    bring(session, own)
    list(session.ask(COUNT))
    asked = session.kept.id
    bring(session, shops)
    assert (session.kept.id, len(session.view.turns), session.wants) == (asked, 1, "")
    list(session.ask(COUNT))
    (entry,) = workspace.archive.search("ada")
    assert entry.source == "files: albums.csv, shops.csv"
    session.open_example()
    assert asked is not None and not session.resume(asked)
    assert session.wants == "files: albums.csv, shops.csv"


def test_taking_files_in_is_undone_with_its_conversation(workspace: Workspace, own: Path, shops: Path) -> None:
    session = workspace.session("one", "ada")
    list(session.ask(COUNT))
    first = session.kept.id
    bring(session, own)
    assert session.view.turns == []
    session.undo()
    assert (session.source, session.kept.id, session.data.can_undo) == ("example", first, False)
    bring(session, own)
    list(session.ask(COUNT))
    second = session.kept.id
    bring(session, shops)
    session.undo()
    assert (session.source, session.kept.id) == ("files: albums.csv", second)
    assert session.database.schema().table("shops") is None
    assert session.run_sql("SELECT COUNT(*) FROM albums", 0).rows == ((2,),)
    session.data.offer([shops])
    session.take(beside=False)
    session.undo()
    assert (session.source, session.kept.id, session.wants) == ("files: albums.csv", second, "")


def test_undoing_what_a_conversation_waited_for_leaves_it_waiting(back: Session, own: Path) -> None:
    bring(back, own)
    back.undo()
    assert (back.source, back.wants, len(back.view.turns)) == ("example", "files: albums.csv", 1)


def test_an_offer_is_not_asked_until_it_is_taken(workspace: Workspace, shops: Path) -> None:
    session = workspace.session("one", "ada")
    (sheet,) = session.data.offer([shops]).sheets
    assert (sheet.header, session.source) == (1, "example")
    session.data.name_columns(0, None)
    assert session.data.offered is not None and session.data.offered.sheets[0].header is None
    session.data.decline()
    with pytest.raises(OpenError, match="drop them again"):
        session.take(beside=True)
    assert workspace.files.used("ada") == 0
    session.data.offer([shops])
    session.data.name_columns(0, 1)
    session.take(beside=True)
    assert session.run_sql("SELECT rent FROM shops", 0).rows == ((1200.5,),)


@pytest.mark.filterwarnings("ignore:the last row of sales.csv")
def test_a_row_of_totals_is_shown_and_kept_if_that_is_chosen(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "sales.csv"
    path.write_text("item,sold\npen,2\nink,3\nTotal,5\n")
    session = workspace.session("one", "ada")
    (sheet,) = session.data.offer([path]).sheets
    assert (sheet.total, sheet.row_count) == (("Total", "5"), 2)
    assert "The last row (Total, 5) adds up those above it, and is left out" in preview_html(sheet)
    session.data.keep_total(0, True)
    session.data.name_columns(0, 0)
    assert session.data.offered is not None
    (sheet,) = session.data.offered.sheets
    assert (sheet.keeps_total, sheet.row_count) == (True, 3) and "is a row like any other" in preview_html(sheet)
    session.data.keep_total(0, False)
    session.take(beside=False)
    assert session.run_sql("SELECT SUM(sold) FROM sales", 0).rows == ((5,),)
