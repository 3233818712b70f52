"""A folder of knowledge: what a question is about reaches its prompt, and nothing else changes a byte."""

from pathlib import Path

import pytest

from agent.archive import Archive, learn
from agent.context import AgentContext
from agent.observe.events import Answered, Asked, Event, Judged
from agent.prompts.knowledge import Knowledge, KnowledgeError, read_knowledge
from tests.agent.conftest import Talk
from tests.ui.workspaces import bring, scripted_workspace

TERMS = """# Words of the house

- star: a singer with a concert
- **old hand**: a singer above 40
- gross margin: (price - cost) / price
"""
EXAMPLE = "## Who is the oldest singer?\n\n```sql\nSELECT name FROM singer\n  ORDER BY age DESC LIMIT 1\n```\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "terms.md").write_text(TERMS)
    (tmp_path / "examples.md").write_text(EXAMPLE)
    return tmp_path


def _prompt(toolbox: AgentContext) -> str:
    return str(toolbox.calls["plan"].messages[0].text)


def test_what_a_question_is_about_is_found(folder: Path) -> None:
    knowledge = read_knowledge(folder)
    assert knowledge.about("How many stars are there?") == ("star: a singer with a concert",)
    assert knowledge.about("Which old hands sang in 2015?") == ("old hand: a singer above 40",)
    example = "Who is the oldest singer? => SELECT name FROM singer ORDER BY age DESC LIMIT 1"
    assert knowledge.about("Who is the oldest star singer?") == ("star: a singer with a concert", example)
    assert knowledge.about("How much do they cost?") == ()


def test_it_reaches_the_prompt_and_an_empty_folder_leaves_the_prompt_as_it_is(
    talk: Talk, folder: Path, tmp_path: Path
) -> None:
    (empty := tmp_path / "empty").mkdir()
    prompts = []
    for knowledge in (Knowledge(), read_knowledge(empty), read_knowledge(folder)):
        conversation = talk("plan", "SELECT count(*) FROM singer", knowledge=knowledge)
        conversation.ask("How many stars have a name?")
        prompts.append(_prompt(conversation.toolbox))
    assert prompts[0] == prompts[1]
    assert "knowledge:" not in prompts[0]
    assert prompts[2].replace("knowledge: star: a singer with a concert\n", "") == prompts[0] != prompts[2]


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("terms.md", "# x\n\n- no meaning here\n", "line 3"),
        ("examples.md", "## Who?\n\nSELECT 1\n", "1 question"),
        ("terms.md", b"\xff", "cannot read"),
    ],
)
def test_a_line_that_says_nothing_is_an_error(tmp_path: Path, file: str, text: str | bytes, says: str) -> None:
    (tmp_path / file).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(KnowledgeError, match=says):
        read_knowledge(tmp_path)


def _turn(question: str, sql: str, error: object = None) -> list[Event]:
    return [Asked(question), Answered({"sql": sql, "error": error}, 1)]


def test_only_a_thumbs_up_makes_an_example(folder: Path, tmp_path: Path) -> None:
    archive = Archive(tmp_path / "chats.sqlite")
    told = [
        ("shop", [*_turn("How many?", "SELECT 1"), Judged(0, True)]),
        ("shop", _turn("Not judged?", "SELECT 2")),
        ("shop", [*_turn("Disliked?", "SELECT 3"), Judged(0, False)]),
        ("shop", [*_turn("Taken back?", "SELECT 4"), Judged(0, True), Judged(0, None)]),
        ("shop", [*_turn("Failed?", "SELECT 5", {"kind": "other"}), Judged(0, True)]),
        ("shop", [*_turn("First?", "SELECT 6"), *_turn("And then?", "SELECT 7"), Judged(1, True)]),
        ("other", [*_turn("Elsewhere?", "SELECT 8"), Judged(0, True)]),
        ("shop", [*_turn("who is THE oldest singer?", "SELECT 9"), Judged(0, True)]),
    ]
    for owner, (source, events) in enumerate(told):
        archive.add(str(owner), archive.begin(str(owner), source), events)
    assert learn(folder, archive.every("shop")) == ["How many?"]
    assert learn(folder, archive.every("shop")) == []
    assert read_knowledge(folder).about("How many?") == ("How many? => SELECT 1",)
    archive.close()


def test_the_web_chat_takes_it_for_its_own_database_alone(folder: Path, tmp_path: Path) -> None:
    workspace = scripted_workspace(tmp_path / "house", {})
    workspace.knowledge = read_knowledge(folder)
    (elsewhere := tmp_path / "singers.csv").write_text("name\nAda\n")
    session = workspace.session("one", "ada")
    for source, known in (("example", "star: a singer with a concert"), (str(elsewhere), "")):
        if source != "example":
            bring(session, elsewhere)
        list(session.ask("How many stars have a name?"))
        assert session.kept.toolbox is not None
        lines = _prompt(session.kept.toolbox).splitlines()
        assert [line for line in lines if line.startswith("knowledge:")] == ([f"knowledge: {known}"] if known else [])
    workspace.close()
