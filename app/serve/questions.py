"""`/ask` and `/check` of `sqlagent serve --db`, and the conversations of a server's callers.

A question comes in, and the answer goes out as JSON, or event by event as it is made. Conversations are kept by names that
nobody can guess.
"""

import json
import queue
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent.conversation import records
from agent.observe.events import Answered, Failed, exact_value, to_json
from app.serve.chat_completions import BadRequest
from app.serve.listening import openai_error
from app.shared import exit_codes
from decoding.serving.model_queue import Stopped

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from agent.assistant import Assistant
    from agent.conversation import Conversation
    from agent.observe.events import Event


MOST_CONVERSATIONS = 64


class Conversations:
    """The newest conversations of this server, by names that nobody guesses."""

    def __init__(self, assistant: "Assistant") -> None:
        self._assistant, self._lock = assistant, Lock()
        self._known: dict[str, Conversation] = {}

    def begin(self) -> "Conversation":
        """A new conversation; the oldest is forgotten where there are too many."""
        talk = self._assistant.conversation()
        with self._lock:
            self._known[talk.thread] = talk
            while len(self._known) > MOST_CONVERSATIONS:
                del self._known[next(iter(self._known))]
        return talk

    def find(self, name: str) -> "Conversation | None":
        """A conversation, which becomes the newest by that; None where there is none of that name."""
        with self._lock:
            if name in self._known:
                self._known[name] = self._known.pop(name)
            return self._known.get(name)


ASK, CHECK = "/ask", "/check"
LONGEST_QUESTION = 10_000  # characters


class QuestionRequest(BaseModel):
    """A question; `conversation` is the name that an earlier answer gave."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    question: str = Field(min_length=1, max_length=LONGEST_QUESTION)
    evidence: str = Field("", max_length=LONGEST_QUESTION)
    conversation: str = ""
    stream: bool = False


def question_route(assistant: "Assistant") -> "Route":
    """The route. A body is `{"question": ..., "evidence": ..., "conversation": ..., "stream": false}`."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.routing import Route

    conversations = Conversations(assistant)

    async def ask(request: "Request") -> "Response":
        try:
            asked = _read(QuestionRequest, await request.body())
            talk = await run_in_threadpool(_talk, conversations, asked.conversation)
        except BadRequest as error:
            return JSONResponse(openai_error(str(error), "invalid_request_error"), error.status)
        except Exception as error:
            return JSONResponse(openai_error(exit_codes.told_of(error)[0], "server_error"), 500)
        running = _Running(talk, asked.question, asked.evidence)
        if asked.stream:
            return StreamingResponse(
                running.lines(), media_type="text/event-stream", headers={"cache-control": "no-store"}
            )
        answer = await run_in_threadpool(running.answer)
        return JSONResponse(answer | {"conversation": talk.thread})

    return Route(ASK, ask, methods=["POST"])


def _talk(conversations: Conversations, name: str) -> "Conversation":
    talk = conversations.find(name) if name else conversations.begin()
    if talk is None:
        raise BadRequest("that conversation is unknown or too old: ask without one to start a new one", 404)
    return talk


class CheckRequest(BaseModel):
    """SQL to check, and the question that it should answer."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    sql: str = Field(min_length=1)
    question: str = Field("", max_length=LONGEST_QUESTION)
    evidence: str = Field("", max_length=LONGEST_QUESTION)
    readings: bool = False


def check_route(assistant: "Assistant") -> "Route":
    """The route of second opinions. A body is `{"sql": ..., "question": ..., "evidence": ..., "readings": false}`."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def check(request: "Request") -> "Response":
        try:
            asked = _read(CheckRequest, await request.body())
            found = await run_in_threadpool(
                assistant.check, asked.sql, asked.question, asked.evidence, readings=asked.readings
            )
        except BadRequest as error:
            return JSONResponse(openai_error(str(error), "invalid_request_error"), error.status)
        except Exception as error:
            return JSONResponse(openai_error(exit_codes.told_of(error)[0], "server_error"), 500)
        return JSONResponse(exact_value(asdict(found)))

    return Route(CHECK, check, methods=["POST"])


Asked = TypeVar("Asked", bound=BaseModel)


def _read(kind: type[Asked], body: bytes) -> Asked:
    """The request, checked. Raises BadRequest."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadRequest(f"{where}: {first['msg']}" if where else first["msg"]) from error


class _Running:
    """One question in a thread of its own, which ends early when nobody listens any more."""

    def __init__(self, talk: "Conversation", question: str, evidence: str) -> None:
        self._talk, self._question, self._evidence = talk, question, evidence
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        Thread(target=self._run, daemon=True, name="question").start()

    def answer(self) -> dict[str, Any]:
        """The answer as `sqlagent ask --json` prints it, or an error."""
        found: dict[str, Any] = {"error": {"kind": "other", "message": "stopped"}}
        for event in self._all():
            if isinstance(event, Answered):
                found = exact_value(event.answer)
            elif isinstance(event, Failed):
                found = {"error": {"kind": "other", "message": event.message}}
        return found

    async def lines(self) -> AsyncIterator[str]:
        """Server-sent events, one for each event of `agent.observe.events`; the first names the conversation."""
        from starlette.concurrency import run_in_threadpool

        events, ended = self._all(), False
        try:
            yield f"data: {json.dumps({'event': 'conversation', 'name': self._talk.thread})}\n\n"
            while (event := await run_in_threadpool(next, events, None)) is not None:
                yield f"data: {to_json(event)}\n\n"
            ended = True
        finally:
            if not ended:
                self._talk.toolbox.stop.stop()

    def _all(self) -> "Iterator[Event]":
        while (event := self._events.get()) is not None:
            yield event

    def _run(self) -> None:
        try:
            with self._talk.turn:
                self._talk.toolbox.stop.clear()
                for event in records(self._talk, self._question, self._evidence):
                    self._events.put(event)
        except Stopped:
            self._events.put(Failed("stopped", stopped=True))
        except Exception as error:
            self._events.put(Failed(exit_codes.told_of(error)[0]))
        finally:
            self._events.put(None)
