"""Guards, in a real browser, that everything is there on return (a reload, a second tab, a restart, Back), and that one can go
on from an answer, however old it is."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.ui.browser import ask, choose_file, chromium, open_page, served, side_tab, until
from tests.ui.workspaces import scripted_workspace
from ui.session.run import Run

if not os.environ.get("SQLAGENT_BROWSER"):
    pytest.skip("the tests in a browser are run by: make test-ui", allow_module_level=True)
assert chromium() is not None, "no chromium found: install it, or name it in CHROMIUM"

COUNT, NAMES, SHOPS, UNCLEAR = "How many albums?", "Names of artists?", "How many shops?", "How many are called Home?"
PER_COUNTRY, TOP = "Artists for each country?", "The country with most artists?"
STARS = "show *all* albums <img src=x> by _title_"
SCRIPT = {
    COUNT: "SELECT COUNT(*) AS albums FROM albums",
    NAMES: "SELECT name, country FROM artists ORDER BY name",
    SHOPS: "SELECT COUNT(*) AS shops FROM shops",
    PER_COUNTRY: "SELECT country, COUNT(*) AS artists FROM artists GROUP BY country ORDER BY artists DESC",
    TOP: "SELECT country, COUNT(*) AS artists FROM artists GROUP BY country ORDER BY artists DESC LIMIT 1",
    f"{UNCLEAR} [Home refers to artists.name = 'Home']": "SELECT COUNT(*) AS artists FROM artists WHERE name = 'Home'",
    STARS: "SELECT title FROM albums ORDER BY title",
}
IDLE = "#question [data-testid=submit-button]"


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    opened = browser.new_context(viewport={"width": 1360, "height": 860})
    opened.grant_permissions(["clipboard-read", "clipboard-write"])
    yield opened
    opened.close()


def put(page: Any, question: str, told: str) -> None:
    ask(page, question)
    until(page, "#chat", told)
    page.wait_for_selector(IDLE)


def drop(page: Any, path: Path) -> None:
    if not page.locator("#files button").first.is_visible():
        page.click("#open > button")
    choose_file(page, "#files button", path)
    page.click("#incoming-alone")


def address_of(page: Any, has_chat: bool) -> str:
    page.wait_for_function("has => location.search.includes('chat=') === has", arg=has_chat)
    return str(page.url)


def test_files_and_answers_survive_a_reload_a_second_tab_and_a_restart(context: Any, tmp_path: Path) -> None:
    """A reload lost the file, the conversation about it was locked, and the next question went back into the box."""
    shops = tmp_path / "shops.csv"
    shops.write_text("shop_id,city\n1,Paris\n2,Rome\n")
    with served(scripted_workspace(tmp_path / "house", SCRIPT), token="t" * 32) as address:
        page = open_page(context, address)
        drop(page, shops)
        until(page, "#schema", "shops")
        page.reload()
        until(page, "#schema", "shops")  # nothing was asked of it yet
        put(page, SHOPS, "2 shops.")
        where = address_of(page, True)
        page.reload()
        until(page, "#chat", "2 shops.")
        until(page, "#schema", "shops")
        page.click("#example") if page.locator("#example").is_visible() else page.click("#open > button")
        page.click("#example")
        until(page, "#schema", "albums")
        second = open_page(context, where)
        until(second, "#chat", "2 shops.")
        until(second, "#schema", "shops")
        put(second, SHOPS, "2 shops.")
        port = urlsplit(address).port
        second.close()
        page.close()
    with served(scripted_workspace(tmp_path / "house", SCRIPT), token="t" * 32, port=port) as address:
        page = open_page(context, where)  # as a bookmark, without the token
        until(page, "#chat", "2 shops.")
        until(page, "#schema", "shops")
        put(page, SHOPS, "2 shops.")
        side_tab(page, "Data")
        page.click("#open > button")
        page.click("#forget")
        page.wait_for_selector("#forget", state="hidden")
        assert page.troubles == []


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(scripted_workspace(tmp_path_factory.mktemp("workspace"), SCRIPT)) as where:
        yield where


@pytest.fixture
def page(context: Any, address: str) -> Iterator[Any]:
    opened = open_page(context, address)
    yield opened
    assert opened.troubles == []
    opened.close()


def test_each_conversation_has_an_address_and_back_works(page: Any, context: Any) -> None:
    """Back left the page."""
    put(page, COUNT, "4 albums.")
    put(page, NAMES, "3 artists:")
    first = address_of(page, True)
    side_tab(page, "Chats")
    page.click("#new")
    page.wait_for_function("() => !document.querySelector('#chat .user')")
    address_of(page, False)
    put(page, PER_COUNTRY, "France")
    assert address_of(page, True) != first
    page.go_back()
    page.wait_for_function("() => !document.querySelector('#chat .user')")
    page.go_back()
    until(page, "#chat", "4 albums.")
    assert page.url == first
    page.go_forward()
    page.wait_for_function("() => !document.querySelector('#chat .user')")
    page.go_forward()
    until(page, "#chat .user", PER_COUNTRY)
    page.goto(first)
    page.wait_for_selector("#link-1")
    page.click("#link-1")
    assert page.evaluate("() => navigator.clipboard.readText()") == f"{first}#2"


def test_an_old_answer_can_be_gone_on_from(page: Any) -> None:
    """Choices vanished with the next question."""
    ask(page, UNCLEAR)
    until(page, "#chat", "“Home” as the artist's name, or the album's title?")
    put(page, COUNT, "4 albums.")
    page.click('#chat button:has-text("the artist\'s name")')
    until(page, "#chat", "1 artist.")


def test_follow_ups_are_suggested_and_answered(page: Any) -> None:
    put(page, PER_COUNTRY, "France")
    page.click("#chat button.further:has-text('As shares of the whole')")
    until(page, "#chat", "66.7")
    page.wait_for_selector(IDLE)
    put(page, TOP, "France")
    page.locator("#chat button.further:has-text('The other end of the list')").click()
    page.wait_for_function("() => [...document.querySelectorAll('#chat .bot')].at(-1).innerText.includes('Spain')")


def test_an_answer_can_be_kept(page: Any) -> None:
    put(page, NAMES, "3 artists:")
    page.click("#star-0")
    until(page, "#star-0", "★ Kept")
    page.reload()
    until(page, "#star-0", "★ Kept")
    page.click("#star-0")
    until(page, "#star-0", "☆ Keep")


def test_a_question_is_shown_to_the_letter_and_changed_in_the_composer(page: Any) -> None:
    """Stars were lost and an image stood there broken; the box to change it was 170 pixels wide."""
    put(page, STARS, "Away")
    assert page.inner_text("#chat .said") == STARS and page.locator("#chat .user img").count() == 0
    page.click("#edit-0")
    until(page, "#notice", "question 1")
    assert page.input_value("#question textarea") == STARS
    page.press("#question textarea", "Escape")
    page.wait_for_function("() => !document.querySelector('#question textarea').value")
    page.click("#edit-0")
    until(page, "#notice", "question 1")
    put(page, COUNT, "4 albums.")
    assert page.locator("#chat .said").all_inner_texts() == [COUNT]
    side_tab(page, "Chats")
    until(page, "#conversations", "show")


def test_a_question_is_in_sight_before_the_server_has_it(page: Any) -> None:
    """On a busy machine nothing happened for three seconds after Enter."""
    held: list[Any] = []
    is_slow = True
    page.route("**/queue/join*", lambda route: held.append(route) if is_slow else route.continue_())
    ask(page, COUNT)
    until(page, ".sending", COUNT)
    is_slow = False
    for each in held:
        each.continue_()
    until(page, "#chat", "4 albums.")
    assert page.locator(".sending").count() == 0


def test_rows_are_there_before_the_second_look_is_over(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """People waited for the second look at a finished result."""
    import time

    shown = Run._show_early

    def then_wait(run: Run, toolbox: Any) -> None:
        had = run.kept.view.turns[-1].early
        shown(run, toolbox)
        if had:
            time.sleep(1.5)

    monkeypatch.setattr(Run, "_show_early", then_wait)
    ask(page, NAMES)
    until(page, "#chat .early", "Ada")
    assert (
        "Checking other readings" in page.inner_text("#chat")
        and page.locator("#question [data-testid=stop-button]").count()
    )
    page.wait_for_selector(IDLE)
    until(page, "#chat", "3 artists:")
