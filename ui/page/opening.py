"""Opening things: data, conversations, settings. What each changes in the session; the page follows."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr

from agent.observe.events import EventError
from decoding.errors import ModelError
from tools.result import OpenError
from ui.page.files import Incoming
from ui.page.following import Following, on, on_change, warn_if_not_kept
from ui.page.page import Page, hint_text
from ui.session.services import Settings
from ui.session.session import Session
from ui.session.workspace import Workspace
from ui.views.words import plain

Updates = dict[Any, Any]


class Opening:
    """Handlers of the sidebar. `find`: the session of a request."""

    def __init__(
        self, workspace: Workspace, page: Page, following: Following, find: Callable[[gr.Request], Session]
    ) -> None:
        self._workspace, self._page, self._following, self._find = workspace, page, following, find
        self._incoming = Incoming(page.preview, find, following.follow)

    def files(self, paths: list[str] | None, request: gr.Request) -> Iterator[Updates]:
        session = self._find(request)
        if not paths:
            return
        side = self._page.side
        with self._own(session, paths) as files:
            try:
                if not session.data.offer(files).sheets:
                    session.take(beside=True)
            except OpenError as error:
                told = _without_folders(str(error), files)
                yield _told(side.files_trouble, told) | {side.files: None}
                return
        yield {side.files: None} | _told(side.files_trouble, "")
        yield from self._following.follow(session)

    def undo(self, request: gr.Request) -> Iterator[Updates]:
        """Back to the data that were open before files were taken in."""
        session = self._find(request)
        session.undo()
        yield from self._following.follow(session)

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

    def recent(self, source: str | None, request: gr.Request) -> Iterator[Updates]:
        """Files that were brought within the last week."""
        session = self._find(request)
        if source and source != session.source:
            self._try(lambda: session.open_kept(source))
        yield from self._following.follow(session)

    def forget(self, request: gr.Request) -> Updates:
        """Remove the copies that are kept; what is open stays open."""
        session = self._find(request)
        self._workspace.kept_files.forget(session.owner)
        return self._following.recent(session)

    def url(self, url: str, request: gr.Request) -> Iterator[Updates]:
        session = self._find(request)
        try:
            session.open_url(url.strip())
        except OpenError as error:
            yield _told(self._page.side.url_trouble, str(error))
            return
        yield {self._page.side.url: ""}
        yield from self._following.follow(session)

    def example(self, request: gr.Request) -> Iterator[Updates]:
        session = self._find(request)
        self._try(session.open_example)
        yield from self._following.follow(session)

    def new(self, request: gr.Request) -> Iterator[Updates]:
        session = self._find(request)
        session.begin()
        yield from self._following.follow(session)

    def resume(self, name: str | None, request: gr.Request) -> Iterator[Updates]:
        session = self._find(request)
        if name:
            self._try(lambda: session.resume(name))
        yield from self._following.follow(session)

    def go_to(self, session: Session, name: str) -> Iterator[Updates]:
        """The conversation that an address names; a new one where it names none."""
        if not name and session.view.turns:
            session.begin()
        elif name and name != session.kept.id:
            self._try(lambda: session.resume(name))
        yield from self._following.follow(session)

    def search(self, text: str, request: gr.Request) -> Updates:
        return self._following.listed(self._find(request), text.strip())

    def rename(self, name: str | None, title: str, text: str, request: gr.Request) -> Updates:
        """Call the conversation otherwise than by its first question."""
        session = self._find(request)
        if name:
            self._workspace.archive.rename(session.owner, name, title)
        return self._following.listed(session, text.strip())

    def pin(self, name: str | None, text: str, request: gr.Request) -> Updates:
        """Put the conversation before the others, or back among them."""
        session, archive = self._find(request), self._workspace.archive
        entry = archive.entry(session.owner, name) if name else None
        if entry is not None:
            archive.pin(session.owner, entry.id, not entry.pinned)
        return self._following.listed(session, text.strip())

    def delete(self, name: str | None, request: gr.Request) -> Iterator[Updates]:
        session = self._find(request)
        if name:
            session.delete(name)
        yield from self._following.follow(session)

    def restore(self, request: gr.Request) -> Iterator[Updates]:
        """Bring the deleted conversation back."""
        session = self._find(request)
        if trouble := session.restore():
            raise gr.Error(trouble)
        yield from self._following.follow(session)

    def share(self, request: gr.Request) -> Updates:
        path = self._find(request).share()
        return {self._page.side.shared: gr.update(value=str(path), visible=True)}

    def replay(self, path: str, request: gr.Request) -> Iterator[Updates]:
        session = self._find(request)
        with self._own(session, [path]) as (file,):
            self._try(lambda: session.replay(file))
        warn_if_not_kept(session)
        yield from self._following.follow(session)

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
        side, outputs = self._page.side, self._following.outputs
        on_change(side.files.upload, self.files, [side.files], [*outputs, side.files])
        self._incoming.wire(on_change, outputs)
        on_change(side.recent.input, self.recent, [side.recent], outputs)
        on(side.forget.click, self.forget, [], [side.recent, side.forget])
        on_change(side.undo.click, self.undo, [], outputs)
        on_change(side.open_url.click, self.url, [side.url], [*outputs, side.url])
        on_change(side.url.submit, self.url, [side.url], [*outputs, side.url])
        on_change(side.example.click, self.example, [], outputs)
        on_change(side.new.click, self.new, [], outputs)
        on_change(side.conversations.input, self.resume, [side.conversations], outputs)
        on_change(side.delete.click, self.delete, [side.conversations], outputs)
        on_change(side.restore.click, self.restore, [], outputs)
        on_change(side.replay.upload, self.replay, [side.replay], outputs)
        on(side.search.change, self.search, [side.search], side.listed)
        on(side.name.submit, self.rename, [side.conversations, side.name, side.search], side.listed)
        on(side.pin.click, self.pin, [side.conversations, side.search], side.listed)
        on(side.share.click, self.share, [], [side.shared])
        for part in side.settings:
            on(part.change, self.settings, set(side.settings), [side.options_hint])

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (OpenError, EventError) as error:
            raise gr.Error(str(error)) from error


def _told(trouble: gr.Markdown, error: str) -> Updates:
    """Says at a field what was wrong with it, or that nothing is."""
    return {trouble: gr.update(value=f"⚠ {plain(error)}" if error else "", visible=bool(error))}


def _without_folders(error: str, files: Iterable[Path]) -> str:
    """An error without the server's own folders: who uploaded a file knows it by its name."""
    for file in files:
        error = re.sub(rf"/\S*/(?={re.escape(file.name)})", "", error)
    return error
