"""Guards the page without a browser: every handler updates what it is wired to, and the server loads nothing from elsewhere."""

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
import typer

from app.serve.ui import _rules, _users
from tests.ui.browser import served
from tests.ui.workspaces import scripted_workspace
from ui.page.asking import Asking
from ui.page.page import Page, build_page
from ui.page.wiring import Controller, wire
from ui.session.services import GuestRules
from ui.session.workspace import Workspace

NAMES = "Names of artists?"
SCRIPT = {NAMES: "SELECT name, country FROM artists ORDER BY name"}


class Site:
    """A page and its handlers, called as gradio calls them."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace, self.page = workspace, build_page(workspace)
        self.controller: Controller = wire(workspace, self.page)
        self.asking = Asking(self.controller, self.page)
        self.asking.wire()

    def visitor(self, name: str, owner: str | None = None) -> Any:
        request = SimpleNamespace(session_hash=name, username=None)
        self.loaded = self.controller.load(owner, request)  # type: ignore[arg-type]
        return request

    def ask(self, request: Any, question: str) -> list[dict[Any, Any]]:
        return list(self.asking.ask(question, request))

    def outputs(self) -> list[Any]:
        page: Page = self.page
        return [page.question, page.chat, page.side.conversations, *page.panel.of_a_turn]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(scripted_workspace(tmp_path, SCRIPT))
    yield made
    made.workspace.close()


def test_asking_fills_chat_and_panel(site: Site) -> None:
    updates = site.ask(site.visitor("a"), NAMES)
    assert all(set(update) <= set(site.outputs()) for update in updates)
    panel, last = site.page.panel, updates[-1]
    assert last[panel.caption] == "3 rows"
    assert last[panel.table]["value"]["data"] == [["Ada", "France"], ["Bo", "Spain"], ["Home", "France"]]
    assert last[panel.sql] == SCRIPT[NAMES]
    assert "Sorted by name" in last[panel.words]
    assert last[site.page.question]["stop_btn"] is False
    assert updates[0][site.page.question]["stop_btn"] is True


def test_sql_by_hand_changes_the_rows_or_says_why_not(site: Site) -> None:
    visitor = site.visitor("a")
    site.ask(visitor, NAMES)
    panel = site.page.panel
    ran = site.controller.run_sql("SELECT title, album_id * 2 AS doubled FROM albums", 0, visitor)
    assert "4 rows" in ran[panel.trouble] and "4 rows" in ran[panel.caption]
    assert ran[panel.plots["bar"]]["visible"] and not ran[panel.plots["line"]]["visible"]
    refused = site.controller.run_sql("DROP TABLE albums", 0, visitor)
    assert "refused" in refused[panel.trouble]
    assert panel.table not in refused


def test_an_export_is_offered_for_download(site: Site) -> None:
    visitor = site.visitor("a")
    site.ask(visitor, NAMES)
    offered = site.controller.export(SCRIPT[NAMES], "csv", visitor)[site.page.panel.download]
    assert Path(offered["value"]).read_text().splitlines()[1] == "Ada,France"
    with pytest.raises(gr.Error, match="refused"):
        site.controller.export("DELETE FROM artists", "csv", visitor)


def test_a_browser_finds_its_conversation_again_and_another_does_not(site: Site) -> None:
    site.ask(site.visitor("a"), NAMES)
    owner = site.loaded[site.page.owner]
    site.visitor("b", owner)
    assert site.loaded[site.page.chat]["value"][0]["content"] == NAMES
    site.visitor("c")
    assert site.loaded[site.page.chat]["value"] == []
    assert [choice["text"] for choice in site.loaded[site.page.chat]["examples"]]


def test_settings_are_taken_when_they_are_sound(site: Site) -> None:
    visitor, side = site.visitor("a"), site.page.side
    values = dict(
        zip(side.settings, ["embedded", "lookahead", "", 0.5, 3, 2, 50, 5.0, False, True, False], strict=True)
    )
    site.controller.opening.settings(values, visitor)
    session = site.controller.session(visitor)
    assert (session.settings.decoder, session.settings.max_rows, session.settings.samples) == ("lookahead", 50, 3)
    told = site.controller.opening.settings(values | {side.settings[2]: "nonsense=1"}, visitor)
    assert told.startswith("⚠ lookahead has no option nonsense")
    assert session.settings.options == ""


def test_a_visitor_of_an_earlier_server_is_told_to_reload(site: Site) -> None:
    with pytest.raises(gr.Error, match="reload"):
        site.ask(SimpleNamespace(session_hash="gone", username=None), NAMES)


def test_nobody_comes_in_when_the_house_is_full(tmp_path: Path) -> None:
    workspace = scripted_workspace(tmp_path, SCRIPT, rules=GuestRules(most_sessions=1))
    site = Site(workspace)
    site.visitor("a")
    with pytest.raises(gr.Error, match="too many"):
        site.visitor("b")
    site.controller.unload(SimpleNamespace(session_hash="a"))  # type: ignore[arg-type]
    site.visitor("b")
    workspace.close()


def test_the_page_names_no_other_machine_and_forbids_them(tmp_path: Path) -> None:
    with served(scripted_workspace(tmp_path, SCRIPT)) as address:
        assert address.startswith("http://127.0.0.1:")
        page = urllib.request.urlopen(address).read().decode()
    assert "Content-Security-Policy" in page
    assert re.findall(r'<(?:script|img)[^>]+src="https?:[^"]+', page) == []
    assert re.findall(r'<link[^>]+rel="stylesheet"[^>]+href="https?:[^"]+', page) == []


def test_whoever_is_not_named_stays_outside(tmp_path: Path) -> None:
    workspace = scripted_workspace(tmp_path, SCRIPT)
    with served(workspace, users=(("ada", "secret"),)) as address, pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{address}config")
    assert refused.value.code == 401


def test_names_and_passwords_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("ada:se:cret\n\nbo:x\n")
    assert _users(file) == [("ada", "se:cret"), ("bo", "x")]
    file.write_text("ada\n")
    with pytest.raises(typer.Exit):
        _users(file)


def test_who_reaches_the_page_from_elsewhere_opens_no_url_and_no_model() -> None:
    assert _rules("127.0.0.1", 5) == GuestRules(upload_mb=5)
    assert _rules("0.0.0.0", 5) == GuestRules(upload_mb=5, urls=False, models=False)
