"""Asking, as the page does it: a question begins to be answered, and the page follows. Retry, edit, options, stop."""

from collections.abc import Iterator
from typing import Any

import gradio as gr

from ui.page.following import on, on_change, send_or_stop
from ui.page.page import Page
from ui.page.wiring import Controller
from ui.session.kept import Busy, OtherData
from ui.session.run import Question
from ui.session.session import Session
from ui.views.messages import (
    AS_IT_STANDS,
    ASK_AFRESH,
    TRY_AGAIN,
    chosen_label,
    chosen_reading,
    message_turn,
)

LONGEST_QUESTION = 8000  # characters, evidence included
STOPPING_S = 5.0  # so long the stop button waits for the end of what it stopped

Updates = dict[Any, Any]


class Asking:
    """Handlers that put a question."""

    def __init__(self, controller: Controller, page: Page) -> None:
        self._controller, self._page = controller, page

    def ask(self, question: str, request: gr.Request) -> Iterator[Updates]:
        """A question from the box."""
        if question.strip():
            yield from self._put(self._controller.session(request), Question(question.strip()))

    def example(self, data: gr.SelectData, request: gr.Request) -> Iterator[Updates]:
        yield from self._put(self._controller.session(request), Question(data.value["text"]))

    def retry(self, data: gr.RetryData, request: gr.Request) -> Iterator[Updates]:
        """The question again as a new turn: in its other reading, or sampled."""
        session = self._controller.session(request)
        turn = message_turn(session.view.turns, data.index)
        if turn is not None:
            yield from self._again(session, turn)

    def _again(self, session: Session, turn: int) -> Iterator[Updates]:
        asked = session.view.turns[turn]
        yield from self._put(session, Question(asked.question, asked.evidence, again=turn))

    def option(self, data: gr.SelectData, request: gr.Request) -> Iterator[Updates]:
        """An offered reply was clicked: the last question again, with that as evidence, as it stands, by itself, or in
        another reading."""
        session = self._controller.session(request)
        if not session.view.turns:
            return
        last, chosen = session.view.turns[-1], str(data.value)
        asked, evidence, reply = last.question, last.evidence, chosen_label(last, chosen)
        if chosen == TRY_AGAIN:
            yield from self._again(session, len(session.view.turns) - 1)
        elif chosen == AS_IT_STANDS:
            yield from self._put(session, Question(asked, evidence, ask_back=False, reply=reply))
        elif sql := chosen_reading(last, chosen):
            yield from self._put(session, Question(asked, evidence, chosen=sql, reply=reply))
        elif chosen == ASK_AFRESH:
            yield from self._put(session, Question(asked, evidence, reading="standalone", reply=reply))
        else:
            evidence = "; ".join(filter(None, (evidence, chosen)))
            yield from self._put(session, Question(asked, evidence, reply=reply))

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
            on_change(page.chat.retry, self.retry, None, outputs)
            on_change(page.chat.option_select, self.option, None, outputs)
            on_change(page.chat.edit, self.edit, None, outputs)
            on(page.question.stop, self.stop, None, [page.question], queue=False)
