"""A headless Chromium and servers for it. What it needs is installed by `make test-ui`."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_S = float(os.environ.get("SQLAGENT_PATIENCE_S", "120"))  # machines may be slow; a failure takes so long


def chromium() -> str | None:
    """Path of the browser."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def open_browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def served(workspace: Any, **serving: Any) -> Iterator[str]:
    """The address of a running server, with a token unless one is given or people sign in."""
    from ui.page.serve import Serving, serve

    address, close = serve(workspace, Serving(**{"token": None if "users" in serving else token_urlsafe()} | serving))
    try:
        yield address
    finally:
        close()
        workspace.close()


def open_page(context: Any, address: str) -> Any:
    """The page, ready for a question. Whatever it asks another machine for, and every error of its own, is an error here."""
    page = context.new_page()
    page.set_default_timeout(1e3 * PATIENCE_S)
    page.troubles = []
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("request", lambda request: _note_remote(page, request.url))
    page.goto(address)
    page.wait_for_selector(".schema details", state="attached")
    return page


def _note_remote(page: Any, url: str) -> None:
    if not url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:")):
        page.troubles.append(f"asked {url}")


def ask(page: Any, question: str) -> None:
    page.fill("#question textarea", question)
    page.press("#question textarea", "Enter")


def tab(page: Any, name: str) -> None:
    """Choose a tab; where the page is narrow it hides behind the three dots."""
    page.wait_for_selector("#tabs button[role=tab]")
    shown = page.locator(f"#tabs button[role=tab]:text-is('{name}')")
    if shown.count() == 0:
        page.click("#tabs .overflow-menu > button")
        shown = page.locator(f"#tabs .overflow-dropdown button:text-is('{name}')")
    shown.first.click()


def side_tab(page: Any, name: str) -> None:
    page.click(f"#side button[role=tab]:text-is('{name}')")


def choose_file(page: Any, selector: str, path: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.click(selector)
    chooser.value.set_files(str(path))


def until(page: Any, selector: str, text: str) -> None:
    """Wait until an element shows the text."""
    try:
        page.wait_for_function(
            "([selector, text]) => [...document.querySelectorAll(selector)].some(e => e.innerText.includes(text))",
            arg=[selector, text],
        )
    except Exception as error:
        shown = [element.inner_text()[:300] for element in page.query_selector_all(selector)]
        raise AssertionError(f"{selector} never showed {text!r}; it shows {shown}") from error


def settle(seconds: float = 1.0) -> None:
    """Let animations end."""
    time.sleep(seconds)
