"""Guards, in a real browser, what somebody sees who was never here: a tour, once, and tabs that say what they are for."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.browser import ask, chromium, open_browser, open_page, served, tab, until
from tests.ui.workspaces import scripted_workspace

if not os.environ.get("SQLAGENT_BROWSER"):
    pytest.skip("the tests in a browser are run by: make test-ui", allow_module_level=True)
assert chromium() is not None, "no chromium found: install it, or name it in CHROMIUM"

COUNT = "How many albums?"
EMPTY = {
    "Result": "No rows yet", "Chart": "No chart yet", "SQL": "No SQL yet", "Savings": "Nothing saved yet",
    "Decoding": "Ask a question", "Race": "No race yet",
}  # fmt: skip
COMES = {"Result": "#export", "SQL": "#run"}


@pytest.fixture
def context(tmp_path: Path) -> Iterator[tuple[Any, str]]:
    workspace = scripted_workspace(tmp_path, {COUNT: "SELECT COUNT(*) AS albums FROM albums"})
    with open_browser() as browser, served(workspace) as address:
        yield browser.new_context(viewport={"width": 1360, "height": 860}), address


def test_the_tour_ends_by_itself_and_does_not_return(context: tuple[Any, str]) -> None:
    page = open_page(*context)
    until(page, "#tour", "1 of 3")
    assert page.locator("#question.toured").count() == 1
    until(page, "#tour", "2 of 3")
    page.wait_for_selector("#tour", state="detached", timeout=15_000)
    assert page.locator(".toured").count() == 0
    page.reload()
    page.wait_for_selector(".schema details", state="attached")
    page.wait_for_timeout(1000)
    assert page.locator("#tour").count() == 0


def test_the_tour_can_be_skipped(context: tuple[Any, str]) -> None:
    page = open_page(*context)
    page.click("#tour button")
    page.wait_for_selector("#tour", state="detached")
    page.reload()
    page.wait_for_selector(".schema details", state="attached")
    page.wait_for_timeout(1000)
    assert page.locator("#tour").count() == 0


def test_on_a_phone_the_tour_leaves_the_question_free(context: tuple[Any, str]) -> None:
    """The rule for small screens did not reach the tour, which lay over the question box."""
    opened, address = context
    page = open_page(opened.browser.new_context(viewport={"width": 390, "height": 844}), address)
    card, question = page.locator("#tour").bounding_box(), page.locator("#question").bounding_box()
    assert card["y"] + card["height"] < question["y"]


def test_every_tab_says_what_it_is_for_until_there_is_an_answer(context: tuple[Any, str]) -> None:
    page = open_page(*context)
    for name, told in EMPTY.items():
        tab(page, name)
        until(page, "#tabs [role=tabpanel]", told)
        if name in COMES:
            page.wait_for_selector(COMES[name], state="hidden")
    ask(page, COUNT)
    until(page, "#chat", "4 albums.")
    for name in COMES:
        tab(page, name)
        page.wait_for_selector(COMES[name])
        assert "yet" not in page.locator("#tabs [role=tabpanel]:visible").inner_text()
    assert page.troubles == []
