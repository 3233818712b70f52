"""Serves the page: where it listens, who is admitted, what may be loaded; and what the components do.

Every handler finds its session, calls it, and returns updates. When a question is asked, the page follows the session's events;
retry, edit, options and stop are handlers, too.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from fastapi import FastAPI
from starlette.types import ASGIApp

from agent.race import NoRace
from agent.state import Reading
from decoding.serving.model_queue import Stopped
from tools.result import OpenError
from ui.http.entrance import UPLOAD, Cookies, Entrance, Logins, OwnSessions
from ui.http.middleware import SafeHeaders, WholeBody, in_background, listener, trusted
from ui.page import panel as panels
from ui.page.files import file_routes
from ui.page.following import Following, on, on_change, send_or_stop, warn_if_not_kept
from ui.page.opening import Opening
from ui.page.page import FOLDER, Page, build_page, theme
from ui.session.conversation_view import OWN_QUERY
from ui.session.kept import Busy, OtherData
from ui.session.run import Question
from ui.session.session import Session
from ui.session.workspace import Full, NotYours, Workspace
from ui.views.card import plain_rows_html
from ui.views.messages import (
    AS_IT_STANDS,
    ASK_AFRESH,
    TRY_AGAIN,
    chosen_label,
    chosen_reading,
    message_turn,
    messages,
    offered,
)
from ui.views.passes import decoding_html
from ui.views.savings_html import race_html
from ui.views.words import plain, trouble_html

Updates = dict[Any, Any]


class Controller:
    """Handlers over one page. Holds no state of its own: sessions live in the workspace."""

    def __init__(self, workspace: Workspace, page: Page) -> None:
        self.workspace, self.page = workspace, page
        self.following = Following(workspace, page)
        self.opening = Opening(workspace, page, self.following, self.session)

    def session(self, request: gr.Request) -> Session:
        """The session of a page that was loaded from this server, by the one who asks."""
        found = self.workspace.find(request.session_hash or "", request.state.owner)
        if found is None:
            raise gr.Error("This page was idle for long, or the server was restarted: reload the page.")
        return found

    def load(self, wanted: str, request: gr.Request) -> Iterator[Updates]:
        """A page comes: who signed in, or this browser, owns what is asked here. It shows the conversation that its address
        names, otherwise the newest whose data can be opened, or newer files; and what still runs there."""
        owner = request.state.owner
        try:
            session = self.workspace.session(request.session_hash or "", owner)
            session.database.schema()
        except (Full, NotYours, OpenError) as error:
            raise gr.Error(str(error)) from error
        if not session.view.turns:
            self._return(session, wanted)
        yield from self.following.follow(session)

    def _return(self, session: Session, wanted: str) -> None:
        """To where the owner was."""
        archive, owner = self.workspace.archive, session.owner
        entry = archive.entry(owner, wanted) or archive.newest(owner)
        files = next(iter(self.workspace.kept_files.recent(owner)), None)
        try:
            if files and not wanted and (entry is None or files[1] > entry.changed_s):
                session.open_kept(files[0])
            elif entry is not None and not session.resume(entry.id) and not wanted:
                session.begin()
        except OpenError as error:
            gr.Warning(str(error))

    def unload(self, request: gr.Request) -> None:
        if self.workspace.find(request.session_hash or "", request.state.owner):
            self.workspace.leave(request.session_hash or "")

    def choose(self, index: int | None, request: gr.Request) -> Updates:
        return panels.show(self.page.panel, self.session(request), index)

    def choose_message(self, data: gr.EventData, request: gr.Request) -> Updates:
        """An answer in the chat was clicked: its rows are shown."""
        session = self.session(request)
        return panels.show(self.page.panel, session, message_turn(session.view.turns, _given(data).get("index")))

    def new_query(self, request: gr.Request) -> Updates:
        """An empty editor, for SQL that belongs to no question."""
        session, panel = self.session(request), self.page.panel
        session.show_own(OWN_QUERY)
        return panels.show(panel, session, OWN_QUERY) | {panel.tabs: gr.Tabs(selected="sql")}

    def run_sql(self, sql: str, index: int | None, request: gr.Request) -> Iterator[Updates]:
        """Run what stands in the editor; it belongs to the chosen answer, if to any. It can be stopped."""
        session = self.session(request)
        yield self._running(True) | {self.page.panel.trouble: '<span class="spinner"></span> Running …'}
        yield self._running(False) | self._ran(session, sql, OWN_QUERY if index is None else index)

    def _ran(self, session: Session, sql: str, index: int) -> Updates:
        panel, kept = self.page.panel, session.kept
        try:
            ran = session.run_sql(sql, index)
        except OtherData as error:
            return {panel.trouble: f"⚠ {plain(str(error))}"}
        turn = kept.view.turn(index)
        if session.kept is not kept or turn is None:
            return {}  # another conversation is shown by now
        warn_if_not_kept(session)
        updates: Updates = {panel.own: gr.update(visible=index != OWN_QUERY), self.page.chat: messages(kept.view.turns)}
        updates |= {panel.trouble: panels.told_error(ran.error, sql), panel.words: panels.explained(session, sql)}
        if ran.error is not None:
            return updates
        shown = panels.show_rows(panel, session, turn, index)
        rows = plain_rows_html(ran.columns, ran.rows, ran.row_count, ran.truncated)
        return updates | shown | {panel.trouble: f"✓ {shown[panel.caption]}\n\n{rows}"}

    def _running(self, runs: bool) -> Updates:
        return {self.page.panel.run: gr.update(visible=not runs), self.page.panel.halt: gr.update(visible=runs)}

    def halt(self, request: gr.Request) -> None:
        """Stop the SQL that runs by hand; its error says so."""
        self.session(request).database.interrupt()

    def show_own(self, index: int | None, request: gr.Request) -> Updates:
        """The answer's own SQL and rows again."""
        session = self.session(request)
        if index is not None and session.view.turn(index):
            session.show_own(index)
            warn_if_not_kept(session)
        return panels.show(self.page.panel, session, index) | {self.page.chat: messages(session.view.turns)}

    def other_sql(self, sql: str, index: int | None, request: gr.Request) -> Updates:
        """The model's own SQL instead of the statement that gives the rows as they are shown, or the other way round."""
        turn = self.session(request).view.turn(index)
        return {} if turn is None else panels.other_sql(self.page.panel, turn, sql)

    def export(self, sql: str, kind: Any, request: gr.Request) -> Updates:
        """The whole result of the SQL, not what is displayed of it."""
        if not sql.strip():
            raise gr.Error("There is no SQL yet whose rows could be exported.")
        try:
            path = self.session(request).export(sql, kind)
        except (OpenError, ValueError) as error:
            raise gr.Error(str(error)) from error
        return {self.page.panel.download: gr.update(value=str(path), visible=True, label=f"Download {path.name}")}

    def redraw(
        self, index: int | None, kind: str, x: int | None, y: int | None, every: bool, request: gr.Request
    ) -> Updates:
        turn = OWN_QUERY if index is None else index
        return panels.redraw(self.page.panel, self.session(request), turn, kind, x, y, bool(every))

    def sort(self, index: int | None, data: gr.EventData, request: gr.Request) -> Updates:
        """A heading of the table was clicked."""
        said, turn = _given(data), OWN_QUERY if index is None else index
        column, descending = _number(said.get("column")), bool(said.get("descending"))
        return panels.sort_rows(self.page.panel, self.session(request), turn, column, descending)

    def decode_view(self, index: int | None, step: int | None, request: gr.Request) -> str:
        turn = self.session(request).view.turn(index)
        return decoding_html(turn.steps[step] if turn and step is not None and step < len(turn.steps) else None)

    def measure(self, request: gr.Request) -> Iterator[Updates]:
        """Decode the newest answer's steps plainly, and show its time next to theirs."""
        session, panel = self.session(request), self.page.panel
        kept = session.kept
        yield {panel.measure: gr.update(value="Decoding token by token …", interactive=False)}
        try:
            session.measure()
        except (NoRace, Busy, OtherData) as error:
            gr.Warning(str(error))
        except Stopped:
            pass
        if session.kept is kept:
            warn_if_not_kept(session)
            yield panels.show_savings(panel, session, len(session.view.turns) - 1) | {
                self.page.chat: messages(session.view.turns)
            }

    def race(self, step: str | None, first: list[str], more: list[str], request: gr.Request) -> Any:
        """Stream the race; at most three run."""
        session, methods = self.session(request), [*first, *more]
        if not 2 <= len(methods) <= 3:
            yield trouble_html("Choose two or three methods.")
            return
        kept = session.kept
        turn = kept.view.turns[-1] if kept.view.turns else None
        tokens = turn.tokens_of(step or "") if turn else 0
        try:
            for lanes in session.race(step or "", methods):
                if session.kept is not kept:
                    return
                yield race_html(lanes, tokens)
        except (NoRace, Busy, OtherData) as error:
            yield trouble_html(str(error))
        except Stopped:
            return


def wire(workspace: Workspace, page: Page) -> Controller:
    """Connect everything but asking."""
    c, panel = Controller(workspace, page), page.panel
    with page.blocks:
        on_change(page.blocks.load, c.load, [page.bridge], c.following.outputs, js=_WANTED)
        page.blocks.unload(c.unload)
        on(page.chat.select, c.choose_message, None, panel.of_a_turn, show_progress="hidden")
        on(panel.turn.input, c.choose, [panel.turn], panel.of_a_turn)
        on(page.side.query.click, c.new_query, None, [panel.tabs, *panel.of_a_turn])
        run_outputs = [panel.run, panel.halt, panel.own, panel.trouble, panel.words, *panel.of_rows, page.chat]
        on(panel.run.click, c.run_sql, [panel.sql, panel.turn], run_outputs)
        on(panel.halt.click, c.halt, None, None, queue=False)
        on(panel.own.click, c.show_own, [panel.turn], [*panel.of_a_turn, page.chat])
        on(panel.written.click, c.other_sql, [panel.sql, panel.turn], [panel.sql, panel.written])
        on(panel.export.click, c.export, [panel.sql, panel.export_kind], [panel.download])
        on(page.bridge.select, c.sort, [panel.turn], [panel.table], show_progress="hidden")
        chart: list[Any] = [panel.chart_kind, panel.chart_x, panel.chart_y, panel.chart_every]
        for part in chart:
            chosen = [panel.turn, *chart]
            on(part.input, c.redraw, chosen, panel.of_a_chart)
        on(panel.step.input, c.decode_view, [panel.turn, panel.step], [panel.decoding])
        on(panel.measure.click, c.measure, [], [panel.measure, panel.savings, page.chat])
        on(panel.race.click, c.race, [panel.race_step, panel.race_methods, panel.race_more], [panel.race_view])
        c.opening.wire()
    return c


_WANTED = "() => new URLSearchParams(location.search).get('chat') ?? ''"  # the conversation that the address names
LONGEST_QUESTION = 8000  # characters, evidence included
STOPPING_S = 5.0  # so long the stop button waits for the end of what it stopped


class Asking:
    """Handlers that put a question."""

    def __init__(self, controller: Controller, page: Page) -> None:
        self._controller, self._page = controller, page

    def ask(self, question: str, request: gr.Request) -> Iterator[Updates]:
        """A question from the box: a new one, or one in the place of an earlier."""
        session = self._controller.session(request)
        if question.strip() and session.editing is not None:
            yield from self._edited(session, session.editing, question.strip())
        elif question.strip():
            yield from self._put(session, Question(question.strip()))

    def example(self, data: gr.EventData, request: gr.Request) -> Iterator[Updates]:
        value = _given(data).get("value")
        text = value.get("text") if isinstance(value, dict) else None
        yield from self.ask(text if isinstance(text, str) else "", request)

    def _again(self, session: Session, turn: int) -> Iterator[Updates]:
        """The question again as a new turn: in its other reading, or sampled."""
        asked = session.view.turns[turn]
        yield from self._put(session, Question(asked.question, asked.evidence, again=turn))

    def done(self, data: gr.EventData, request: gr.Request) -> Iterator[Updates]:
        """A click inside an answer, of whatever age, or on Back. What the page says of it is believed in nothing."""
        session = self._controller.session(request)
        said = _given(data)
        act, turn, place = str(said.get("act")), _number(said.get("turn")), _number(said.get("place"))
        if act == "open":
            yield from self._controller.opening.go_to(session, str(said.get("chat", "")))
        elif act == "leave":
            session.editing = None
            yield {self._page.question: ""} | self._controller.following.notice(session)
        elif turn < len(session.view.turns):
            yield from self._done_to(session, act, turn, place)

    def _done_to(self, session: Session, act: str, number: int, place: int) -> Iterator[Updates]:
        turn = session.view.turns[number]
        if act == "say" and place < len(offered(turn)):
            yield from self._option(session, number, offered(turn)[place]["value"])
        elif act == "again":
            yield from self._again(session, number)
        elif act == "edit":
            session.editing = number
            yield {self._page.question: turn.said} | self._controller.following.notice(session)
        elif act == "star":
            session.judge(number, None if turn.liked else True)
            warn_if_not_kept(session)
            yield {self._page.chat: messages(session.view.turns)}

    def _option(self, session: Session, number: int, chosen: str) -> Iterator[Updates]:
        """An offered reply was clicked: its question again, in the way or with the SQL that the reply stands for."""
        last = session.view.turns[number]
        asked, evidence, reply = last.question, last.evidence, chosen_label(last, chosen)
        alone: Reading | None = None if last.complete == asked else "standalone"
        if chosen == TRY_AGAIN:
            yield from self._again(session, number)
        elif chosen == AS_IT_STANDS:
            yield from self._put(session, Question(last.complete, evidence, ask_back=False, reading=alone, reply=reply))
        elif sql := chosen_reading(last, chosen):
            yield from self._put(session, Question(asked, evidence, chosen=sql, reply=reply))
        elif chosen == ASK_AFRESH:
            yield from self._put(session, Question(asked, evidence, reading="standalone", reply=reply))
        else:
            evidence = "; ".join(filter(None, (evidence, chosen)))
            yield from self._put(session, Question(last.complete, evidence, reading=alone, reply=reply))

    def _edited(self, session: Session, turn: int, text: str) -> Iterator[Updates]:
        """A question was changed: the conversation goes on from there in a copy; the original stays in the list. A changed
        reply settles the same question in other words."""
        before, session.editing = session.view.turns[turn], None
        if not session.wants:
            session.branch(turn)
        if before.reply:
            yield from self._put(session, Question(before.question, text, reply=text))
        else:
            yield from self._put(session, Question(text))

    def stop(self, request: gr.Request) -> Updates:
        """Stop what runs in the conversation that is shown."""
        session = self._controller.session(request)
        run = session.kept.run
        session.stop()
        if run is not None:
            run.join(STOPPING_S)
        return {self._page.question: send_or_stop(session.kept.run is not None)}

    def _put(self, session: Session, question: Question) -> Iterator[Updates]:
        if len(question.text) + len(question.evidence) > LONGEST_QUESTION:
            raise gr.Error(f"A question may have {LONGEST_QUESTION:,} characters, what was said of it included.")
        following, shown = self._controller.following, session.standing
        try:
            session.begin_run(question)
        except OtherData:  # the question stays in the box until its data are open
            yield {self._page.question: question.text} | following.notice(session)
            return
        except Busy as error:
            raise gr.Error(str(error)) from error
        updates = following.follow(session, shown)
        first = next(updates)
        yield first | {self._page.question: {**first[self._page.question], "value": ""}}
        yield from updates

    def wire(self) -> None:
        """Connect chat and question box."""
        page, outputs = self._page, self._controller.following.outputs
        with page.blocks:
            on_change(page.question.submit, self.ask, [page.question], outputs)
            on_change(page.chat.example_select, self.example, None, outputs)
            on_change(page.bridge.click, self.done, None, outputs)
            on(page.question.stop, self.stop, None, [page.question], queue=False)


def _given(data: gr.EventData) -> dict[str, Any]:
    """What the page says of an event; a hostile page may say anything."""
    return data._data if isinstance(data._data, dict) else {}


def _number(given: Any) -> int:
    """A place that the page names; beyond all places where it is none."""
    return given if isinstance(given, int) and 0 <= given < LONGEST_QUESTION else LONGEST_QUESTION


LONGEST_EVENT = 4 << 20  # bytes; a statement in the editor may be long
EVENT_DEADLINE_S = 15.0
_POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self' data: blob:; img-src 'self' data: blob:; font-src 'self' data:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)  # nothing is ever loaded from elsewhere, whatever a question, a cell or a shared file says
SCRIPTS = ("page.js", "passes.js", "editor.js", "keys.js")
SPARE_THREADS = 32  # for clicks, while each question that waits for the model holds a thread


@dataclass(frozen=True, slots=True)
class Serving:
    """`users`: (name, password) pairs, who sign in. `token`: without it nobody comes in; it is a part of the address that
    `serve` returns. With neither, everybody is let in who can reach the address. `hosts`: names that the server answers to,
    in addition to this machine's own and `host`."""

    host: str = "127.0.0.1"
    port: int | None = None  # None: the first free one from 7860 on
    users: Sequence[tuple[str, str]] = ()
    token: str | None = None
    hosts: Sequence[str] = ()
    waiting: int = 64  # questions under way at once; more are turned away


def serve(workspace: Workspace, serving: Serving) -> tuple[str, Callable[[], None]]:
    """Start the server in the background. Returns its address and what stops it. Raises OSError when the port is taken."""
    listening = listener(serving.host, serving.port)
    port = listening.getsockname()[1]
    workspace.most_runs = serving.waiting
    page = build_page(workspace)
    controller = wire(workspace, page)
    Asking(controller, page).wire()
    page.blocks.queue(max_size=serving.waiting, api_open=False, default_concurrency_limit=serving.waiting)
    app = _behind_doors(_mounted(page, workspace, serving), workspace, serving, port, page.blocks.fns.keys())
    stop = in_background(app, listening)

    def close() -> None:
        page.blocks.close(verbose=False)
        stop()

    return _address(serving, port), close


def _address(serving: Serving, port: int) -> str:
    host = "localhost" if serving.host in ("0.0.0.0", "::") else serving.host
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={serving.token}" if serving.token else "")


def _mounted(page: Page, workspace: Workspace, serving: Serving) -> FastAPI:
    """The page as an application, with routes of our own for its files."""
    app = FastAPI(routes=[*file_routes(workspace)], docs_url=None, redoc_url=None, openapi_url=None)
    page.blocks.max_threads = page.blocks._queue.max_thread_count = (
        serving.waiting + SPARE_THREADS
    )  # as `launch` sets them
    gr.mount_gradio_app(
        app,
        page.blocks,
        path="",
        auth=Logins(serving.users) if serving.users else None,
        ssr_mode=False,
        footer_links=[],
        run_history=False,
        show_error=False,
        enable_monitoring=False,
        theme=theme(),
        css_paths=[FOLDER / "style.css"],
        head=_head(),
    )
    page.blocks.has_launched = True  # from now on Gradio looks at the paths that a request names
    return app


def _behind_doors(
    app: FastAPI, workspace: Workspace, serving: Serving, port: int, handlers: Container[object]
) -> ASGIApp:
    """The application for those who may use it; the outermost door comes last. `handlers`: the numbers of its events."""
    signed_in = _signed_in(app) if serving.users else None
    token = None if serving.users else serving.token
    inner = OwnSessions(app, workspace.page_open, handlers)
    read = WholeBody(inner, LONGEST_EVENT, EVENT_DEADLINE_S, streamed=(UPLOAD,))
    return SafeHeaders(trusted(Entrance(read, token, port, signed_in), serving.host, serving.hosts), _POLICY)


def _signed_in(app: FastAPI) -> Callable[[Cookies], str | None]:
    """Who signed in, by Gradio's cookies."""
    inside = app.routes[-1].app  # type: ignore[attr-defined]  # what was mounted last

    def user(cookies: Cookies) -> str | None:
        name = f"access-token-unsecure-{inside.cookie_id}"
        found: str | None = inside.tokens.get(cookies.get(name, ""))
        return found

    return user


def _head() -> str:
    script = "".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return f'<meta name="viewport" content="width=device-width, initial-scale=1"><script>{script}</script>'
