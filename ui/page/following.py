"""Keeps a page up to date with its session, whatever happens to that meanwhile, and turns whatever a handler raises into a
sentence.

Handlers run side by side, and what they return may arrive in any order. So each of them ends by `Following.follow`: after
everything that it has sent it looks again, and sends what has changed since. What arrives last is then what the session shows.
"""

import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any

import gradio as gr

from agent.archive import Entry
from tools.linking.questions import first_questions
from ui.page import panel as panels
from ui.page.files import waiting_files
from ui.page.page import Page
from ui.session.kept import named
from ui.session.run import SORRY
from ui.session.session import EXAMPLE, Session, Standing
from ui.session.workspace import Workspace
from ui.views.data_html import schema_html
from ui.views.messages import Message, messages, turn_messages
from ui.views.words import plain

PAUSE_S = 0.1  # between two updates of the chat while text is written: a page with a long conversation keeps up
NEW = "new"  # in the place of the id of a conversation in which nothing is asked yet
PINNED = "▴ "  # before the name of a pinned conversation
LOOK_S = 1.0  # without news, look whether the page shows something else

Updates = dict[Any, Any]


class Following:
    """What the page shows of a session."""

    def __init__(self, workspace: Workspace, page: Page) -> None:
        self._workspace, self._page = workspace, page

    @property
    def outputs(self) -> list[Any]:
        """All that `follow` updates."""
        page = self._page
        side = [
            page.side.schema,
            page.side.undo,
            page.side.recent,
            page.side.forget,
            *page.side.listed,
            *self._troubles,
        ]
        return [*side, page.chat, page.notice, page.question, page.bridge, *page.preview.parts, *page.panel.of_a_turn]

    def follow(self, session: Session, shown: Standing | None = None, place: int = 0) -> Iterator[Updates]:
        """Updates until the page shows what the session does and nothing runs there, or another handler follows. `shown`: what
        the page shows already; `place`: the sheet to show of files that wait."""
        mine = session.follower = object()
        seen, before = 0, list[Message]()
        while True:
            standing = session.standing
            if standing != shown:
                if shown and shown.runs and not standing.runs:
                    warn_if_not_kept(session)
                seen, before = 0, messages(standing.kept.view.turns[: standing.turns])[:-2]
                yield self._changed(session, standing, shown, place)
                shown = standing
                continue
            run = standing.kept.run
            if run is None or session.follower is not mine:
                return
            news = run.after(seen, LOOK_S)
            if news > seen and session.standing == shown:
                seen, turns = news, standing.kept.view.turns
                yield {self._page.chat: [*before, *turn_messages(turns[standing.turns - 1], standing.turns - 1)]}
                run.join(PAUSE_S)

    def _changed(self, session: Session, standing: Standing, shown: Standing | None, place: int) -> Updates:
        """What differs from what the page shows."""
        updates = self._conversation(session, standing)
        if shown is None or standing.opened is not shown.opened:
            updates |= self._data(session) | {part: gr.update(value="", visible=False) for part in self._troubles}
        if shown is None or standing.offered is not shown.offered:
            updates |= waiting_files(self._page.preview, session, place)
        if shown is None or standing.kept is not shown.kept or standing.opened is not shown.opened or not standing.runs:
            updates |= panels.show(self._page.panel, session)
        return updates

    @property
    def _troubles(self) -> list[Any]:
        """What says at a field that its data could not be opened."""
        return [self._page.side.files_trouble, self._page.side.url_trouble]

    def notice(self, session: Session) -> Updates:
        """Above the question box: which data the conversation needs, where these are not open."""
        told = ""
        if session.wants:
            about = plain(named(session.wants))
            told = f"⚠ This conversation is about **{about}**, which is not open. Open that under Data to go on."
        elif session.editing is not None:
            told = f"✎ What you send takes the place of question {session.editing + 1}, in a copy. Escape leaves it."
        return {self._page.notice: gr.update(value=told, visible=bool(told))}

    def _data(self, session: Session) -> Updates:
        side, database = self._page.side, session.database
        schema = schema_html(database.schema(), database.name)
        return {side.schema: schema, side.undo: gr.update(visible=session.data.steps > 0)} | self.recent(session)

    def recent(self, session: Session) -> Updates:
        """The files that are kept, to be opened again or removed."""
        side, kept = self._page.side, self._workspace.kept_files.recent(session.owner)
        choices = [(f"{named(source).removeprefix('files: ')} · {_when(used_s)}", source) for source, used_s in kept]
        value = session.source if session.source in dict(kept) else None
        return {
            side.recent: gr.update(choices=choices, value=value, visible=bool(kept)),
            side.forget: gr.update(visible=bool(kept)),
        }

    def _conversation(self, session: Session, standing: Standing) -> Updates:
        """Chat, question box and list."""
        schema, name = session.database.schema(), session.database.name
        examples = [{"text": question} for question in first_questions(schema, name)]
        chat = gr.update(value=messages(standing.kept.view.turns), examples=examples)
        return (
            {self._page.chat: chat, self._page.bridge: standing.id or NEW}
            | {self._page.question: send_or_stop(standing.runs)}
            | self.notice(session)
            | self.listed(session)
        )

    def listed(self, session: Session, text: str = "") -> Updates:
        """The list of conversations, and what can be done to the one that is shown."""
        entries, side = self._workspace.archive.search(session.owner, text), self._page.side
        shown = next((entry for entry in entries if entry.id == session.kept.id), None)
        value = shown.id if shown else None
        choices = [(_label(entry, session.example_name), entry.id) for entry in entries]
        gone = session.deleted
        undo = gr.update(
            visible=gone is not None, value=f"Undo: bring back “{_short(gone.entry.title)}”" if gone else "Undo"
        )
        label = f"No conversation asks for “{_short(text)}”" if text and not entries else "Conversations"
        found = gr.update(choices=choices, value=value, label=label)
        name = gr.update(value=shown.title if shown else "", visible=shown is not None)
        pin = gr.update(value="Unpin" if shown and shown.pinned else "Pin", interactive=shown is not None)
        return {side.conversations: found, side.restore: undo, side.name: name, side.pin: pin}


def send_or_stop(runs: bool) -> Any:
    """The question box with its one button."""
    return gr.update(submit_btn=not runs, stop_btn=runs)


def on(event: Callable[..., Any], handler: Callable[..., Any], inputs: Any, outputs: Any, **how: Any) -> None:
    """Connect a handler. Whatever it raises is told in a sentence; Gradio would lay the word "Error" over all outputs."""
    event(
        told(handler),
        inputs,
        outputs,
        api_visibility="private",
        **{"show_progress": "minimal", "concurrency_limit": 8} | how,
    )


def on_change(
    event: Callable[..., Any], handler: Callable[..., Any], inputs: Any, outputs: Any, js: str | None = None
) -> None:
    """Connect a handler that follows. It may last as long as a question does, so nothing waits for its end."""
    how: dict[str, Any] = {
        "show_progress": "hidden",
        "trigger_mode": "multiple",
        "concurrency_limit": "default",
        "js": js,
    }
    on(event, handler, inputs, outputs, **how)


def told(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The handler, which raises nothing."""

    @wraps(handler)
    def stream(*given: Any, **named: Any) -> Iterator[Any]:
        try:
            yield from handler(*given, **named)
        except Exception as error:
            _tell(error)
            yield gr.skip()

    @wraps(handler)
    def once(*given: Any, **named: Any) -> Any:
        try:
            return handler(*given, **named)
        except Exception as error:
            _tell(error)
            return gr.skip()

    return stream if isgeneratorfunction(handler) else once


def _tell(error: Exception) -> None:
    if isinstance(error, gr.Error):
        gr.Warning(plain(error.message), title="")
    else:
        traceback.print_exception(error, file=sys.stderr)
        gr.Warning(f"{SORRY} Try again, or reload the page.", title="")


def warn_if_not_kept(session: Session) -> None:
    """Say so where what just happened could not be stored."""
    if session.kept.trouble:
        gr.Warning(f"{session.kept.trouble[0].upper()}{session.kept.trouble[1:]}.")


def _short(title: str) -> str:
    return title if len(title) <= 30 else f"{title[:29]}…"


def _when(seconds: float) -> str:
    """The time of a moment of today, the date of another."""
    then, now = datetime.fromtimestamp(seconds), datetime.now()
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then.day} {then:%b %Y}"


def _label(entry: Entry, first: str) -> str:
    """Two lines: the name, or what was asked first; when, and of which data, `first` being the name of those that the server
    began with. A source's last part never holds a password."""
    when = _when(entry.changed_s)
    source = first if entry.source == EXAMPLE else named(entry.source)
    data = source.split("?")[0].rstrip("/").rpartition("/")[2].rpartition("@")[2]
    pinned = PINNED if entry.pinned else ""
    return f"{pinned}{_short(entry.title) or '(nothing asked yet)'}\n{when}{f' · {data}' if data else ''}"
