"""Guards, in a real browser, how an answer looks: numbers under each other, bars, doubts in sight, charts that can be read."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.browser import ask, choose_file, chromium, open_browser, open_page, served, side_tab, tab, until
from tests.ui.views.test_contrast import TEXT, contrast
from tests.ui.workspaces import scripted_workspace

if not os.environ.get("SQLAGENT_BROWSER"):
    pytest.skip("the tests in a browser are run by: make test-ui", allow_module_level=True)
assert chromium() is not None, "no chromium found: install it, or name it in CHROMIUM"

SALES = "Sales in each year?"
OVER_TIME = "Sales over the years?"
SCRIPT = {
    OVER_TIME: "SELECT 2010 + i AS year, CASE WHEN i = 6 THEN NULL ELSE i * i + 17 END AS sold FROM range(14) AS t(i)",
    SALES: "SELECT SUM(album_id) * SUM(album_id) * 100 AS sold, year FROM albums GROUP BY year ORDER BY sold DESC",
}
DOUBTFUL = (
    '{"event": "asked", "question": "Who sold most?"}\n'
    '{"event": "answered", "row_count": 1, "answer": {"sql": "SELECT 1", "error": null, "dialect": "duckdb", '
    '"columns": ["a"], "rows": [[1]], "answer": "A: 1.", "probably_wrong": true, "doubts": ["No key connects them."]}}\n'
)
_RGB = (
    "e => getComputedStyle(e)[e.ownerSVGElement ? 'fill' : 'backgroundColor'].match(/[0-9.]+/g).slice(0, 3).map(Number)"
)
_BELOW = "e => e.getBoundingClientRect().bottom"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(scripted_workspace(tmp_path_factory.mktemp("workspace"), SCRIPT)) as where:
        yield where


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(params=["light", "dark"])
def page(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1360, "height": 860}, color_scheme=request.param)
    opened = open_page(context, address)
    yield opened
    assert opened.troubles == []
    context.close()


def right_edges(page: Any, selector: str) -> set[int]:
    """Where the texts of the elements end, in whole pixels."""
    edge = "e => { const r = document.createRange(); r.selectNodeContents(e); return r.getBoundingClientRect().right }"
    return {round(element.evaluate(edge)) for element in page.query_selector_all(selector)}


def test_numbers_stand_under_each_other_and_say_what_they_are(page: Any) -> None:
    ask(page, SALES)
    until(page, "#caption", "3 rows")
    until(page, "#table .body-cell", "2,500")
    number = "#table [data-col='1'] span.text"
    assert page.inner_text("#table [data-heading='0']").split() == ["year"]
    assert len(right_edges(page, number)) == 1
    assert (
        right_edges(page, "#table [data-heading='1'] span.text").pop()
        > right_edges(page, "[data-heading='0'] span.text").pop()
    )
    assert page.locator("#table [data-col='0'][role=gridcell]").all_inner_texts() == ["2015", "2017", "2014"]


def test_an_answer_has_bars_where_they_say_more(page: Any) -> None:
    ask(page, SALES)
    until(page, "#caption", "3 rows")
    page.wait_for_selector("#chat td .bar")
    widths = [bar.bounding_box()["width"] for bar in page.query_selector_all("#chat td .bar")]
    assert len(widths) == 3 and widths == sorted(widths, reverse=True) and widths[0] > 2 * widths[-1]


@pytest.mark.parametrize("width", [1360, 390])
def test_numbers_over_time_become_a_line_that_fits(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 860})
    ask(page, OVER_TIME)
    until(page, "#chat .line-chart figcaption", "1 gap: no number.")
    line = page.locator("#chat .line-chart svg")
    box, chat = line.bounding_box(), page.locator("#chat").bounding_box()
    assert box["width"] > 250 and box["x"] + box["width"] <= chat["x"] + chat["width"]
    stroke = line.locator("polyline").first.evaluate("e => getComputedStyle(e).stroke")
    assert stroke != "none" and line.locator("polyline").count() == 2


def test_what_is_doubtful_is_in_sight(page: Any, tmp_path: Path) -> None:
    """It once was a tooltip, which no phone shows."""
    (tmp_path / "told.jsonl").write_text(DOUBTFUL)
    side_tab(page, "Chats")
    choose_file(page, "#replay", tmp_path / "told.jsonl")
    until(page, "#chat .doubts li", "No key connects them.")
    assert page.locator("#chat .doubts").is_visible()


def test_a_charts_words_can_be_read(page: Any) -> None:
    ask(page, SALES)
    until(page, "#caption", "3 rows")
    tab(page, "Chart")
    word = page.wait_for_selector("#plot svg.marks text")
    behind = page.evaluate(
        "() => getComputedStyle(document.body).getPropertyValue('--background-fill-primary')"
    ).strip()
    ink = "#{:02x}{:02x}{:02x}".format(*map(int, word.evaluate(_RGB)))
    assert re.fullmatch(r"#[0-9a-f]{6}", behind, re.IGNORECASE) or behind == "white"
    assert contrast(ink, "#ffffff" if behind == "white" else behind) >= TEXT


def test_the_first_questions_stand_under_the_invitation(page: Any) -> None:
    heading, first = page.wait_for_selector("#chat .placeholder p"), page.wait_for_selector("#chat .example")
    gap = first.bounding_box()["y"] - heading.evaluate(_BELOW)
    assert 0 <= gap < 60
    assert page.locator("#question").evaluate(_BELOW) > 820, "the composer is at the bottom"
