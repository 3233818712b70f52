"""Asking, as the page does it: the stream of a question into the chat, then the panel. Retry, edit, options, stop."""

from collections.abc import Iterator
from time import perf_counter
from typing import Any, TypedDict, Unpack

import gradio as gr

from agent.observe.events import Answered, Failed, Wrote
from agent.state import Reading
from ui.page import panel as panels
from ui.page.opening import warn_if_not_kept
from ui.page.page import Page
from ui.page.wiring import Controller
from ui.session.kept import Busy, OtherData
from ui.session.session import Session
from ui.views.messages import (
    AS_IT_STANDS,
    ASK_AFRESH,
    chosen_label,
    chosen_reading,
    message_turn,
    messages,
    turn_messages,
)

LONGEST_QUESTION = 8000  # characters, evidence included
PAUSE_S = 0.1  # between two updates of the chat while text is written: a page with a long conversation keeps up
ASKERS = 32  # questions that are answered at a time; their steps take turns at the model

Updates = dict[Any, Any]


class How(TypedDict, total=False):
    """How a question is put, as `Session.ask` takes it."""

    again: int
    ask_back: bool
    reading: Reading
    chosen: str
    reply: str


class Asking:
    """Handlers that put a question."""

    def __init__(self, controller: Controller, page: Page) -> None:
        self._controller, self._page = controller, page

    def ask(self, question: str, request: gr.Request) -> Iterator[Updates]:
        """A question from the box."""
        if question.strip():
            yield from self._stream(self._controller.session(request), question.strip())

    def example(self, data: gr.SelectData, request: gr.Request) -> Iterator[Updates]:
        yield from self._stream(self._controller.session(request), data.value["text"])

    def retry(self, data: gr.RetryData, request: gr.Request) -> Iterator[Updates]:
        """The question again as a new turn: in its other reading, or sampled."""
        session = self._controller.session(request)
        turn = message_turn(session.view.turns, data.index)
        if turn is not None:
            asked = session.view.turns[turn]
            yield from self._stream(session, asked.question, asked.evidence, again=turn)

    def option(self, data: gr.SelectData, request: gr.Request) -> Iterator[Updates]:
        """An offered reply was clicked: the last question again, with that as evidence, as it stands, by itself, or in
        another reading."""
        session = self._controller.session(request)
        if not session.view.turns:
            return
        last, chosen = session.view.turns[-1], str(data.value)
        reply = chosen_label(last, chosen)
        if chosen == AS_IT_STANDS:
            yield from self._stream(session, last.question, last.evidence, ask_back=False, reply=reply)
        elif sql := chosen_reading(last.answer, chosen):
            yield from self._stream(session, last.question, last.evidence, chosen=sql, reply=reply)
        elif chosen == ASK_AFRESH:
            yield from self._stream(session, last.question, last.evidence, reading="standalone", reply=reply)
        else:
            evidence = "; ".join(filter(None, (last.evidence, chosen)))
            yield from self._stream(session, last.question, evidence, reply=reply)

    def edit(self, data: gr.EditData, request: gr.Request) -> Iterator[Updates]:
        """A question was changed: the conversation goes on from there in a copy; the original stays in the list. A changed
        reply settles the same question in other words."""
        session = self._controller.session(request)
        turn = message_turn(session.view.turns, data.index)
        text = str(data.value).strip()
        if turn is None or not text:
            return
        before = session.view.turns[turn]
        if not session.wants:
            session.branch(turn)
        if before.reply:
            yield from self._stream(session, before.question, text, reply=text)
        else:
            yield from self._stream(session, text)

    def stop(self, request: gr.Request) -> Updates:
        self._controller.session(request).stop()
        return {self._page.question: gr.update(submit_btn=True, stop_btn=False)}

    def _stream(self, session: Session, question: str, evidence: str = "", **how: Unpack[How]) -> Iterator[Updates]:
        if len(question) + len(evidence) > LONGEST_QUESTION:
            raise gr.Error(f"A question may have {LONGEST_QUESTION:,} characters, what was said of it included.")
        if session.wants:  # the question stays in the box until its data are open
            yield {self._page.question: question} | self._controller.opening.notice(session)
            return
        page, before = self._page, messages(session.view.turns)
        number = len(session.view.turns)
        yield {page.question: gr.update(value="", submit_btn=False, stop_btn=True)}
        last = 0.0
        try:
            for event in session.ask(question, evidence, **how):
                soon = isinstance(event, Wrote) and perf_counter() - last < PAUSE_S
                if soon or isinstance(event, Answered | Failed):  # the end shows together with the panel, below
                    continue
                last = perf_counter()
                yield {page.chat: [*before, *turn_messages(session.view.turns[number], number)]}
        except (Busy, OtherData) as error:
            raise gr.Error(str(error)) from error
        warn_if_not_kept(session)
        ready = {page.question: gr.update(submit_btn=True, stop_btn=False)}
        chat = {page.chat: messages(session.view.turns)}
        yield ready | chat | panels.show(page.panel, session) | self._controller.opening.listed(session)

    def wire(self) -> None:
        """Connect chat and question box."""
        page = self._page
        outputs = [
            page.question,
            page.notice,
            page.chat,
            page.side.conversations,
            page.side.restore,
            *page.panel.of_a_turn,
        ]
        how: dict[str, Any] = {
            "outputs": outputs,
            "concurrency_limit": ASKERS,
            "concurrency_id": "ask",
            "show_progress": "hidden",
            "trigger_mode": "once",
        }
        with page.blocks:
            page.question.submit(self.ask, [page.question], api_visibility="private", **how)
            for event, handler in (
                (page.chat.example_select, self.example),
                (page.chat.retry, self.retry),
                (page.chat.option_select, self.option),
                (page.chat.edit, self.edit),
            ):
                event(handler, None, api_visibility="private", **how)
            page.question.stop(self.stop, None, [page.question], queue=False, api_visibility="private")
