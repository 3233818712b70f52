"""Guards conversations that stay: after a restart, when deleted, edited in a copy, and shared as a file."""

from pathlib import Path

import pytest

from agent.observe.events import EventError
from tests.ui.session.conftest import COUNT, PER_COUNTRY, PER_COUNTRY_OF_THEM, SCRIPT, WRONG, ask
from tests.ui.workspaces import scripted_workspace
from ui.session.session import Session
from ui.session.workspace import Workspace


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
    assert len(workspace.archive.search("ada")) == 1


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
