"""Guards the page in a real browser: everything a person does with it. Run by `make test-ui`.

Guards, in a real browser, how an answer looks: numbers under each other, bars, doubts in sight, charts that can be read.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.browser import ask, choose_file, chromium, open_page, served, side_tab, tab, until
from tests.ui.views.test_views import TEXT, contrast
from tests.ui.workspaces import scripted_workspace, tiny_workspace

if not os.environ.get("SQLAGENT_BROWSER"):
    pytest.skip("the tests in a browser are run by: make test-ui", allow_module_level=True)
assert chromium() is not None, "no chromium found: install it, or name it in CHROMIUM"

COUNT, NAMES, SLOW, UNKNOWN = "How many albums?", "Names of artists?", "Everything, slowly?", "When were they released?"
FOLLOW_UP = "only those from France"
UNCLEAR = "How many are called Home?"
SCRIPT = {
    COUNT: "SELECT COUNT(*) AS albums FROM albums",
    NAMES: "SELECT name, country FROM artists ORDER BY name",
    FOLLOW_UP: "SELECT COUNT(*) AS french FROM artists WHERE country = 'France'",
    SLOW: "SELECT " + ", ".join(f"title AS t{i}" for i in range(400)) + " FROM albums",
    UNKNOWN: "SELECT released FROM albums",
    f"{UNCLEAR} [Home refers to artists.name = 'Home']": "SELECT COUNT(*) AS artists FROM artists WHERE name = 'Home'",
    "How many shops?": "SELECT COUNT(*) AS shops FROM shops",
}
PAUSE_S = 0.05


def test_a_question_gives_rows_sql_and_figures(page: Any) -> None:
    ask(page, NAMES)
    until(page, "#caption", "3 rows")
    until(page, "#chat", "Ada")
    tab(page, "SQL")
    until(page, "#sql", "ORDER BY")
    until(page, "#words", "Sorted by name")
    tab(page, "Speed")
    until(page, "#savings", "writing SQL")


def test_stop_ends_the_writing(page: Any) -> None:
    ask(page, SLOW)
    until(page, "#chat", "Writing SQL")
    page.click("#question [data-testid=stop-button]")
    until(page, "#chat", "Stopped")
    page.wait_for_selector("#question [data-testid=submit-button]")
    ask(page, COUNT)
    until(page, "#chat", "4 albums.")


def test_sql_can_be_changed_and_run_but_not_to_write(page: Any) -> None:
    ask(page, COUNT)
    until(page, "#caption", "1 row")
    tab(page, "SQL")
    until(page, "#sql", "COUNT")
    for sql, told in (("SELECT title FROM albums", "4 rows"), ("DROP TABLE albums", "refused")):
        page.click("#sql .cm-content")
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.insert_text(sql)
        page.click("#run")
        until(page, "#trouble", told)


def test_an_unclear_question_is_asked_back_and_a_click_settles_it(page: Any) -> None:
    ask(page, UNCLEAR)
    until(page, "#chat", "“Home” as the artist's name, or the album's title?")
    assert page.locator("#chat button:has-text('does not continue')").count() == 0
    page.click("#chat button:has-text('the artist')")
    until(page, "#chat", "1 artist.")
    assert [each.strip() for each in page.locator("#chat .user .message").all_inner_texts()][-1] == "the artist's name"


def test_a_follow_up_says_what_it_continues_and_a_click_asks_it_afresh(page: Any) -> None:
    ask(page, NAMES)
    until(page, "#caption", "3 rows")
    ask(page, FOLLOW_UP)
    until(page, "#chat .chip", "continues question 1")
    until(page, "#caption", "2 rows")
    page.click("#chat button.chip:has-text('✕')")
    until(page, "#caption", "1 row")
    assert page.locator("#chat .chip").count() == 1, "the switch stays where it is"


def test_an_unknown_name_becomes_a_choice(page: Any) -> None:
    ask(page, UNKNOWN)
    page.click("#chat button:has-text('released means year')")
    until(page, "#chat", "2014, 2015, 2015, 2017")
    until(page, "#caption", "4 rows")


def test_two_people_see_their_own_data_and_files_open(browser: Any, page: Any, address: str, tmp_path: Path) -> None:
    (tmp_path / "shops.csv").write_text("shop_id,city\n1,Paris\n2,Rome\n")
    other = browser.new_context()
    bo = open_page(other, address)
    page.click("#open button")
    choose_file(page, "#files button", tmp_path / "shops.csv")
    page.click("#incoming-alone")
    until(page, "#schema", "shops")
    ask(page, "How many shops?")
    ask(bo, COUNT)
    until(page, "#chat", "2 shops.")
    until(bo, "#chat", "4 albums.")
    assert "shops" not in bo.inner_text("#schema")
    other.close()


def test_a_conversation_is_there_after_a_reload(page: Any) -> None:
    ask(page, NAMES)
    until(page, "#caption", "3 rows")
    page.reload()
    until(page, "#chat", NAMES)
    until(page, "#caption", "3 rows")
    side_tab(page, "Chats")
    until(page, "#conversations", NAMES)


def test_a_conversation_that_was_deleted_comes_back(page: Any) -> None:
    ask(page, NAMES)
    until(page, "#caption", "3 rows")
    side_tab(page, "Chats")
    until(page, "#conversations", NAMES)
    page.click("#delete")
    until(page, "#restore", NAMES)
    assert NAMES not in page.inner_text("#conversations") + page.inner_text("#chat")
    page.click("#restore")
    until(page, "#conversations", NAMES)
    until(page, "#caption", "3 rows")
    page.wait_for_selector("#restore", state="hidden")


def test_a_conversation_is_renamed_and_pinned_and_its_name_is_no_markup(page: Any) -> None:
    ask(page, NAMES)
    until(page, "#caption", "3 rows")
    side_tab(page, "Chats")
    page.fill("#name input", "<img src=x> *All* artists")
    page.press("#name input", "Enter")
    until(page, "#conversations", "<img src=x> *All* artists")
    assert page.locator("#conversations img").count() == 0
    page.click("#pin")
    until(page, "#pin", "Unpin")
    page.click("#new")
    ask(page, COUNT)
    until(page, "#caption", "1 row")
    until(page, "#conversations label:first-of-type", "▴ <img src=x> *All* artists")
    page.reload()
    until(page, "#chat", COUNT)
    side_tab(page, "Chats")
    until(page, "#conversations label:first-of-type", "▴ <img src=x> *All* artists")


def test_a_recording_plays_back_with_its_rounds(page: Any) -> None:
    side_tab(page, "Chats")
    choose_file(page, "#replay", Path(__file__).parents[1] / "recorded" / "albums.jsonl")
    until(page, "#chat", "in each country")
    tab(page, "Speed")
    until(page, "#decoding", "fewer than token by token")
    page.eval_on_selector("[data-seek]", "e => { e.value = 1; e.dispatchEvent(new Event('input', {bubbles: true})) }")
    assert page.locator("#decoding .tokens .tok.later").count() > 0
    assert page.locator("#decoding .passes .later").count() > 0
    page.click("#decoding [data-play]")
    until(page, "#decoding [data-history]", "guessed together")
    until(page, "#decoding [data-play]", "Replay")
    page.click("#decoding .tokens .tok >> nth=0")
    until(page, "#decoding [data-history]", "Pass 1")
    tab(page, "Speed")
    until(page, "#savings", "of the model instead of")


def test_methods_race_on_the_newest_step(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a plan that is written twice only the second writing can be measured, so this one is written once."""
    monkeypatch.setattr("agent.nodes.write.is_doubtful", lambda *_: False)
    with served(tiny_workspace(tmp_path)) as address:
        page = open_page(browser.new_context(), address)
        ask(page, COUNT)
        until(page, "#chat", "of the model instead of")
        tab(page, "Speed")
        until(page, "#savings", "of the model instead of")
        page.click("#measure")
        until(page, "#savings", "also decoded token by token, and timed")
        page.wait_for_selector("#measure", state="hidden")
        page.click("#races > button")
        for chosen in ("copies from", "ours"):
            page.click(f"#race-methods label:has-text('{chosen}')")
        page.click("#race")
        until(page, "#race-view .trouble", "two or three methods")
        assert page.locator(".toast-body, .block .error").count() == 0
        for chosen in ("copies from", "ours"):
            page.click(f"#race-methods label:has-text('{chosen}')")
        page.click("#race")
        until(page, "#race-view .verdict", "identical text")
        assert sorted(page.locator("#race-view .place").all_inner_texts()) == ["1st", "2nd", "3rd"]
        page.close()


SALES = "Sales in each year?"
OVER_TIME = "Sales over the years?"
ANSWERS = {
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
def address_of_answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(scripted_workspace(tmp_path_factory.mktemp("workspace"), ANSWERS)) as where:
        yield where


@pytest.fixture(params=["light", "dark"])
def shown(browser: Any, address_of_answers: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1360, "height": 860}, color_scheme=request.param)
    opened = open_page(context, address_of_answers)
    yield opened
    assert opened.troubles == []
    context.close()


def right_edges(page: Any, selector: str) -> set[int]:
    """Where the texts of the elements end, in whole pixels."""
    edge = "e => { const r = document.createRange(); r.selectNodeContents(e); return r.getBoundingClientRect().right }"
    return {round(element.evaluate(edge)) for element in page.query_selector_all(selector)}


def test_numbers_stand_under_each_other_and_say_what_they_are(shown: Any) -> None:
    ask(shown, SALES)
    until(shown, "#caption", "3 rows")
    until(shown, "#table .body-cell", "2,500")
    number = "#table [data-col='1'] span.text"
    assert shown.inner_text("#table [data-heading='0']").split() == ["year"]
    assert len(right_edges(shown, number)) == 1
    assert (
        right_edges(shown, "#table [data-heading='1'] span.text").pop()
        > right_edges(shown, "[data-heading='0'] span.text").pop()
    )
    assert shown.locator("#table [data-col='0'][role=gridcell]").all_inner_texts() == [
        "2015",
        "2017",
        "2014",
    ]


def test_an_answer_has_bars_where_they_say_more(shown: Any) -> None:
    ask(shown, SALES)
    until(shown, "#caption", "3 rows")
    shown.wait_for_selector("#chat td .bar")
    boxes = [bar.bounding_box() for bar in shown.query_selector_all("#chat td .bar")]
    widths = [box["width"] for box in boxes if box is not None]  # those of the tab in sight
    assert len(widths) == 3 and widths == sorted(widths, reverse=True) and widths[0] > 2 * widths[-1]


@pytest.mark.parametrize("width", [1360, 390])
def test_numbers_over_time_become_a_line_that_fits(shown: Any, width: int) -> None:
    shown.set_viewport_size({"width": width, "height": 860})
    ask(shown, OVER_TIME)
    until(shown, "#chat .line-chart figcaption", "1 gap: no number.")
    line = shown.locator("#chat .line-chart svg")
    box, chat = line.bounding_box(), shown.locator("#chat").bounding_box()
    assert box["width"] > 250 and box["x"] + box["width"] <= chat["x"] + chat["width"]
    stroke = line.locator("polyline").first.evaluate("e => getComputedStyle(e).stroke")
    assert stroke != "none" and line.locator("polyline").count() == 2


def test_what_is_doubtful_is_in_sight(shown: Any, tmp_path: Path) -> None:
    """It once was a tooltip, which no phone shows."""
    (tmp_path / "told.jsonl").write_text(DOUBTFUL)
    side_tab(shown, "Chats")
    choose_file(shown, "#replay", tmp_path / "told.jsonl")
    until(shown, "#chat .doubts li", "No key connects them.")
    assert shown.locator("#chat .doubts").is_visible()


def test_a_charts_words_can_be_read(shown: Any) -> None:
    ask(shown, SALES)
    until(shown, "#caption", "3 rows")
    tab(shown, "Chart")
    word = shown.wait_for_selector("#plot svg.marks text")
    behind = shown.evaluate(
        "() => getComputedStyle(document.body).getPropertyValue('--background-fill-primary')"
    ).strip()
    ink = "#{:02x}{:02x}{:02x}".format(*map(int, word.evaluate(_RGB)))
    assert re.fullmatch(r"#[0-9a-f]{6}", behind, re.IGNORECASE) or behind == "white"
    assert contrast(ink, "#ffffff" if behind == "white" else behind) >= TEXT


def test_the_first_questions_stand_under_the_invitation(shown: Any) -> None:
    heading, first = (
        shown.wait_for_selector("#chat .placeholder"),
        shown.wait_for_selector("#chat .example"),
    )
    gap = first.bounding_box()["y"] - heading.evaluate(_BELOW)
    assert 0 <= gap < 60
    assert shown.locator("#question").evaluate(_BELOW) > 820, "the composer is at the bottom"
