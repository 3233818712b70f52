"""Guards, in a real browser, that the page can be used by ear and on a phone."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.browser import ask, chromium, open_browser, open_page, served, side_tab, tab, until
from tests.ui.workspaces import scripted_workspace

if not os.environ.get("SQLAGENT_BROWSER"):
    pytest.skip("the tests in a browser are run by: make test-ui", allow_module_level=True)
assert chromium() is not None, "no chromium found: install it, or name it in CHROMIUM"

NAMES = "Names of artists?"
TABS = ("Result", "Chart", "SQL", "Savings", "Decoding", "Race")
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


@pytest.fixture
def served_at(tmp_path: Path) -> Iterator[tuple[Any, str]]:
    workspace = scripted_workspace(tmp_path, {NAMES: "SELECT name, country FROM artists ORDER BY name"}, pause_s=0.3)
    with open_browser() as browser, served(workspace) as address:
        yield browser, address


def test_everything_that_can_be_used_has_a_name(served_at: tuple[Any, str]) -> None:
    browser, address = served_at
    page = open_page(browser.new_context(viewport={"width": 1360, "height": 860}), address)
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


def test_on_a_phone_the_question_box_stays_in_view(served_at: tuple[Any, str]) -> None:
    browser, address = served_at
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
