"""The session in README is what the shipped model really answers, on the bundled database."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from agent.conversation import Answer
from app.ask.ask import DEFAULT_QUESTION
from tests.app.test_cli import run

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SESSION = re.findall(r"```\n\$ sqlagent chat\n(.*?)```", TEXT, re.DOTALL)
ASKED = re.findall(r'make ask Q="([^"]+)"', TEXT)


def told(session: str) -> list[tuple[str, list[str]]]:
    """Each question with the lines below it."""
    parts = re.split(r"^\? (.+)\n", session, flags=re.MULTILINE)[1:]
    return [(question, lines.splitlines()) for question, lines in zip(parts[::2], parts[1::2], strict=True)]


@pytest.fixture(autouse=True)
def no_example_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SQLAGENT_DB", "SQLAGENT_KNOWLEDGE", "SQLAGENT_MODEL"):
        monkeypatch.delenv(name, raising=False)


def test_the_session_is_what_the_chat_answers() -> None:
    assert len(SESSION) == 1
    pairs = told(SESSION[0])
    assert len(pairs) > 3
    result = run("chat", stdin="\n".join(question for question, _ in pairs) + "\n")
    printed = result.stdout.splitlines()
    for question, lines in pairs:
        for line in lines:
            assert line in printed, (question, line, result.stdout)
            printed = printed[printed.index(line) + 1 :]


@pytest.mark.parametrize("question", [DEFAULT_QUESTION, *ASKED])
def test_other_examples_are_answered_in_a_sentence(question: str) -> None:
    """ "Who sold most?" once read "manager id: 1"."""
    result = run("ask", question)
    sentence = result.stdout.splitlines()[0]
    assert result.exit_code == 0
    assert re.fullmatch(r"[A-Z0-9].{9,}\.", sentence), sentence
    assert "_" not in sentence
    assert "(" not in sentence
    assert not re.search(r"\bid\b", sentence), sentence


def test_the_python_example_reads_what_an_answer_has() -> None:
    """It once printed `answer.text`, which does not exist."""
    read = set(re.findall(r"\banswer\.(\w+)", "".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))))
    assert read
    assert read <= {each.name for each in fields(Answer)}
