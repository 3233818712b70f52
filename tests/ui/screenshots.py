"""Pictures of the page's main states: most from a recorded conversation, without a model.

`python -m tests.ui.screenshots FOLDER [desktop-light ...]`
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.ui.browser import ask, choose_file, open_browser, open_page, served, settle, side_tab, tab, until
from tests.ui.measure import embedded_workspace
from tests.ui.workspaces import scripted_workspace

RECORDED = Path(__file__).parent / "recorded" / "albums.jsonl"
SIZES = {
    "desktop": {"width": 1360, "height": 860},
    "tablet": {"width": 1024, "height": 768},
    "phone": {"width": 390, "height": 844},
}
LISBON = "How many are in Lisbon?"
UNCLEAR = "How many are called Home?"
NAMES, FOLLOW_UP = "Show the names of all artists", "only those from France"
SCRIPT = {NAMES: "SELECT name, country FROM artists ORDER BY name"}
SALES = """Sales 2023;;;;
made by;Ann;;;

item;price;sold;share;note
pen;1.234,50 €;13.02.2023;12 %;1,5
ink;1.000,00 €;01.03.2023;5 %;n/a
nib;2,50 €;02.03.2023;7 %;soon
"""
TABS = ("Result", "Chart", "SQL", "Speed")


def take(page: Any, folder: Path, name: str) -> None:
    settle()
    page.screenshot(path=str(folder / f"{name}.png"))
    print(folder / f"{name}.png", flush=True)


def preview(page: Any, folder: Path, name: str) -> None:
    """A file that is not taken in."""
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "sales.csv"
        file.write_text(SALES, encoding="utf-8")
        page.click("#open > button")
        choose_file(page, "#files button", file)
        until(page, "#incoming-view", "As it is read")
    take(page, folder, name)
    page.click("#incoming-cancel")


def desktop(page: Any, folder: Path, scheme: str, size: str = "desktop") -> None:
    """Empty, asked back, then every tab of a recorded answer."""
    settle(4)  # until the replay is over
    take(page, folder, f"{size}-{scheme}-empty")
    preview(page, folder, f"{size}-{scheme}-preview")
    ask(page, UNCLEAR)
    until(page, "#chat", "as it stands")
    take(page, folder, f"{size}-{scheme}-clarify")
    ask(page, NAMES)
    until(page, "#caption", "3 rows")
    ask(page, FOLLOW_UP)
    until(page, "#chat .chip", "continues")
    take(page, folder, f"{size}-{scheme}-follow-up")
    side_tab(page, "Chats")
    choose_file(page, "#replay", RECORDED)
    until(page, "#chat", "in each country")
    for name in TABS:
        tab(page, name)
        take(page, folder, f"{size}-{scheme}-{name.lower()}")
    side_tab(page, "Settings")
    take(page, folder, f"{size}-{scheme}-settings")


def tablet(page: Any, folder: Path, scheme: str) -> None:
    """The same where the panel lies below the chat."""
    desktop(page, folder, scheme, "tablet")


def phone(page: Any, folder: Path, scheme: str) -> None:
    """The chat, the sidebar over it, and the panel below it."""
    settle(4)
    take(page, folder, f"phone-{scheme}-empty")
    if page.locator(".sidebar.open").count() == 0:
        page.click(".sidebar .toggle-button")
    preview(page, folder, f"phone-{scheme}-preview")
    side_tab(page, "Chats")
    choose_file(page, "#replay", RECORDED)
    until(page, "#conversations", "How many customers")
    take(page, folder, f"phone-{scheme}-sidebar")
    page.click(".sidebar .toggle-button")
    take(page, folder, f"phone-{scheme}-chat")
    tab(page, "Speed")
    for name in ("Savings", "Decoding"):
        page.eval_on_selector(f"#{name.lower()}", "e => e.scrollIntoView()")
        take(page, folder, f"phone-{scheme}-{name.lower()}")


def race(browser: Any, folder: Path, scheme: str) -> None:
    """By the embedded model: README's pictures of an answer and of asking back, and three methods on the same step.

    A question comes before them, since the first one after the start pays for the start.
    """
    with TemporaryDirectory() as scratch, served(embedded_workspace(Path(scratch))) as address:
        page = open_page(browser.new_context(), address)
        ask(page, "How many artists are there for each country?")
        until(page, "#chat", "passes of the model instead of")
        page = open_page(browser.new_context(viewport=SIZES["desktop"], color_scheme=scheme), address)
        ask(page, LISBON)
        until(page, "#chat", "“Lisbon” as")
        take(page, folder, f"desktop-{scheme}-chat-clarify")
        page = open_page(browser.new_context(viewport=SIZES["desktop"], color_scheme=scheme), address)
        ask(page, "How many customers are there in each country?")
        until(page, "#chat", "passes of the model instead of")
        tab(page, "Chart")
        take(page, folder, f"desktop-{scheme}-chat-answer")
        tab(page, "Speed")
        page.click("#measure")
        until(page, "#savings", "also decoded token by token, and timed")
        take(page, folder, f"desktop-{scheme}-measured")
        page.click("#races > button")
        page.click("#race")
        until(page, "#race-view .verdict", "identical text")
        take(page, folder, f"desktop-{scheme}-raced")


def main(folder: Path, wanted: list[str]) -> None:
    """wanted: such as desktop-light or race; all where none is named. The race alone needs a model."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory() as scratch,
        served(scripted_workspace(Path(scratch), SCRIPT)) as address,
        open_browser() as browser,
    ):
        for scheme in ("light", "dark"):
            for size, show in (("desktop", desktop), ("tablet", tablet), ("phone", phone)):
                if wanted and f"{size}-{scheme}" not in wanted:
                    continue
                context = browser.new_context(viewport=SIZES[size], color_scheme=scheme)
                show(open_page(context, address), folder, scheme)
                context.close()
        if not wanted or "race" in wanted:
            race(browser, folder, "light")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/screenshots"), sys.argv[2:])
