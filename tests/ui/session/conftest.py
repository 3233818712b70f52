"""A person's session on two small tables, with a model that says what a script gives it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.observe.events import Event
from tests.ui.workspaces import scripted_workspace
from ui.session.session import Session
from ui.session.workspace import Workspace

COUNT, PER_COUNTRY, WRONG, MANY = "How many albums?", "Albums per country?", "Wrong?", "All numbers?"
PER_COUNTRY_OF_THEM = "How many of them did the artists of each country release?"
SCRIPT = {
    COUNT: "SELECT COUNT(*) FROM albums",
    PER_COUNTRY: "SELECT country, COUNT(*) FROM albums JOIN artists ON albums.artist_id = artists.artist_id GROUP BY country",
    WRONG: "SELECT titel FROM albums",
    PER_COUNTRY_OF_THEM: "SELECT country, COUNT(*) FROM artists GROUP BY country",
    MANY: "SELECT i FROM range(100000) AS numbers(i)",
    "How many shops?": "SELECT COUNT(*) FROM shops",
    "Slow?": "SELECT COUNT(*) FROM range(100000) a, range(1000000) b",
}


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    made = scripted_workspace(tmp_path, SCRIPT)
    yield made
    made.close()


@pytest.fixture
def ada(workspace: Workspace) -> Session:
    return workspace.session("one", "ada")


def ask(session: Session, question: str) -> list[Event]:
    return list(session.ask(question))


def rows(session: Session) -> list[list[object]]:
    answer = session.view.turns[-1].answer
    assert answer is not None
    return answer["rows"]  # type: ignore[no-any-return]
