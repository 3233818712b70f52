"""Guards, in a real browser, what is written and read in the panel: SQL of one's own, the table, the tabs."""

import os
import time
from typing import Any

import pytest

from tests.ui.browser import ask, chromium, tab, until

if not os.environ.get("SQLAGENT_BROWSER"):
    pytest.skip("the tests in a browser are run by: make test-ui", allow_module_level=True)
assert chromium() is not None, "no chromium found: install it, or name it in CHROMIUM"

NAMES = "Names of artists?"
MANY, WIDE = "Many?", "Wide?"
SCRIPT = {
    NAMES: "SELECT name, country FROM artists ORDER BY name",
    MANY: "SELECT 'n' || i AS word, i AS id, CASE WHEN i > 0 THEN (i * 7919) % 1000 - 500 END AS n FROM range(1000) AS t(i)",
    WIDE: f"SELECT 'the name of thing ' || i AS name, {', '.join(f'1 AS t{n}' for n in range(9))} FROM range(30) AS t(i)",
}
OFFERED = "#completions:not([hidden]) li"


def new_query(page: Any) -> None:
    """An empty editor that has the focus."""
    page.click("#new-query")
    page.wait_for_function("document.activeElement.closest('#sql')")


def statement(page: Any) -> str:
    return "\n".join(page.locator("#sql .cm-line").all_inner_texts())


def test_sql_is_run_before_anything_was_asked(page: Any) -> None:
    new_query(page)
    page.keyboard.insert_text("SELECT title, year FROM albums WHERE year > 2014")
    page.keyboard.press("ControlOrMeta+Enter")
    until(page, "#trouble", "3 rows")
    until(page, "#trouble table", "Low")
    tab(page, "Result")
    until(page, "#caption", "3 rows")
    tab(page, "Chart")
    page.wait_for_selector("#chart-kind")
    ask(page, NAMES)
    until(page, "#caption", "3 rows")
    until(page, "#table", "France")
    assert "SQL of your own" not in page.input_value("#turn input"), "the answer's rows are shown"
    page.click("#turn input")
    page.click("[role=option]:has-text('SQL of your own')")
    tab(page, "SQL")
    until(page, "#sql", "2014")


def test_an_error_of_ones_own_sql_names_and_marks_its_line(page: Any) -> None:
    new_query(page)
    page.keyboard.insert_text("SELECT title\nFROM albums\nWHERE yeer > 2014")
    page.click("#run")
    until(page, "#trouble", "yeer")
    until(page, "#trouble", "Line 3:")
    colour = "e => getComputedStyle(e).backgroundColor"
    page.wait_for_function(f"({colour})(document.querySelectorAll('#sql .cm-line')[2]) !== 'rgba(0, 0, 0, 0)'")
    assert page.locator("#sql .cm-line").first.evaluate(colour) == "rgba(0, 0, 0, 0)"


def test_names_are_offered_and_taken_by_keyboard(page: Any) -> None:
    new_query(page)
    page.keyboard.type("select ti")
    until(page, OFFERED, "title")
    page.keyboard.press("Escape")
    page.keyboard.type(" from alb")
    until(page, OFFERED, "albums")
    named = page.get_attribute("#sql .cm-content", "aria-activedescendant")
    assert page.inner_text(f"#{named}").startswith("albums")
    page.keyboard.press("Enter")
    page.keyboard.type(" a where a.")
    until(page, OFFERED, "title")
    assert page.locator(OFFERED).count() == 4, "the columns of albums, by its alias"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert statement(page) == "select ti from albums a where a.title"
    page.keyboard.type(" = 'al")
    page.wait_for_selector(OFFERED, state="detached")
    page.keyboard.press("ControlOrMeta+z")


def test_what_is_offered_can_be_left(page: Any) -> None:
    new_query(page)
    page.keyboard.type("sel")
    until(page, OFFERED, "select")
    page.keyboard.press("Escape")
    page.wait_for_selector(OFFERED, state="detached")
    page.keyboard.press("Enter")
    assert statement(page).startswith("sel\n"), "Enter is a new line again"
    page.keyboard.press("Control+ ")
    until(page, OFFERED, "albums")
    page.locator(f"{OFFERED}:has-text('albums')").first.click()
    assert "albums" in statement(page) and page.evaluate("!!document.activeElement.closest('#sql')")


def amounts(page: Any) -> list[str]:
    return [str(text) for text in page.locator("#table [role=gridcell][data-col='2']").all_inner_texts()[:3]]


def test_a_heading_sorts_the_table_and_says_so(page: Any) -> None:
    """By raw numbers: as texts, 99 comes after 499. What is empty comes last either way."""
    ask(page, MANY)
    until(page, "#caption", "1,000 rows")
    page.wait_for_selector("#table th[data-heading='2'][aria-sort=none]")
    began = time.perf_counter()
    page.click("#table th[data-heading='2']")
    page.wait_for_selector("#table th[data-heading='2'][aria-sort=ascending]")
    page.wait_for_function("document.querySelector('#table [role=gridcell][data-col=\"2\"]').innerText === '-499'")
    print(f"1,000 rows are sorted in {time.perf_counter() - began:.2f} s")
    assert amounts(page) == ["-499", "-498", "-497"]
    page.keyboard.press("Enter")
    page.wait_for_selector("#table th[data-heading='2'][aria-sort=descending]")
    page.wait_for_function("document.querySelector('#table [role=gridcell][data-col=\"2\"]').innerText === '499'")
    assert amounts(page) == ["499", "498", "497"]
    page.keyboard.press("ArrowLeft")
    page.keyboard.press(" ")
    page.wait_for_selector("#table th[data-heading='1'][aria-sort=ascending]")
    assert page.locator("#table th[tabindex='0']").count() == 1, "the headings are one tab stop"
    ask(page, NAMES)
    until(page, "#caption", "3 rows")
    page.wait_for_function("!document.querySelector('#table th[aria-sort$=scending]')")


def test_a_row_of_tabs_is_one_tab_stop(page: Any) -> None:
    ask(page, NAMES)
    until(page, "#caption", "3 rows")
    page.wait_for_selector("#tabs [role=tab][aria-selected=true][tabindex='0']")
    assert (
        page.locator("#tabs [role=tab][tabindex='0']").count()
        == page.locator("#side [role=tab][tabindex='0']").count()
        == 1
    )
    page.focus("#tabs [role=tab][aria-selected=true]")
    focused = "() => [document.activeElement.innerText.trim(), document.activeElement.ariaSelected]"
    for key, name in (("ArrowRight", "Chart"), ("End", "Speed"), ("ArrowRight", "Result"), ("ArrowLeft", "Speed")):
        page.keyboard.press(key)
        page.wait_for_function(f"(name) => String(({focused})()) === name + ',true'", arg=name)
    page.keyboard.press("Shift+Tab")
    assert not page.evaluate("!!document.activeElement.closest('#tabs [role=tablist]')")


def test_the_focus_outlives_what_is_drawn_anew(page: Any) -> None:
    ask(page, NAMES)
    until(page, "#caption", "3 rows")
    tab(page, "SQL")
    until(page, "#sql", "ORDER BY")
    page.focus("#run")
    page.keyboard.press("Enter")
    until(page, "#trouble", "3 rows")
    page.wait_for_function("document.activeElement.id === 'run'")
    page.focus("#chat #star-0")
    page.keyboard.press("Enter")
    until(page, "#chat", "★")
    page.wait_for_function("document.activeElement.id === 'star-0'")


def test_a_click_on_an_earlier_answer_brings_its_rows(page: Any) -> None:
    ask(page, MANY)
    until(page, "#caption", "1,000 rows")
    ask(page, NAMES)
    until(page, "#caption", "3 rows")
    page.locator("#chat .bot .card").first.click(position={"x": 200, "y": 60})
    until(page, "#caption", "1,000 rows")


def test_the_first_column_stays_when_the_others_are_scrolled(page: Any) -> None:
    ask(page, WIDE)
    until(page, "#caption", "30 rows")
    first = page.wait_for_selector("#table [role=gridcell][data-col='0']")
    before = first.bounding_box()["x"]
    page.eval_on_selector("#table .virtual-table-viewport", "e => { e.scrollLeft = 300 }")
    page.wait_for_function("document.querySelector('#table [data-col=\"1\"]').getBoundingClientRect().x < 900")
    assert first.bounding_box()["x"] == before
