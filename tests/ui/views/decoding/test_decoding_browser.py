"""Guards, in a real browser, that the story of a decoding can be read where there is little room."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.browser import choose_file, chromium, open_page, side_tab, tab, until

if not os.environ.get("SQLAGENT_BROWSER"):
    pytest.skip("the tests in a browser are run by: make test-ui", allow_module_level=True)
assert chromium() is not None, "no chromium found: install it, or name it in CHROMIUM"

RECORDED = Path(__file__).parents[2] / "recorded" / "artists.jsonl"
WIDTHS = {"desktop": 1360, "phone": 390}
SCRIPT: dict[str, str] = {}


@pytest.fixture(params=list(WIDTHS), scope="module")
def page(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The decoding of a recorded step, opened once for a width."""
    context = browser.new_context(viewport={"width": WIDTHS[request.param], "height": 860})
    opened = open_page(context, address)
    if request.param == "phone":
        opened.wait_for_selector(".sidebar:not(.open)", state="attached")
        opened.click(".sidebar .toggle-button")
    side_tab(opened, "Chats")
    choose_file(opened, "#replay", RECORDED)
    until(opened, "#conversations", "Which artists")
    if request.param == "phone":
        opened.click(".sidebar .toggle-button")
    tab(opened, "Speed")
    opened.wait_for_selector(".passes.line .own")
    yield opened
    assert opened.troubles == []
    context.close()


def test_passes_fit_and_stay_columns_of_positions(page: Any) -> None:
    fits = "() => { const box = document.querySelector('.passes-box'); return box.scrollWidth <= box.clientWidth }"
    page.wait_for_function(fits)  # lines are broken anew after the window has its size
    lefts = page.eval_on_selector_all(
        ".passes.line span[data-at]", "cells => cells.map(e => [e.dataset.at, e.getBoundingClientRect().left])"
    )
    by_position: dict[str, set[int]] = {}
    for position, left in lefts:
        by_position.setdefault(position, set()).add(round(left))
    assert len(by_position) > 40 and all(len(places) == 1 for places in by_position.values())
    cells = page.locator(".passes:not(.line) span[data-at]").count()
    assert page.locator(".passes.line span[data-at]").count() == cells
    assert page.locator(".passes.line").count() > 2


def test_a_bracket_can_be_seen_and_its_words_fit(page: Any) -> None:
    """Gradio lost the border of a rule with a variable in it: there were brackets, 0 pixels thick."""
    bracket = page.locator(".passes.line .bracket").first
    assert bracket.evaluate("e => parseFloat(getComputedStyle(e).borderTopWidth)") >= 1
    words = page.locator(".passes.line > small:not(.where)")
    assert "guessed together, checked in one pass" in words.first.inner_text()
    assert words.first.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_a_cell_tells_the_history_of_its_token_and_the_window_refits_it(page: Any) -> None:
    page.locator(".passes.line .own").nth(2).click()
    until(page, "#decoding [data-history]", "model's own token of pass")
    assert page.locator("#decoding .tokens .chosen").count() == 1
    lines = page.locator(".passes.line").count()
    page.click("#decoding [data-expand]")
    if page.viewport_size["width"] > 1000:
        page.wait_for_function("lines => document.querySelectorAll('.passes.line').length < lines", arg=lines)
    page.wait_for_function("(box => box.scrollWidth <= box.clientWidth)(document.querySelector('.passes-box'))")


def test_a_replay_tells_each_pass_and_counts_both_ways(page: Any) -> None:
    page.eval_on_selector("[data-seek]", "e => { e.value = 1; e.dispatchEvent(new Event('input', {bubbles: true})) }")
    until(page, "#decoding [data-history]", "Pass 1: ")
    assert page.inner_text("[data-count-of=ours]") == "1"
    plain = int(page.inner_text("[data-count-of=plain]"))
    assert plain < 34
    page.click("#decoding [data-play]")
    until(page, "#decoding [data-play]", "Replay")
    assert int(page.inner_text("[data-count-of=plain]")) > plain
