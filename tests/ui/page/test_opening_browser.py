"""Guards, in a real browser, that what cannot be opened says so at its field, and that a conversation keeps to its data."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.browser import ask, choose_file, chromium, open_browser, open_page, served, side_tab, until
from tests.ui.workspaces import scripted_workspace

if not os.environ.get("SQLAGENT_BROWSER"):
    pytest.skip("the tests in a browser are run by: make test-ui", allow_module_level=True)
assert chromium() is not None, "no chromium found: install it, or name it in CHROMIUM"

COUNT = "How many albums?"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    workspace = scripted_workspace(tmp_path, {COUNT: "SELECT COUNT(*) AS albums FROM albums"})
    with open_browser() as browser, served(workspace) as address:
        opened = open_page(browser.new_context(viewport={"width": 1360, "height": 860}), address)
        yield opened
        assert opened.troubles == []


def test_what_cannot_be_opened_says_so_at_its_field(page: Any, tmp_path: Path) -> None:
    ask(page, COUNT)
    until(page, "#caption", "1 row")
    page.click("#open > button")
    page.fill("#url input, #url textarea", "nonsense")
    page.click("#open-url")
    until(page, "#url-trouble", "postgresql://")
    (tmp_path / "broken.xlsx").write_text("<b>no workbook</b>")
    choose_file(page, "#files button", tmp_path / "broken.xlsx")
    until(page, "#files-trouble", "broken.xlsx")
    assert "/" not in page.inner_text("#files-trouble")  # not the folder where the server keeps it
    assert page.locator("#url input, #url textarea").input_value() == "nonsense"
    assert COUNT in page.inner_text("#chat")
    assert "1 row" in page.inner_text("#caption")
    assert page.locator(".toast-body, .block .error").count() == 0


def test_a_conversation_keeps_to_its_data(page: Any, tmp_path: Path) -> None:
    (tmp_path / "albums.csv").write_text("album_id,title\n1,One\n2,Two\n")
    page.click("#open > button")
    choose_file(page, "#files button", tmp_path / "albums.csv")
    page.click("#incoming-alone")
    until(page, "#schema", "2 rows")
    ask(page, COUNT)
    until(page, "#caption", "1 row")
    page.wait_for_selector("#question [data-testid=submit-button]")
    page.click("#example")
    page.wait_for_function("() => !document.querySelector('#chat').innerText.includes('How many albums?')")
    side_tab(page, "Chats")
    page.click(f"#conversations label:has-text('{COUNT}')")
    until(page, "#notice", "albums.csv")
    ask(page, "How many now?")
    page.wait_for_function("() => document.querySelector('#question textarea').value === 'How many now?'")
    assert "How many now?" not in page.inner_text("#chat")


def test_a_file_is_shown_before_it_is_taken_in_and_taking_it_is_undone(page: Any, tmp_path: Path) -> None:
    """The whole way: titles, another row of names, what is not a number, beside what is open, and back."""
    (tmp_path / "albums.csv").write_text("album_id,title\n1,One\n2,Two\n")
    (tmp_path / "rents.csv").write_text(
        "Rents;;\nshop;rent;since\n1;1.200,50 €;13.02.2023\n2;900,00 €;soon\n3;3 €;1.1.2024\n"
    )
    page.click("#open > button")
    choose_file(page, "#files button", tmp_path / "albums.csv")
    page.click("#incoming-alone")
    until(page, "#schema", "2 rows")
    ask(page, COUNT)
    until(page, "#chat", "2 albums.")
    choose_file(page, "#files button", tmp_path / "rents.csv")
    until(page, "#incoming-view", "1 of 3 values is no date")
    until(page, "#incoming-view", "in €")
    assert page.locator("#incoming-view .names").inner_text().split() == ["2", "shop", "rent", "since"]
    page.click("#incoming-header input")
    page.click("#incoming-header [role=option]:has-text('row 1')")
    page.wait_for_function("() => document.querySelector('#incoming-view .names')?.innerText.includes('Rents')")
    page.click("#incoming-header input")
    page.click("#incoming-header [role=option]:has-text('row 2')")
    page.wait_for_function("() => document.querySelector('#incoming-view .names')?.innerText.includes('shop')")
    page.click("#incoming-beside")
    until(page, "#schema", "rents")
    assert COUNT in page.inner_text("#chat") and "albums" in page.inner_text("#schema")
    page.click("#undo")
    page.wait_for_function("() => !document.querySelector('#schema').innerText.includes('rents')")
    assert COUNT in page.inner_text("#chat")
