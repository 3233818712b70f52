"""Pictures of the page's main states, from a recorded conversation, without a model.

`python -m tests.ui.screenshots FOLDER [desktop-light ...]`
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.ui.browser import choose_file, open_browser, open_page, served, settle, side_tab, tab, until
from tests.ui.houses import scripted_house

RECORDED = Path(__file__).parent / "recorded" / "albums.jsonl"
SIZES = {"desktop": {"width": 1360, "height": 860}, "phone": {"width": 390, "height": 844}}
TABS = ("Result", "Chart", "SQL", "Savings", "Decoding", "Race")


def take(page: Any, folder: Path, name: str) -> None:
    settle()
    page.screenshot(path=str(folder / f"{name}.png"))
    print(folder / f"{name}.png", flush=True)


def desktop(page: Any, folder: Path, scheme: str) -> None:
    """Empty, then every tab of a recorded answer."""
    take(page, folder, f"desktop-{scheme}-empty")
    side_tab(page, "Chats")
    choose_file(page, "#replay", RECORDED)
    until(page, "#chat", "per year")
    for name in TABS:
        tab(page, name)
        take(page, folder, f"desktop-{scheme}-{name.lower()}")
    side_tab(page, "Settings")
    take(page, folder, f"desktop-{scheme}-settings")


def phone(page: Any, folder: Path, scheme: str) -> None:
    """The chat, the sidebar over it, and the panel below it."""
    settle(2)
    if page.locator(".sidebar.open").count() == 0:
        page.click(".sidebar .toggle-button")
    side_tab(page, "Chats")
    choose_file(page, "#replay", RECORDED)
    until(page, "#conversations", "per year")
    take(page, folder, f"phone-{scheme}-sidebar")
    page.click(".sidebar .toggle-button")
    take(page, folder, f"phone-{scheme}-chat")
    tab(page, "Savings")
    page.locator("#savings").scroll_into_view_if_needed()
    take(page, folder, f"phone-{scheme}-savings")


def main(folder: Path, wanted: list[str]) -> None:
    """wanted: such as desktop-light; all four where none is named."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory() as scratch,
        served(scripted_house(Path(scratch), {})) as address,
        open_browser() as browser,
    ):
        for scheme in ("light", "dark"):
            for size, show in (("desktop", desktop), ("phone", phone)):
                if wanted and f"{size}-{scheme}" not in wanted:
                    continue
                context = browser.new_context(viewport=SIZES[size], color_scheme=scheme)
                show(open_page(context, address), folder, scheme)
                context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/screenshots"), sys.argv[2:])
