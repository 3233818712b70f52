"""One event file from a real run of the embedded model, which is all that the page's pure parts need; and for the others a
browser, a server whose model follows the test module's SCRIPT, and a page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.observe.events import Event, from_json
from tests.ui.browser import open_browser, open_page, served
from tests.ui.workspaces import scripted_workspace

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> list[Event]:
    lines = (RECORDED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [from_json(line) for line in lines]


@pytest.fixture(scope="session")
def albums() -> list[Event]:
    """Two questions on the bundled database, answered by the embedded model."""
    return recorded("albums")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a page is served whose model follows the module's SCRIPT, and waits its PAUSE_S between the pieces."""
    script, pause_s = request.module.SCRIPT, getattr(request.module, "PAUSE_S", 0.0)
    with served(scripted_workspace(tmp_path_factory.mktemp("workspace"), script, pause_s=pause_s)) as where:
        yield where


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """A page of a person who was never here before."""
    context = browser.new_context(viewport={"width": 1360, "height": 860})
    opened = open_page(context, address)
    yield opened
    assert opened.troubles == []
    context.close()
