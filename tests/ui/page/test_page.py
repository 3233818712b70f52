"""Guards the page without a browser: every handler updates what it is wired to, and the server loads nothing from elsewhere."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
import typer

from app.serve.ui import _rules, _serving, _users
from tests.ui.browser import served
from tests.ui.page.visitor import Visitor
from tests.ui.workspaces import scripted_workspace
from ui.page.following import told
from ui.page.page import build_page
from ui.page.serve import Asking, Controller, Serving, wire
from ui.session.services import GuestRules
from ui.session.workspace import Workspace
from ui.views.messages import offered

NAMES = "Names of artists?"
SUMS = "Artists in each country?"
UNNAMED = "Number of artists per country?"
SCRIPT = {
    UNNAMED: "SELECT COUNT(*) FROM artists GROUP BY country ORDER BY COUNT(*) DESC",
    NAMES: "SELECT name, country FROM artists ORDER BY name",
    SUMS: "SELECT COUNT(*) * 1000 AS artists, country FROM artists GROUP BY country ORDER BY country",
}


class Site:
    """A page and its handlers, called as gradio calls them."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace, self.page = workspace, build_page(workspace)
        self.controller: Controller = wire(workspace, self.page)
        self.asking = Asking(self.controller, self.page)
        self.asking.wire()

    def visitor(self, name: str, owner: str | None = None) -> Any:
        request = asked_by(name, owner or f"browser:{name}")
        (self.loaded,) = self.controller.load("", request)
        return request

    def ask(self, request: Any, question: str) -> list[dict[Any, Any]]:
        return list(self.asking.ask(question, request))

    def run(self, sql: str, turn: int, request: Any) -> dict[Any, Any]:
        """What the page shows once the SQL has run."""
        running, done = self.controller.run_sql(sql, turn, request)
        panel = self.page.panel
        assert running[panel.halt]["visible"] and not done[panel.halt]["visible"]
        assert set(done) <= {
            panel.run,
            panel.halt,
            panel.own,
            panel.trouble,
            panel.words,
            *panel.of_rows,
            self.page.chat,
        }
        return done

    def outputs(self) -> list[Any]:
        return self.controller.following.outputs


def asked_by(session: str, owner: str) -> Any:
    """A request as gradio hands it to a handler."""
    return SimpleNamespace(session_hash=session, state=SimpleNamespace(owner=owner))


def clicked(**said: Any) -> Any:
    """A click inside an answer, as gradio hands it to a handler."""
    return SimpleNamespace(_data=said)


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
    assert last[panel.table]["elem_classes"] == []
    assert last[panel.sql].split() == SCRIPT[NAMES].split() and "\nFROM artists" in last[panel.sql]
    assert "Sorted by name" in last[panel.words]
    assert last[site.page.question]["stop_btn"] is False
    assert updates[0][site.page.question]["stop_btn"] is True


def test_sql_by_hand_changes_the_rows_or_says_why_not(site: Site) -> None:
    visitor = site.visitor("a")
    site.ask(visitor, NAMES)
    panel = site.page.panel
    ran = site.run("SELECT title, album_id * 2 AS doubled FROM albums", 0, visitor)
    assert "4 rows" in ran[panel.trouble] and "4 rows" in ran[panel.caption]
    assert ran[panel.plot]["visible"] and ran[panel.plot]["value"].to_dict()["mark"]["type"] == "bar"
    assert "Home" in ran[panel.trouble] and "You ran other SQL" in ran[site.page.chat][-1]["content"]
    own = site.controller.show_own(0, visitor)
    assert "You ran other SQL" not in own[site.page.chat][-1]["content"]
    refused = site.run("DROP TABLE albums", 0, visitor)
    assert "refused" in refused[panel.trouble]
    assert panel.table not in refused


def test_the_table_writes_numbers_as_people_read_them_and_keeps_them_to_sort_by(site: Site) -> None:
    """`count_star()` and bare numbers at the left once stood in the table, beside an answer that had both better."""
    visitor, panel = site.visitor("a"), site.page.panel
    table = site.ask(visitor, SUMS)[-1][panel.table]
    assert table["value"]["headers"] == ["country", "artists"] and table["elem_classes"] == ["right-1"]
    assert table["value"]["data"] == [["France", 2000], ["Spain", 1000]]
    written = table["value"]["metadata"]
    assert written["display_value"] == [["France", "2,000"], ["Spain", "1,000"]]
    assert written["styling"][0] == ["", "text-align: right"]
    by_hand = site.run("SELECT NULL AS a, 12345.678 AS b", 0, visitor)[panel.table]["value"]
    assert by_hand["metadata"]["display_value"] == [["–", "12345.678"]]


def test_a_clicked_heading_sorts_numbers_as_numbers_and_leaves_what_is_empty_at_the_end(site: Site) -> None:
    """Gradio's own order took empty cells for zeros. What the page names is no column: nothing happens."""
    visitor, panel = site.visitor("a"), site.page.panel
    site.ask(visitor, SUMS)
    site.run("SELECT * FROM (VALUES (9, 'b'), (NULL, 'C'), (-10, 'a'), (100, NULL)) AS v(n, word)", 0, visitor)

    def ordered(column: Any, descending: bool) -> list[Any]:
        data = gr.EventData(None, {"column": column, "descending": descending})
        table = site.controller.sort(0, data, visitor).get(panel.table)
        return [table["elem_classes"][-1], *([row[column] for row in table["value"]["data"]])] if table else []

    assert ordered(0, False) == ["sorted-0-ascending", -10, 9, 100, None]
    assert ordered(0, True) == ["sorted-0-descending", 100, 9, -10, None]
    assert ordered(1, False) == ["sorted-1-ascending", "a", "b", "C", None]
    assert ordered(2, False) == ordered("n", False) == []


def test_the_sql_of_an_answer_gives_the_rows_on_the_screen(site: Site) -> None:
    """Run without a change, the SQL once lost columns that stood on the screen, and its headings were `count_star()`."""
    visitor, panel = site.visitor("a"), site.page.panel
    last = site.ask(visitor, UNNAMED)[-1]
    table, sql = last[panel.table]["value"], last[panel.sql]
    assert table["headers"] == ["country", "artists"] and '"artists"' in sql
    again = site.run(sql, 0, visitor)[panel.table]["value"]
    assert (again["headers"], again["data"]) == (table["headers"], table["data"])
    offered = site.controller.export(sql, "csv", visitor)[panel.download]
    assert Path(offered["value"]).read_text().splitlines()[:2] == ["country,artists", "France,2"]
    assert '"artists"' in unescape(str(last[site.page.chat]["value"][-1]["content"]))


def test_the_models_own_sql_is_one_click_away(site: Site) -> None:
    visitor, panel = site.visitor("a"), site.page.panel
    last = site.ask(visitor, UNNAMED)[-1]
    assert last[panel.written]["visible"]
    own = site.controller.other_sql(last[panel.sql], 0, visitor)
    assert own[panel.sql].split() == SCRIPT[UNNAMED].split()
    assert site.controller.other_sql(own[panel.sql], 0, visitor)[panel.sql] == last[panel.sql]


def test_a_choice_settles_what_went_on_from_another_question_whenever_it_is_clicked(tmp_path: Path) -> None:
    """A click asked "And Away?" again, which continued whatever had been answered since."""
    away = "How many are called Away?"
    files = {"artists.csv": "artist_id,name\n1,Home\n2,Away\n", "albums.csv": "album_id,title\n1,Home\n2,Away\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    script = {NAMES: "SELECT name FROM artists ORDER BY name"} | {
        f"{away} [Away refers to artists.name = 'Away']": "SELECT 7"
    }
    site = Site(scripted_workspace(tmp_path, script))
    visitor = site.visitor("a")
    session = site.controller.session(visitor)
    session.data.offer([tmp_path / name for name in files])
    session.take(beside=False)
    for question in ("How many are called Home?", "And Away?", NAMES):
        site.ask(visitor, question)
    turns = session.view.turns
    assert turns[1].unclear and (turns[1].answer or {})["continues"] == 1
    place = [each["label"] for each in offered(turns[1])].index("the artist's name")
    list(site.asking.done(clicked(act="say", turn=1, place=place), visitor))
    assert (turns[3].question, (turns[3].answer or {})["rows"]) == (away, [[7]])
    site.workspace.close()


def test_what_is_too_long_is_neither_asked_nor_kept(site: Site) -> None:
    visitor = site.visitor("a")
    with pytest.raises(gr.Error, match="characters"):
        site.ask(visitor, "x" * 10_000)
    site.ask(visitor, NAMES)
    refused = site.run("SELECT '" + "x" * 300_000 + "'", 0, visitor)
    assert "256,000 characters" in refused[site.page.panel.trouble]
    with pytest.raises(gr.Error, match="256,000"):
        site.controller.export("SELECT '" + "x" * 300_000 + "'", "csv", visitor)
    session = site.controller.session(visitor)
    assert len(session.share().read_text()) < 100_000


def test_an_export_is_offered_for_download(site: Site) -> None:
    visitor = site.visitor("a")
    site.ask(visitor, NAMES)
    offered = site.controller.export(SCRIPT[NAMES], "csv", visitor)[site.page.panel.download]
    assert Path(offered["value"]).read_text().splitlines()[1] == "Ada,France"
    with pytest.raises(gr.Error, match="refused"):
        site.controller.export("DELETE FROM artists", "csv", visitor)


def test_a_browser_finds_its_conversation_again_and_another_does_not(site: Site) -> None:
    site.ask(site.visitor("a"), NAMES)
    site.visitor("b", "browser:a")
    assert site.loaded[site.page.chat]["value"][0]["content"].startswith(f'<span class="said">{NAMES}<')
    site.visitor("c")
    assert site.loaded[site.page.chat]["value"] == []
    assert [choice["text"] for choice in site.loaded[site.page.chat]["examples"]]


def test_a_conversation_is_renamed_and_pinned(site: Site) -> None:
    """The list began with whatever was asked last, under its first question."""
    visitor, side, opening = site.visitor("a"), site.page.side, site.controller.opening
    site.ask(visitor, NAMES)
    first = site.controller.session(visitor).kept.id
    list(opening.new(visitor))
    site.ask(visitor, SUMS)
    renamed = opening.rename(first, "All <b>artists</b>", "", visitor)
    assert set(renamed) == set(side.listed)
    assert [label.partition("\n")[0] for label, _ in renamed[side.conversations]["choices"]] == [
        SUMS,
        "All <b>artists</b>",
    ]
    assert (renamed[side.name]["value"], renamed[side.pin]["value"]) == (SUMS, "Pin")
    pinned = opening.pin(first, "", visitor)
    assert pinned[side.conversations]["choices"][0][0].startswith("▴ All <b>artists</b>\n")
    *_, back = opening.resume(first, visitor)
    assert (back[side.name]["value"], back[side.pin]["value"]) == ("All <b>artists</b>", "Unpin")
    opening.rename(first, "mine", "", site.visitor("b"))
    opening.pin(first, "", site.visitor("b"))
    found = site.workspace.archive.entry("browser:a", first or "")
    assert found is not None and (found.title, found.pinned) == ("All <b>artists</b>", 1)
    (reloaded,) = site.controller.load("", asked_by("c", "browser:a"))
    assert SUMS in reloaded[site.page.chat]["value"][0]["content"], "the newest is shown, not the pinned one"


def test_settings_are_taken_when_they_are_sound(site: Site) -> None:
    visitor, side = site.visitor("a"), site.page.side
    values = dict(zip(side.settings, ["embedded", "lookahead", "", 0.5, 2, 50, 5.0, False, True, False], strict=True))
    site.controller.opening.settings(values, visitor)
    session = site.controller.session(visitor)
    assert (session.settings.decoder, session.settings.max_rows, session.settings.attempts) == ("lookahead", 50, 2)
    told = site.controller.opening.settings(values | {side.settings[2]: "nonsense=1"}, visitor)
    assert told.startswith("⚠ lookahead has no option nonsense")
    assert session.settings.options == ""


def test_a_visitor_of_an_earlier_server_is_told_to_reload(site: Site) -> None:
    with pytest.raises(gr.Error, match="reload"):
        site.ask(asked_by("gone", "browser:a"), NAMES)


def test_nobody_comes_in_when_the_house_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ui.session.workspace.NO_PAGE_S", 3600.0)  # a slow machine must not make room meanwhile
    workspace = scripted_workspace(tmp_path, SCRIPT, rules=GuestRules(most_sessions=1))
    site = Site(workspace)
    site.visitor("a")
    with pytest.raises(gr.Error, match="too many"):
        site.visitor("b")
    site.controller.unload(asked_by("a", "browser:b"))
    with pytest.raises(gr.Error, match="too many"):
        site.visitor("b")
    site.controller.unload(asked_by("a", "browser:a"))
    site.visitor("b")
    workspace.close()


def test_the_page_names_no_other_machine_and_forbids_them(tmp_path: Path) -> None:
    with served(scripted_workspace(tmp_path, SCRIPT)) as address:
        assert address.startswith("http://127.0.0.1:")
        visitor = Visitor(address)
    page, policy = visitor.came.text, visitor.came.headers["content-security-policy"]
    assert policy.startswith("default-src 'self' data: blob:;") and "http" not in policy
    assert re.findall(r'<(?:script|img)[^>]+src="https?:[^"]+', page) == []
    assert re.findall(r'<link[^>]+rel="stylesheet"[^>]+href="https?:[^"]+', page) == []


def test_names_and_passwords_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("ada:se:cret\n\nbo:x\n")
    assert _users(file) == [("ada", "se:cret"), ("bo", "x")]
    file.write_text("ada\n")
    with pytest.raises(typer.Exit):
        _users(file)


def test_who_reaches_the_page_from_elsewhere_opens_no_url_and_no_model() -> None:
    closed = GuestRules(upload_mb=5, chats_mb=7, urls=False, models=False)
    assert _rules(Serving(), None, 5, 7) == GuestRules(upload_mb=5, chats_mb=7)
    assert _rules(Serving("0.0.0.0"), None, 5, 7) == closed
    assert _rules(Serving(hosts=["chat.example"]), None, 5, 7) == closed  # a proxy stands before this machine
    assert _rules(Serving(), False, 5, 7) == closed
    assert _rules(Serving("0.0.0.0"), True, 5, 7) == GuestRules(upload_mb=5, chats_mb=7)


def test_a_token_is_there_unless_it_is_refused_on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SQLAGENT_TOKEN", raising=False)
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path / "home"))
    first, second = (_serving("0.0.0.0", None, [], None, True, 1).token for _ in range(2))
    assert first and second and first != second and len(first) == 32
    assert _serving("127.0.0.1", None, [], None, False, 1).token is None
    (tmp_path / "users").write_text("ada:x")
    assert _serving("0.0.0.0", None, [], tmp_path / "users", True, 1).token is None
    for host, names in (("0.0.0.0", []), ("127.0.0.1", ["chat.example"])):
        with pytest.raises(typer.Exit):
            _serving(host, None, names, None, False, 1)
    monkeypatch.setenv("SQLAGENT_TOKEN", "own")
    assert _serving("127.0.0.1", None, [], None, True, 1).token == "own"


def test_the_token_of_this_machine_stays_and_is_nobody_elses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A page that was open when the server was restarted once could not go on."""
    monkeypatch.delenv("SQLAGENT_TOKEN", raising=False)
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path / "home"))

    def token() -> str | None:
        return _serving("127.0.0.1", None, [], None, True, 1).token

    kept, path = token(), tmp_path / "home" / "chat-token"
    assert kept and token() == kept and path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    assert token() not in (kept, token())
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert len(token() or "") == 32 and not (tmp_path / "elsewhere").exists()


def test_a_digest_from_the_log_opens_nobodys_conversations(site: Site) -> None:
    """It once did: the page handed over what was asked under a name that the browser claimed to have had."""
    site.ask(site.visitor("a"), NAMES)
    assert all(type(part).__name__ != "BrowserState" for part in site.page.blocks.blocks.values())
    asked = site.controller.session(asked_by("a", "browser:a")).kept.id
    *_, shown = site.controller.load(asked or "", asked_by("c", "browser:c"))
    assert shown[site.page.chat]["value"] == [] and shown[site.page.bridge] == "new"


def test_what_a_page_shows_last_is_what_the_session_does(site: Site) -> None:
    """What a handler had sent could arrive after the page had moved on, and stayed there."""
    visitor, page = site.visitor("a"), site.page
    site.ask(visitor, NAMES)
    session = site.controller.session(visitor)
    opening, first = site.controller.opening, session.kept.id
    late = opening.resume(first, visitor)
    assert next(late)[page.chat]["value"] != []
    *_, fresh = opening.new(visitor)
    assert fresh[page.chat]["value"] == []
    *_, last = late
    assert last[page.chat]["value"] == [] and last[page.question] == fresh[page.question]


def test_a_question_runs_on_under_another_conversation_and_is_followed_on_return(site: Site) -> None:
    visitor, page, opening = site.visitor("a"), site.page, site.controller.opening
    asking = site.asking.ask(SUMS, visitor)
    assert next(asking)[page.question]["value"] == ""
    run = site.controller.session(visitor).kept
    *_, fresh = opening.new(visitor)
    assert fresh[page.chat]["value"] == [] and fresh[page.question]["stop_btn"] is False
    assert list(asking)[-1][page.chat]["value"] == [], "the page shows what it did not ask for"
    *_, back = opening.resume(run.id, visitor)
    assert "1,000" in back[page.chat]["value"][-1]["content"] and back[page.panel.caption] == "2 rows"


def test_whatever_a_handler_raises_is_told_in_a_sentence(site: Site) -> None:
    def breaks(request: gr.Request) -> None:
        raise IndexError("list index out of range")

    def breaks_later(request: gr.Request) -> Iterator[dict[Any, Any]]:
        yield {}
        raise gr.Error("Say it shorter.")

    with pytest.warns(UserWarning, match="Something went wrong here"):
        assert told(breaks)(None) == gr.skip()
    with pytest.warns(UserWarning, match="shorter"):
        assert list(told(breaks_later)(None)) == [{}, gr.skip()]
