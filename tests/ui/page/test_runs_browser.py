"""Guards, in a real browser on a busy machine, that nothing is lost or mixed up when people do something else while a question
is answered: each of it several times, at moments that differ. `make test-ui times=20` does each twenty times."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.browser import ask, choose_file, chromium, open_browser, open_page, served, side_tab, until
from tests.ui.workspaces import scripted_workspace
from ui.session.workspace import Workspace

if not os.environ.get("SQLAGENT_BROWSER"):
    pytest.skip("the tests in a browser are run by: make test-ui", allow_module_level=True)
assert chromium() is not None, "no chromium found: install it, or name it in CHROMIUM"

TIMES = int(os.environ.get("SQLAGENT_TIMES") or 6)
MOMENTS = [2000 * time // TIMES for time in range(TIMES)]  # after so many ms something else is done
COUNT, NAMES, BROKEN, SHOPS = "How many albums?", "How many artists?", "Where is the fault?", "How many shops?"
SCRIPT = {
    COUNT: "SELECT COUNT(*) AS albums FROM albums",
    NAMES: "SELECT COUNT(*) AS artists FROM artists",
    SHOPS: "SELECT COUNT(*) AS shops FROM shops",
}
SEND, STOP = "#question [data-testid=submit-button]", "#question [data-testid=stop-button]"
IN_VAIN = "#chat .error, #panel .error, #sidebar .error, #incoming .error"  # what Gradio writes over its components


def _spin() -> None:
    while True:
        pass


@pytest.fixture(scope="module", autouse=True)
def busy_machine() -> Iterator[None]:
    """Where it has nothing else to do, two processes keep it busy."""
    idle = os.getloadavg()[0] < (os.cpu_count() or 1)
    spinning = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(2 * idle)]
    for process in spinning:
        process.start()
    yield
    for process in spinning:
        process.kill()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return scripted_workspace(tmp_path, SCRIPT, pause_s=0.15)


@pytest.fixture
def page(workspace: Workspace) -> Iterator[Any]:
    """Two answered conversations are there; the newest is shown."""
    with open_browser() as browser, served(workspace) as address:
        opened = open_page(browser.new_context(viewport={"width": 1360, "height": 860}), address)
        side_tab(opened, "Chats")
        yield opened
        assert opened.troubles == []


def answered(page: Any, *texts: str) -> None:
    """What is shown is this and nothing else, and the next question can be put."""
    for text in texts:
        until(page, "#chat", text)
    page.wait_for_selector(STOP, state="detached")
    page.wait_for_selector(SEND)
    assert page.locator(IN_VAIN).count() == 0


def asked_in_a_new_one(page: Any, question: str, wait_ms: int) -> None:
    """Begin a conversation, ask, and wait a little."""
    page.click("#new")
    page.wait_for_function("() => !document.querySelector('#chat .user')")
    ask(page, question)
    until(page, "#chat .user", question)
    until(page, "#conversations label:has(input:checked)", question)
    page.wait_for_timeout(wait_ms)


def chats(page: Any) -> list[str]:
    return [each.strip() for each in page.locator("#chat .user .message").all_inner_texts()]


def test_switching_while_a_question_is_answered(page: Any) -> None:
    """The second's answer once stood under the first's question, for good."""
    ask(page, COUNT)
    answered(page, "4 albums.")
    for moment_ms in MOMENTS:
        asked_in_a_new_one(page, NAMES, moment_ms)
        page.click(f"#conversations label:has-text('{COUNT}')")
        page.wait_for_function(
            "question => document.querySelector('#chat .user')?.innerText.includes(question)", arg=COUNT
        )
        answered(page, "4 albums.")
        page.click("#conversations label >> nth=0")
        answered(page, "3 artists.")
        assert chats(page) == [NAMES]
        page.click(f"#conversations label:has-text('{COUNT}')")
        answered(page, "4 albums.")
        assert chats(page) == [COUNT] and "artists." not in page.inner_text("#chat")


def test_beginning_and_deleting_while_a_question_is_answered(page: Any) -> None:
    for moment_ms in MOMENTS:
        asked_in_a_new_one(page, NAMES, moment_ms)
        page.click("#new")
        page.wait_for_function("() => !document.querySelector('#chat .user')")
        ask(page, COUNT)
        answered(page, "4 albums.")
        assert chats(page) == [COUNT]
        asked_in_a_new_one(page, NAMES, moment_ms)
        page.click("#delete")
        page.wait_for_function("() => !document.querySelector('#chat .user')")
        answered(page)


def shops(tmp_path: Path) -> Path:
    path = tmp_path / "shops.csv"
    path.write_text("Shops;;\nshop_id;city;rent\n1;Paris;1.200,50\n2;Rome;900\n")
    return path


def test_opening_data_while_a_question_is_answered(page: Any, tmp_path: Path) -> None:
    file = shops(tmp_path)
    for moment_ms in MOMENTS:
        asked_in_a_new_one(page, NAMES, moment_ms)
        side_tab(page, "Data")
        if moment_ms == 0:
            page.click("#open > button")
        choose_file(page, "#files button", file)
        page.click("#incoming-alone")
        until(page, "#schema", "shops")
        answered(page)
        ask(page, SHOPS)
        until(page, "#chat .user", SHOPS)
        page.wait_for_timeout(moment_ms)
        page.click("#example")
        until(page, "#schema", "albums")
        page.wait_for_function("() => !document.querySelector('#chat .user')")  # drawn a moment after the tables
        answered(page)
        assert chats(page) == []
        side_tab(page, "Chats")
        until(page, "#conversations", SHOPS)


def test_choosing_a_row_and_opening_at_once(page: Any, tmp_path: Path) -> None:
    """The data were dead afterwards, and Cancel deleted their files."""
    file = shops(tmp_path)
    side_tab(page, "Data")
    page.click("#open > button")
    for moment_ms in MOMENTS:
        choose_file(page, "#files button", file)
        page.click("#incoming-header input")
        page.click("#incoming-header [role=option]:has-text('row 2')")
        page.wait_for_timeout(moment_ms / 10)
        page.click("#incoming-alone")
        page.wait_for_selector("#incoming", state="hidden")
        until(page, "#schema", "shops")
        answered(page)
        ask(page, SHOPS)
        answered(page, "2 shops.")
        page.click("#example")
        until(page, "#schema", "albums")


def test_a_question_is_answered_while_its_page_is_loaded_again(page: Any) -> None:
    """It once was stopped, without a word why."""
    for time, moment_ms in enumerate(MOMENTS):
        ask(page, NAMES if time % 2 else COUNT)
        page.wait_for_function("n => document.querySelectorAll('#chat .user .message').length === n", arg=time + 1)
        page.wait_for_timeout(moment_ms)
        page.reload()
        page.wait_for_function("n => document.querySelectorAll('#chat .user .message').length === n", arg=time + 1)
        answered(page, "3 artists." if time % 2 else "4 albums.")
        assert "Stopped" not in page.inner_text("#chat") and "No answer" not in page.inner_text("#chat")


def test_whatever_breaks_is_a_failed_turn_that_can_be_tried_again(
    page: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chat once vanished behind the word Error, and the stop button stayed."""

    def broken(*given: Any) -> Any:
        raise AttributeError("a fault of a library")

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "toolbox", broken)
        ask(page, COUNT)
        answered(page, "Something went wrong here")
        assert not page.locator("#chat code").is_visible()
        page.click("#chat summary:has-text('Details')")
        until(page, "#chat code", "AttributeError: a fault of a library")
    page.click("#chat button:has-text('Try again')")
    answered(page, "4 albums.")
    breaking: Callable[..., Any] = broken
    monkeypatch.setattr("ui.session.session.Session.share", breaking)
    page.click("#share")
    until(page, ".toast-body", "Something went wrong here")
    answered(page, "4 albums.")
