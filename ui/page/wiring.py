"""What the components do: every handler finds its session, calls it, and returns updates. Asking is in `ui.page.asking`."""

from collections.abc import Iterator
from typing import Any

import gradio as gr

from agent.race import NoRace
from decoding.serving.model_queue import Stopped
from tools.result import OpenError
from ui.page import panel as panels
from ui.page.following import Following, on, on_change, warn_if_not_kept
from ui.page.opening import Opening
from ui.page.page import Page
from ui.session.kept import Busy, OtherData
from ui.session.session import Session
from ui.session.workspace import Full, NotYours, Workspace
from ui.views.messages import message_turn, messages
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

    def load(self, request: gr.Request) -> Iterator[Updates]:
        """A page comes: who signed in, or this browser, owns what is asked here. It shows the newest conversation, and what
        still runs in it."""
        owner = request.state.owner
        try:
            session = self.workspace.session(request.session_hash or "", owner)
            session.database.schema()
        except (Full, NotYours, OpenError) as error:
            raise gr.Error(str(error)) from error
        newest = self.workspace.archive.search(owner, most=1)
        if newest and not session.view.turns:
            session.resume(newest[0].id)
        yield from self.following.follow(session)

    def unload(self, request: gr.Request) -> None:
        if self.workspace.find(request.session_hash or "", request.state.owner):
            self.workspace.leave(request.session_hash or "")

    def judge(self, data: gr.LikeData, request: gr.Request) -> None:
        """`data.liked` is True, False, or an empty text where it is taken back."""
        session = self.session(request)
        turn = message_turn(session.view.turns, data.index)
        if turn is not None:
            session.judge(turn, data.liked if isinstance(data.liked, bool) else _word(data.liked))
            warn_if_not_kept(session)

    def choose(self, index: int | None, request: gr.Request) -> Updates:
        return panels.show(self.page.panel, self.session(request), index)

    def run_sql(self, sql: str, index: int | None, request: gr.Request) -> Iterator[Updates]:
        """Run what stands in the editor; it belongs to the chosen answer. Until its rows are here it can be stopped."""
        session, panel = self.session(request), self.page.panel
        if index is None or not session.view.turns:
            yield {panel.trouble: "Ask a question first: this SQL is kept with its answer."}
            return
        yield self._running(True) | {panel.trouble: '<span class="spinner"></span> Running …'}
        yield self._running(False) | self._ran(session, sql, index)

    def _ran(self, session: Session, sql: str, index: int) -> Updates:
        panel, kept = self.page.panel, session.kept
        try:
            ran = session.run_sql(sql, index)
        except OtherData as error:
            return {panel.trouble: f"⚠ {plain(str(error))}"}
        if session.kept is not kept or index >= len(kept.view.turns):
            return {}  # another conversation is shown by now
        warn_if_not_kept(session)
        updates: Updates = {panel.own: gr.update(visible=True)}
        updates |= {panel.trouble: panels.told_error(ran.error), panel.words: panels.explained(session, sql)}
        if ran.error is not None:
            return updates
        shown = panels.show_rows(panel, session, session.view.turns[index], index)
        return updates | shown | {panel.trouble: f"✓ {shown[panel.caption]}. The Result and Chart tabs show them."}

    def _running(self, runs: bool) -> Updates:
        return {self.page.panel.run: gr.update(visible=not runs), self.page.panel.halt: gr.update(visible=runs)}

    def halt(self, request: gr.Request) -> None:
        """Stop the SQL that runs by hand; its error says so."""
        self.session(request).database.interrupt()

    def show_own(self, index: int | None, request: gr.Request) -> Updates:
        """The answer's own SQL and rows again."""
        session = self.session(request)
        if index is not None and index < len(session.view.turns):
            session.show_own(index)
            warn_if_not_kept(session)
        return panels.show(self.page.panel, session, index)

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
        turn = -1 if index is None else index
        return panels.redraw(self.page.panel, self.session(request), turn, kind, x, y, bool(every))

    def decode_view(self, index: int | None, step: int | None, request: gr.Request) -> str:
        turns = self.session(request).view.turns
        if index is None or step is None or index >= len(turns) or step >= len(turns[index].steps):
            return decoding_html(None)
        return decoding_html(turns[index].steps[step])

    def measure(self, request: gr.Request) -> Iterator[Updates]:
        """Decode the newest answer's steps plainly, and show the time that took beside theirs."""
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
        on_change(page.blocks.load, c.load, [], c.following.outputs)
        page.blocks.unload(c.unload)
        on(page.chat.like, c.judge, None, None)
        on(panel.turn.input, c.choose, [panel.turn], panel.of_a_turn)
        run_outputs = [panel.run, panel.halt, panel.own, panel.trouble, panel.words, *panel.of_rows]
        on(panel.run.click, c.run_sql, [panel.sql, panel.turn], run_outputs)
        on(panel.halt.click, c.halt, None, None, queue=False)
        on(panel.own.click, c.show_own, [panel.turn], panel.of_a_turn)
        on(panel.export.click, c.export, [panel.sql, panel.export_kind], [panel.download])
        chart: list[Any] = [panel.chart_kind, panel.chart_x, panel.chart_y, panel.chart_every]
        for part in chart:
            chosen = [panel.turn, *chart]
            on(part.input, c.redraw, chosen, panel.of_a_chart)
        on(panel.step.input, c.decode_view, [panel.turn, panel.step], [panel.decoding])
        on(panel.measure.click, c.measure, [], [panel.measure, panel.savings, page.chat])
        on(panel.race.click, c.race, [panel.race_step, panel.race_methods, panel.race_more], [panel.race_view])
        c.opening.wire()
    return c


def _word(liked: Any) -> bool | None:
    return {"Like": True, "Dislike": False}.get(str(liked))
