"""Guards, in a real browser, that the page can be used by ear and on a phone.

Guards, in a real browser, what somebody sees who was never here: how it is fast, and no empty panel.

Guards, in a real browser, what a person does with the SQL of an answer: run it by a key, stop it, go back.

Guards, in a real browser, that what cannot be opened says so at its field, and that a conversation keeps to its data.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.browser import ask, choose_file, chromium, open_page, served, side_tab, tab, until
from tests.ui.workspaces import scripted_workspace

if not os.environ.get("SQLAGENT_BROWSER"):
    pytest.skip("the tests in a browser are run by: make test-ui", allow_module_level=True)
assert chromium() is not None, "no chromium found: install it, or name it in CHROMIUM"

COUNT, NAMES = "How many albums?", "Names of artists?"
SCRIPT = {COUNT: "SELECT COUNT(*) AS albums FROM albums", NAMES: "SELECT name, country FROM artists ORDER BY name"}
ENDLESS = "SELECT COUNT(*) FROM range(1000000) a, range(10000000) b WHERE a.range % 7 = b.range % 5"
TABS = ("Result", "Chart", "SQL", "Speed")
NAMELESS = """() => [...document.querySelectorAll("button, a, input, textarea, select, [role=textbox], [role=combobox]")]
  .filter(part => part.checkVisibility() && part.type !== "hidden" && part.type !== "file")
  .filter(part => ![part.getAttribute("aria-label"), part.title, part.innerText,
    part.matches("button, a") ? "" : part.closest("label")?.innerText,
    document.querySelector(`label[for="${part.id || "-"}"]`)?.innerText,
    document.getElementById(part.getAttribute("aria-labelledby") || "-")?.innerText].some(name => name?.trim()))
  .map(part => part.outerHTML.slice(0, 160))"""

PALE = """() => [...document.querySelectorAll("#chat summary, #chat td, #chat strong")].flatMap(part => {
  const around = [];
  for (let each = part; each; each = each.parentElement) around.push(each);
  return around.filter(each => getComputedStyle(each).opacity !== "1").map(each => each.className);
})"""  # what is around text and lets the background through


@pytest.fixture(scope="module")
def slow_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(scripted_workspace(tmp_path_factory.mktemp("workspace"), SCRIPT, pause_s=0.3)) as where:
        yield where


@pytest.fixture
def editing(page: Any) -> Any:
    """The page with the SQL of an answer."""
    ask(page, COUNT)
    until(page, "#caption", "1 row")
    tab(page, "SQL")
    until(page, "#sql", "COUNT")
    return page


def test_everything_that_can_be_used_has_a_name(browser: Any, slow_address: str) -> None:
    page = open_page(browser.new_context(viewport={"width": 1360, "height": 860}), slow_address)
    found = {"before": page.evaluate(NAMELESS)}
    assert page.get_by_role("button", name="Send the question").count() == 1
    ask(page, NAMES)
    until(page, "#chat", "Writing SQL")
    page.wait_for_timeout(300)
    found["running"] = page.evaluate(NAMELESS)
    assert page.get_by_role("button", name="Stop the answer").count() == 1
    until(page, "#caption", "3 rows")
    for name in TABS:
        tab(page, name)
        page.wait_for_timeout(300)
        found[name] = page.evaluate(NAMELESS)
    for name in ("Chats", "Settings"):
        side_tab(page, name)
        page.wait_for_timeout(300)
        found[name] = page.evaluate(NAMELESS)
    assert not any(found.values()), found
    assert page.evaluate(PALE) == []


def test_on_a_phone_the_question_box_stays_in_view(browser: Any, address: str) -> None:
    page = open_page(browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark"), address)
    page.wait_for_selector(".sidebar:not(.open)")
    ask(page, NAMES)
    until(page, "#caption", "3 rows")
    for place in (0, 10_000):
        page.evaluate("place => window.scrollTo(0, place)", place)
        page.wait_for_timeout(300)
        box = page.locator("#question").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390
        assert box["y"] > 700 and box["y"] + box["height"] <= 844, (place, box)
    page.locator("#question textarea").blur()
    edge = page.locator("#question").evaluate("box => getComputedStyle(box).borderTopColor")
    assert edge == "rgb(100, 116, 139)"
    assert page.evaluate("() => getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_the_first_page_says_how_it_is_fast_and_shows_no_empty_panel(page: Any) -> None:
    """In ten seconds nobody understood what this is about: not a word stood there, and a third of it said "No rows yet"."""
    until(page, "#chat .placeholder", "6 looks of the model instead of 34")
    pieces = page.locator("#chat .how pre i")
    assert pieces.count() == 6
    lands = pieces.nth(5).evaluate("e => getComputedStyle(e).animationName + getComputedStyle(e).animationDelay")
    assert lands == "lands3.5s"
    assert not page.locator("#panel").is_visible() and page.locator("#tour").count() == 0
    ask(page, COUNT)
    until(page, "#chat", "4 albums.")
    for name, shown in {"Result": "#export", "SQL": "#run", "Speed": "#savings"}.items():
        tab(page, name)
        page.wait_for_selector(shown)
        assert page.locator("#tabs [role=tabpanel]:visible").inner_text().strip()


def write(page: Any, sql: str) -> None:
    """Put SQL into the editor and run it by the key."""
    page.click("#sql .cm-content")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(sql)
    page.wait_for_timeout(300)
    page.keyboard.press("Control+Enter")


def test_a_key_runs_the_sql_and_a_click_brings_the_answer_back(editing: Any) -> None:
    write(editing, "SELECT title FROM albums")
    until(editing, "#trouble", "4 rows")
    assert "\n" not in editing.inner_text("#sql .cm-content").strip()
    editing.click("#own")
    until(editing, "#sql", "COUNT")
    until(editing, "#caption", "1 row")
    editing.wait_for_selector("#own", state="hidden")


def test_the_editor_has_a_line_for_each_clause_and_no_empty_half(editing: Any) -> None:
    """It once was an empty box of 350 pixels with the statement in one line."""
    assert editing.locator("#sql .cm-line").count() >= 2
    assert editing.locator("#sql .cm-editor").bounding_box()["height"] <= 160  # room to write, however short


def test_a_statement_that_runs_long_can_be_stopped(editing: Any) -> None:
    write(editing, ENDLESS)
    editing.wait_for_selector("#trouble .spinner")
    editing.wait_for_selector("#run", state="hidden")
    editing.wait_for_timeout(500)
    editing.click("#halt")
    until(editing, "#trouble", "⚠")
    editing.wait_for_selector("#run")
    assert "deadline" not in editing.inner_text("#trouble")
    write(editing, "SELECT 1 AS one")
    until(editing, "#trouble", "1 row")


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
    until(page, "#schema", "2 rows")
    ask(page, COUNT)
    page.wait_for_function("() => document.querySelector('#chat').innerText.match(/2 albums/g)?.length === 2")


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
