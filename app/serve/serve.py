"""`sqlagent serve`: the fast decoder behind OpenAI's chat completions, so that other programs can use it."""

import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.serve.chat_request import BadRequest, ChatRequest, read_request
from app.serve.listening import AllowHost, ApiKey, App, Host, Port, behind_doors, listen, openai_error
from app.serve.questions import question_route
from app.shared import audit_trail, exit_codes, options
from app.shared.option_groups import Asking, DatabaseOptions, Decoding, Query, spread

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from decoding.serving.text_decoder import Generation, Piece, Settings, TextDecoder

CHAT = "/v1/chat/completions"
LONGEST_BODY = 4 << 20  # bytes
BODY_DEADLINE_S = 15.0
CLIENT_GONE = 499  # nginx's word for it; nobody reads it but a log
Queue = Annotated[int, typer.Option("--queue", min=1, help="Requests under way at once; more are refused with 429.")]


@spread
def serve(
    decoding: Decoding = Decoding(),
    host: Host = "127.0.0.1",
    port: Port = 8000,
    allow_host: AllowHost = None,
    api_key: ApiKey = None,
    queue: Queue = 64,
    source: DatabaseOptions = DatabaseOptions(),
    asking: Asking = Asking(),
    query: Query = Query(),
    deadline: options.Deadline = 300.0,
) -> None:
    """Serve the model over HTTP as OpenAI's chat completions (/v1), decoded fast; with --db also questions about it (/ask)."""
    exit_codes.needs("mcp", "serve")  # it brings the web framework
    with exit_codes.plain_errors():
        from agent.assemble import load_model
        from agent.assistant import Assistant
        from decoding.serving.text_decoder import Settings

        choice = decoding.choice()
        settings = Settings(choice.decoder_name, choice.decoder_options, choice.temperature)
        with ExitStack() as opened:
            database = source.open() if source.db else None
            loaded = load_model(choice)
            routes = []
            if database:
                asked = asking.agent_options(present=True, deadline_s=deadline)
                trail = audit_trail.trails("serve")
                assistant = Assistant(database, choice, asked, query.limits(), trail, loaded)
                routes = [question_route(opened.enter_context(assistant))]
            app = app_of(loaded.decoder, settings, queue, routes)
            listen(behind_doors(app, api_key, host, allow_host or ()), host, port, "/v1", api_key)


def app_of(decoder: "TextDecoder", settings: "Settings", queue: int, more: "Sequence[Route]" = ()) -> App:
    """The service, with `more` routes.

    `settings` hold where a request does not say otherwise. A request takes a place once its body has come.
    """
    from anyio.to_thread import current_default_thread_limiter
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from decoding.serving.model_queue import QueueFull
    from ui.doors.bodies import WholeBody

    async def models(request: "Request") -> "Response":
        entry = {"id": decoder.name, "object": "model", "created": 0, "owned_by": "sqlagent"}
        return JSONResponse({"object": "list", "data": [entry]})

    async def chat(request: "Request") -> "Response":
        try:
            return await _completion(decoder, settings, request)
        except BadRequest as error:
            return JSONResponse(openai_error(str(error), "invalid_request_error"), error.status)
        except QueueFull as error:
            return JSONResponse(openai_error(str(error), "rate_limit_error"), 429, {"retry-after": "1"})

    @asynccontextmanager
    async def threads(app: Starlette) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = (
            queue + 8
        )  # one for each that waits for a round, some to refuse others
        yield

    routes = [Route("/v1/models", models), Route(CHAT, chat, methods=["POST"]), *more]
    decoder.queue.most_callers = queue
    return WholeBody(Starlette(routes=routes, lifespan=threads), LONGEST_BODY, BODY_DEADLINE_S)


async def _completion(decoder: "TextDecoder", defaults: "Settings", request: "Request") -> "Response":
    from starlette.responses import JSONResponse, Response, StreamingResponse

    from decoding.serving.text_decoder import Generation

    asked = await read_request(request, decoder.name)
    settings = asked.settings(defaults, seed=secrets.randbits(31))
    answer = _Answer(decoder.name)
    pieces = _decoded(decoder, asked, settings)
    first = await _first(pieces)
    if asked.stream:
        events = answer.events(first, pieces, asked.include_usage)
        return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
    last = first
    async for piece in pieces:
        last = piece
        if await request.is_disconnected():
            break
    await pieces.aclose()
    return JSONResponse(answer.whole(last)) if isinstance(last, Generation) else Response(status_code=CLIENT_GONE)


async def _first(pieces: AsyncGenerator["Piece | Generation", None]) -> "Piece | Generation":
    """The first piece. Raises BadRequest for what the request cannot have."""
    from decoding.engine.loop import PromptTooLong
    from decoding.errors import UnsupportedModel

    try:
        return await anext(pieces)
    except (PromptTooLong, UnsupportedModel) as error:
        raise BadRequest(str(error)) from error


async def _decoded(
    decoder: "TextDecoder", asked: ChatRequest, settings: "Settings"
) -> AsyncGenerator["Piece | Generation", None]:
    """The pieces, then the generation. Decoding ends with whoever listens."""
    from anyio import CancelScope
    from starlette.concurrency import run_in_threadpool

    gone = False
    prompt = await run_in_threadpool(decoder.tokenizer.chat, [message.model_dump() for message in asked.messages])
    pieces = iter(decoder.stream(prompt, [settings], lambda: gone))
    try:
        while (piece := await run_in_threadpool(next, pieces, None)) is not None:
            yield piece
    finally:
        gone = True
        with CancelScope(shield=True):
            await run_in_threadpool(pieces.close)  # type: ignore[attr-defined]


class _Answer:
    """One completion's JSON, whole or in pieces."""

    def __init__(self, model: str) -> None:
        self._head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def whole(self, done: "Generation") -> dict[str, Any]:
        message = {"role": "assistant", "content": done.text}
        choice = {"index": 0, "message": message, "finish_reason": _finish(done), "logprobs": None}
        return self._head | {"object": "chat.completion", "choices": [choice], "usage": usage(done)}

    async def events(
        self, first: "Piece | Generation", rest: AsyncGenerator["Piece | Generation", None], include_usage: bool
    ) -> AsyncIterator[str]:
        """Server-sent events: the role, the text as it comes, why it ended, and the usage where that was asked for."""
        from decoding.serving.text_decoder import Piece

        yield self._event({"role": "assistant", "content": ""})
        piece = first
        try:
            while isinstance(piece, Piece):
                if piece.text:
                    yield self._event({"content": piece.text})
                piece = await anext(rest)
        finally:
            await rest.aclose()
        yield self._event({}, _finish(piece))
        if include_usage:
            yield self._line({"choices": [], "usage": usage(piece)})
        yield "data: [DONE]\n\n"

    def _event(self, delta: dict[str, str], finish: str | None = None) -> str:
        return self._line({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _line(self, body: dict[str, Any]) -> str:
        chunk = self._head | {"object": "chat.completion.chunk"} | body
        return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


def _finish(done: "Generation") -> str:
    return "length" if done.finish == "length" else "stop"


def usage(done: "Generation") -> dict[str, Any]:
    """OpenAI's counts, and how few forwards they took."""
    prompt, new = done.prompt_tokens, len(done.tokens)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": done.cached_tokens},
        "target_forwards": done.metrics.target_forwards,
        "plain_forwards": done.metrics.plain_forwards,
        "tokens_per_forward": round(done.metrics.tokens_per_forward, 3),
    }
