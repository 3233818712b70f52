"""`sqlagent serve`: the decoder as OpenAI's chat completions, so that other programs can use it; with --db also questions.

The endpoint's counters, for Prometheus, are at /metrics.
"""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from agent.assemble import load_model
from agent.assistant import Assistant
from app.serve.chat_completions import BadRequest, ChatAnswer, ChatRequest, read_request
from app.serve.listening import AllowHost, ApiKey, App, Host, Port, behind_doors, listen, openai_error
from app.serve.questions import check_route, question_route
from app.shared import databases, exit_codes, options
from app.shared.options import Asking, DatabaseOptions, Decoding, Query, spread_for_people
from decoding.engine.method import PROMPT_ROWS, UnknownMethod
from decoding.engine.rounds import measure
from decoding.engine.target import PromptTooLong
from decoding.errors import UnsupportedModel
from decoding.serving.model_queue import QueueFull
from decoding.serving.text_decoder import Completion, SamplingParams, token_scores

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from decoding.serving.text_decoder import TextDecoder, TextDelta


_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_COUNTED = {
    "prompt_tokens": "Prompt tokens.",
    "cached_tokens": "Prompt tokens found in the prefix cache.",
    "completion_tokens": "Tokens written.",
    "target_forwards": "Forwards of the model, counted for each text.",
    "plain_forwards": "Forwards that plain decoding takes for the same texts.",
    "drafted_tokens": "Tokens guessed by the decoding method.",
    "accepted_tokens": "Guesses that the model accepted.",
}


class ServiceMetrics:
    """Counters and times of one service. `under_way`: how many requests hold seats or wait for them."""

    def __init__(self, under_way: Callable[[], int]) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = CollectorRegistry()
        self._counts = {
            name: Counter(f"sqlagent_{name}", said, registry=self._registry) for name, said in _COUNTED.items()
        }
        self._requests = Counter("sqlagent_requests", "Requests by HTTP status.", ["status"], registry=self._registry)
        self._first_s, self._whole_s = (
            Histogram(f"sqlagent_{name}_seconds", said, registry=self._registry, buckets=_BUCKETS_S)
            for name, said in (("first_token", "Until the first text."), ("request", "Until the last text."))
        )
        gauge = Gauge("sqlagent_requests_under_way", "Requests that decode or wait.", registry=self._registry)
        gauge.set_function(under_way)

    def answered(self, status: int) -> None:
        """Count a request."""
        self._requests.labels(str(status)).inc()

    @contextmanager
    def timed(self) -> Iterator[Callable[[], None]]:
        """Time a request; call what it yields when the first text has come."""
        start = perf_counter()
        yield lambda: self._first_s.observe(perf_counter() - start)
        self._whole_s.observe(perf_counter() - start)

    def decoded(self, done: Sequence["Completion"]) -> None:
        """Count what the texts of a request took."""
        totals = measure(r for each in done for r in each.rounds)
        self._counts["prompt_tokens"].inc(done[0].prompt_tokens)
        self._counts["cached_tokens"].inc(done[0].cached_tokens)
        self._counts["completion_tokens"].inc(sum(len(each.tokens) for each in done))
        for name in ("target_forwards", "plain_forwards", "drafted_tokens", "accepted_tokens"):
            self._counts[name].inc(getattr(totals, name))

    def exposition(self) -> tuple[bytes, str]:
        """The page that Prometheus reads, and its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self._registry), CONTENT_TYPE_LATEST


CHAT = "/v1/chat/completions"
LONGEST_BODY = 4 << 20  # bytes
BODY_DEADLINE_S = 15.0
CLIENT_GONE = 499  # nginx's word for it; nobody reads it but a log
Queue = Annotated[int, typer.Option("--queue", min=1, help="Requests in progress at once; more are refused with 429.")]
PromptRows = Annotated[
    int,
    typer.Option(
        "--prompt-rows",
        min=0,
        help="Most tokens of new prompts in a forward while other requests are answered; 0: no limit.",
    ),
]


@spread_for_people
def serve(
    decoding: Decoding = Decoding(),
    host: Host = "127.0.0.1",
    port: Port = 8000,
    allow_host: AllowHost = None,
    api_key: ApiKey = None,
    queue: Queue = 64,
    prompt_rows: PromptRows = PROMPT_ROWS,
    source: DatabaseOptions = DatabaseOptions(),
    asking: Asking = Asking(),
    query: Query = Query(),
    escalate: options.Escalate = "",
    deadline: options.Deadline = 300.0,
) -> None:
    """Serve the model over HTTP as OpenAI's chat completions (/v1), decoded fast; with --db also questions about it (/ask) and
    second opinions (/check)."""
    for package in ("mcp", "prometheus_client"):  # the first brings the web framework
        exit_codes.needs(package, "serve")
    with exit_codes.plain_errors():
        choice = replace(decoding.choice(escalate), prompt_rows=prompt_rows)
        settings = SamplingParams(choice.decoder_name, choice.decoder_options, choice.temperature)
        with ExitStack() as opened:
            database = source.open() if source.db else None
            loaded = load_model(choice)
            routes = []
            if database:
                asked = asking.agent_options(present=True, deadline_s=deadline)
                trail = databases.trails("serve")
                assistant = opened.enter_context(Assistant(database, choice, asked, query.limits(), trail, loaded))
                routes = [question_route(assistant), check_route(assistant)]
            app = app_of(loaded.decoder, settings, queue, routes)
            listen(behind_doors(app, api_key, host, allow_host or ()), host, port, "/v1", api_key)


def app_of(decoder: "TextDecoder", settings: "SamplingParams", queue: int, more: "Sequence[Route]" = ()) -> App:
    """The service, with `more` routes.

    `settings` hold where a request does not say otherwise. A request takes a place once its body has come.
    """
    from anyio.to_thread import current_default_thread_limiter
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from ui.http.middleware import WholeBody

    counts = ServiceMetrics(lambda: len(decoder.queue))

    entry = {"id": decoder.name, "object": "model", "created": 0, "owned_by": "sqlagent"}

    async def models(request: "Request") -> "Response":
        return JSONResponse({"object": "list", "data": [entry]})

    async def model(request: "Request") -> "Response":
        name = request.path_params["name"]
        if name == decoder.name:
            return JSONResponse(entry)
        message = f"there is no model {name!r} here, only {decoder.name!r}"
        return JSONResponse(openai_error(message, "invalid_request_error"), 404)

    async def metrics(request: "Request") -> "Response":
        page, kind = counts.exposition()
        return Response(page, media_type=kind)

    async def chat(request: "Request") -> "Response":
        try:
            answer = await _completion(decoder, settings, request, counts)
        except BadRequest as error:
            answer = JSONResponse(openai_error(str(error), "invalid_request_error"), error.status)
        except QueueFull as error:
            answer = JSONResponse(openai_error(str(error), "rate_limit_error"), 429, {"retry-after": "1"})
        counts.answered(answer.status_code)
        return answer

    @asynccontextmanager
    async def threads(app: Starlette) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = (
            queue + 8
        )  # one for each that waits for a round, some to refuse others
        yield

    routes = [
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route(CHAT, chat, methods=["POST"]),
        Route("/metrics", metrics),
        *more,
    ]
    decoder.queue.most_callers = queue
    return WholeBody(Starlette(routes=routes, lifespan=threads), LONGEST_BODY, BODY_DEADLINE_S)


async def _completion(
    decoder: "TextDecoder", defaults: "SamplingParams", request: "Request", counts: ServiceMetrics
) -> "Response":
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, Response, StreamingResponse

    asked = await read_request(request, decoder.name)
    settings = await run_in_threadpool(asked.settings, defaults, decoder, secrets.randbits(31))
    prompt = await run_in_threadpool(_prompt, decoder, asked)
    answer = ChatAnswer(decoder.name)
    pieces = _counted(_decoded(decoder, prompt, settings), counts)
    first = await _first(pieces)
    if asked.stream:
        events = answer.events(first, pieces, len(settings), asked.include_usage)
        return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
    done = [first] if isinstance(first, Completion) else []
    async for piece in pieces:
        if isinstance(piece, Completion):
            done.append(piece)
        if await request.is_disconnected():
            break
    await pieces.aclose()
    if len(done) < len(settings):
        return Response(status_code=CLIENT_GONE)
    done.sort(key=lambda each: each.rounds[0].sequence if each.rounds else 0)
    if not asked.logprobs:
        return JSONResponse(answer.whole(done))
    scores = [
        await run_in_threadpool(token_scores, decoder, prompt, each.tokens, asked.top_logprobs or 0) for each in done
    ]
    return JSONResponse(answer.whole(done, scores))


def _prompt(decoder: "TextDecoder", asked: ChatRequest) -> str:
    """Raises BadRequest."""
    try:
        return decoder.tokenizer.chat([message.for_template() for message in asked.messages])
    except UnsupportedModel as error:
        raise BadRequest(str(error)) from error


async def _counted(
    pieces: AsyncGenerator["TextDelta | Completion", None], counts: ServiceMetrics
) -> AsyncGenerator["TextDelta | Completion", None]:
    """The pieces, counted once all have come."""
    done: list[Completion] = []
    async with aclosing(pieces):
        with counts.timed() as first_came:
            came = False
            async for piece in pieces:
                if not came:
                    first_came()
                    came = True
                if isinstance(piece, Completion):
                    done.append(piece)
                yield piece
    counts.decoded(done)


async def _first(pieces: AsyncGenerator["TextDelta | Completion", None]) -> "TextDelta | Completion":
    """The first piece. Raises BadRequest for what the request cannot have."""
    try:
        return await anext(pieces)
    except (PromptTooLong, UnknownMethod) as error:
        raise BadRequest(str(error)) from error


async def _decoded(
    decoder: "TextDecoder", prompt: str, settings: Sequence["SamplingParams"]
) -> AsyncGenerator["TextDelta | Completion", None]:
    """The pieces of every choice, and its generation when it ends. Decoding ends when nobody listens any more."""
    from anyio import CancelScope
    from starlette.concurrency import run_in_threadpool

    gone = False
    pieces = iter(decoder.stream(prompt, settings, lambda: gone))
    try:
        while (piece := await run_in_threadpool(next, pieces, None)) is not None:
            yield piece
    finally:
        gone = True
        with CancelScope(shield=True):
            await run_in_threadpool(pieces.close)  # type: ignore[attr-defined]
