"""Guards, in a real browser, what a person does with the SQL of an answer: run it by a key, stop it, go back."""

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
ENDLESS = "SELECT COUNT(*) FROM range(1000000) a, range(10000000) b WHERE a.range % 7 = b.range % 5"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    workspace = scripted_workspace(tmp_path, {COUNT: "SELECT COUNT(*) AS albums FROM albums"})
    with open_browser() as browser, served(workspace) as address:
        opened = open_page(browser.new_context(viewport={"width": 1360, "height": 860}), address)
        ask(opened, COUNT)
        until(opened, "#caption", "1 row")
        tab(opened, "SQL")
        until(opened, "#sql", "COUNT")
        yield opened
        assert opened.troubles == []


def write(page: Any, sql: str) -> None:
    """Put SQL into the editor and run it by the key."""
    page.click("#sql .cm-content")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(sql)
    page.wait_for_timeout(300)
    page.keyboard.press("Control+Enter")


def test_a_key_runs_the_sql_and_a_click_brings_the_answer_back(page: Any) -> None:
    write(page, "SELECT title FROM albums")
    until(page, "#trouble", "4 rows")
    assert "\n" not in page.inner_text("#sql .cm-content").strip()
    page.click("#own")
    until(page, "#sql", "COUNT")
    until(page, "#caption", "1 row")
    page.wait_for_selector("#own", state="hidden")


def test_the_editor_has_a_line_for_each_clause_and_no_more_room_than_they_need(page: Any) -> None:
    """It once was an empty box of 350 pixels with the statement in one line."""
    assert page.locator("#sql .cm-line").count() >= 2
    assert page.locator("#sql .cm-editor").bounding_box()["height"] < 160


def test_a_statement_that_runs_long_can_be_stopped(page: Any) -> None:
    write(page, ENDLESS)
    page.wait_for_selector("#trouble .spinner")
    page.wait_for_selector("#run", state="hidden")
    page.wait_for_timeout(500)
    page.click("#halt")
    until(page, "#trouble", "⚠")
    page.wait_for_selector("#run")
    assert "deadline" not in page.inner_text("#trouble")
    write(page, "SELECT 1 AS one")
    until(page, "#trouble", "1 row")
