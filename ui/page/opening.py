"""Opening things: data, conversations, settings. What each changes on the page."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import gradio as gr

from agent.conversation.archive import Entry
from agent.observe.event_json import EventError
from decoding.errors import ModelError
from tools.linking.starter_questions import first_questions
from tools.result import OpenError
from ui.page import panel as panels
from ui.page.incoming import Incoming
from ui.page.page import Page
from ui.page.sidebar import hint_text
from ui.session.session import EXAMPLE, Session
from ui.session.settings import Settings
from ui.session.workspace import Workspace
from ui.views.messages import messages
from ui.views.schema_html import schema_html
from ui.views.words import plain

Updates = dict[Any, Any]


class Opening:
    """Handlers of the sidebar. `find`: the session of a request."""

    def __init__(self, workspace: Workspace, page: Page, find: Callable[[gr.Request], Session]) -> None:
        self._workspace, self._page, self._find = workspace, page, find
        self._incoming = Incoming(page.preview, find, self.everything)

    @property
    def everywhere(self) -> list[Any]:
        """What a change of data or conversation updates."""
        page = self._page
        data = [page.side.schema, page.side.undo, *self._troubles]
        return [*data, page.chat, page.notice, page.side.conversations, page.side.restore, *page.panel.of_a_turn]

    @property
    def _troubles(self) -> list[Any]:
        """What says at a field that its data could not be opened."""
        return [self._page.side.files_trouble, self._page.side.url_trouble]

    def everything(self, session: Session) -> Updates:
        """The whole page of a session."""
        no_trouble = {part: gr.update(value="", visible=False) for part in self._troubles}
        return self._data(session) | self.conversation(session) | no_trouble

    def notice(self, session: Session) -> Updates:
        """Above the question box: which data the conversation needs, where these are not open."""
        told = f"⚠ This conversation is about **{plain(session.wants)}**, which is not open. Open that under Data to go on."
        return {self._page.notice: gr.update(value=told if session.wants else "", visible=bool(session.wants))}

    def _data(self, session: Session) -> Updates:
        side, database = self._page.side, session.database
        schema = schema_html(database.schema(), database.name)
        return {side.schema: schema, side.undo: gr.update(visible=session.data.can_undo)}

    def conversation(self, session: Session) -> Updates:
        """Chat, list and panel."""
        examples = [{"text": question} for question in _first_questions(session)]
        chat = gr.update(value=messages(session.view.turns), examples=examples)
        return (
            {self._page.chat: chat}
            | self.notice(session)
            | self.listed(session)
            | panels.show(self._page.panel, session)
        )

    def listed(self, session: Session, text: str = "") -> Updates:
        """The list of conversations."""
        entries = self._workspace.archive.search(session.owner, text)
        names = [entry.id for entry in entries]
        value = session.kept.id if session.kept.id in names else None
        first = session.database.name if session.source == EXAMPLE else "the first data"
        choices = [(_label(entry, first), entry.id) for entry in entries]
        gone = session.kept.deleted
        undo = gr.update(visible=gone is not None, value=f"Undo: bring back “{_short(gone.title)}”" if gone else "Undo")
        return {self._page.side.conversations: gr.update(choices=choices, value=value), self._page.side.restore: undo}

    def files(self, paths: list[str] | None, request: gr.Request) -> Updates:
        session = self._find(request)
        if not paths:
            return {}
        with self._own(session, paths) as files:
            try:
                if not session.data.offer(files).sheets:
                    session.take(beside=True)
            except OpenError as error:
                told = _without_folders(str(error), files)
                return _told(self._page.side.files_trouble, told) | {self._page.side.files: None}
        return self.everything(session) | self._incoming.shown(session) | {self._page.side.files: None}

    def undo(self, request: gr.Request) -> Updates:
        """Back to the data that were open before files were taken in."""
        session = self._find(request)
        session.undo()
        return self.everything(session)

    @contextmanager
    def _own(self, session: Session, paths: list[str]) -> Iterator[list[Path]]:
        """Uploaded files, which are removed afterwards. Raises gr.Error for any that this session's owner did not upload."""
        files, own = [Path(path) for path in paths], self._workspace.files
        if not all(own.owns(session.owner, file) for file in files):
            raise gr.Error("These files are gone, or were not uploaded here: upload them again.")
        try:
            yield files
        finally:
            for file in files:
                own.discard(session.owner, file)

    def url(self, url: str, request: gr.Request) -> Updates:
        session = self._find(request)
        try:
            session.open_url(url.strip())
        except OpenError as error:
            return _told(self._page.side.url_trouble, str(error))
        return self.everything(session) | {self._page.side.url: ""}

    def example(self, request: gr.Request) -> Updates:
        session = self._find(request)
        self._try(session.open_example)
        return self.everything(session)

    def new(self, request: gr.Request) -> Updates:
        session = self._find(request)
        session.begin()
        return self.conversation(session)

    def resume(self, name: str | None, request: gr.Request) -> Updates:
        session = self._find(request)
        if name:
            session.resume(name)
        return self.everything(session)

    def search(self, text: str, request: gr.Request) -> Updates:
        return self.listed(self._find(request), text.strip())

    def delete(self, name: str | None, request: gr.Request) -> Updates:
        session = self._find(request)
        if name:
            session.delete(name)
        return self.conversation(session)

    def restore(self, request: gr.Request) -> Updates:
        """Bring the deleted conversation back."""
        session = self._find(request)
        session.restore()
        warn_if_not_kept(session)
        return self.everything(session)

    def share(self, request: gr.Request) -> Updates:
        path = self._find(request).share()
        return {self._page.side.shared: gr.update(value=str(path), visible=True)}

    def replay(self, path: str, request: gr.Request) -> Updates:
        session = self._find(request)
        with self._own(session, [path]) as (file,):
            self._try(lambda: session.replay(file))
        warn_if_not_kept(session)
        return self.conversation(session)

    def settings(self, values: dict[Any, Any], request: gr.Request) -> str:
        """Take the settings over when they are sound; says what is wrong otherwise."""
        session = self._find(request)
        settings = Settings(*(values[part] for part in self._page.side.settings))
        try:
            settings.check()
        except (ModelError, ValueError) as error:
            return f"⚠ {plain(str(error))}"
        session.settings = settings
        return hint_text(settings.decoder)

    def wire(self) -> None:
        """Connect the sidebar; called inside the blocks."""
        side, everywhere = self._page.side, self.everywhere
        _on(side.files.upload, self.files, [side.files], [*everywhere, *self._page.preview.parts, side.files])
        self._incoming.wire(_on, everywhere)
        _on(side.undo.click, self.undo, [], everywhere)
        _on(side.open_url.click, self.url, [side.url], [*everywhere, side.url])
        _on(side.url.submit, self.url, [side.url], [*everywhere, side.url])
        _on(side.example.click, self.example, [], everywhere)
        _on(side.new.click, self.new, [], everywhere)
        _on(self._page.chat.clear, self.new, [], everywhere)
        _on(side.conversations.input, self.resume, [side.conversations], everywhere)
        _on(side.search.change, self.search, [side.search], [side.conversations, side.restore])
        _on(side.delete.click, self.delete, [side.conversations], everywhere)
        _on(side.restore.click, self.restore, [], everywhere)
        _on(side.share.click, self.share, [], [side.shared])
        _on(side.replay.upload, self.replay, [side.replay], everywhere)
        for part in side.settings:
            _on(part.change, self.settings, set(side.settings), [side.options_hint])

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (OpenError, EventError) as error:
            raise gr.Error(str(error)) from error


def _on(event: Callable[..., Any], handler: Callable[..., Any], inputs: Any, outputs: list[Any]) -> None:
    event(handler, inputs, outputs, api_visibility="private", concurrency_limit=8, show_progress="minimal")


def _told(trouble: gr.Markdown, error: str) -> Updates:
    """Says at a field what was wrong with it; nothing else changes."""
    return {trouble: gr.update(value=f"⚠ {plain(error)}", visible=True)}


def _without_folders(error: str, files: Iterable[Path]) -> str:
    """An error without the server's own folders: who uploaded a file knows it by its name."""
    for file in files:
        error = re.sub(rf"/\S*/(?={re.escape(file.name)})", "", error)
    return error


def warn_if_not_kept(session: Session) -> None:
    """Say so where what just happened could not be stored."""
    if session.kept.trouble:
        gr.Warning(f"{session.kept.trouble[0].upper()}{session.kept.trouble[1:]}.")


def _first_questions(session: Session) -> list[str]:
    """What to begin with: written questions for the bundled data, others made from the schema."""
    return first_questions(session.database.schema(), session.database.name)


def _short(title: str) -> str:
    return title if len(title) <= 30 else f"{title[:29]}…"


def _label(entry: Entry, first: str) -> str:
    """Two lines: what was asked first; when, and of which data, `first` being the name of those that the server began with. A
    source's last part never holds a password."""
    changed, now = datetime.fromtimestamp(entry.changed_s), datetime.now()
    when = f"{changed:%H:%M}" if changed.date() == now.date() else f"{changed.day} {changed:%b %Y}"
    source = first if entry.source == EXAMPLE else entry.source
    data = source.split("?")[0].rstrip("/").rpartition("/")[2].rpartition("@")[2]
    return f"{_short(entry.title) or '(nothing asked yet)'}\n{when}{f' · {data}' if data else ''}"
