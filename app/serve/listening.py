"""What the servers share: where they listen, and who is admitted. Plain ASGI; the middleware itself is in `ui.http`."""

import gc
import hmac
import json
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.shared import exit_codes

if TYPE_CHECKING:
    from uvicorn import Config

KEEP_ALIVE_S = 75  # as nginx

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Host = Annotated[
    str, typer.Option("--host", help="Address to listen on; any but the default can be reached from other machines.")
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes any free one.")]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="SQLAGENT_API_KEY",
        help="Callers must send it: Authorization: Bearer KEY. Better set SQLAGENT_API_KEY: options can be read in ps.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option("--allow-host", help="Another host name to answer to, such as that of a proxy; can be repeated."),
]


def behind_doors(app: App, api_key: str | None, host: str, allow_host: Sequence[str] = ()) -> App:
    """`app` for callers who name this machine, `host` or a name in `allow_host`, who are no page of another site, who send the
    key, and who send JSON."""
    from ui.http.middleware import SafeHeaders, trusted

    return SafeHeaders(trusted(guarded(json_only(app), api_key), host, allow_host))


def json_only(app: App) -> App:
    """`app` for requests whose body says that it is JSON, 415 for others: a form of any page on the web can send text."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        kind = dict(scope.get("headers", ())).get(b"content-type", b"").partition(b";")[0].strip().lower()
        if scope["type"] == "http" and scope["method"] == "POST" and kind != b"application/json":
            await refuse(send, 415, "send JSON: content-type: application/json", "invalid_request_error")
        else:
            await app(scope, receive, send)

    return checked


def guarded(app: App, api_key: str | None) -> App:
    """`app` for those who send the key; 401 for others. Without a key, for everybody."""
    wanted = f"Bearer {api_key}".encode()

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "http" and not hmac.compare_digest(given, wanted):
            await refuse(send, 401, "wrong or missing API key", "authentication_error")
        else:
            await app(scope, receive, send)

    return checked if api_key else app


def openai_error(message: str, kind: str) -> dict[str, object]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


async def refuse(send: Send, status: int, message: str, kind: str) -> None:
    body = json.dumps(openai_error(message, kind)).encode()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def server_config(app: App, host: str, port: int) -> "Config":
    """How uvicorn serves `app`. Idle connections stay for longer than clients keep theirs (httpx, and so OpenAI's client:
    5 s): with uvicorn's own 5 s a request may meet a connection that is just being closed."""
    import uvicorn

    from ui.http.middleware import heads_in_time

    return uvicorn.Config(
        app,
        host,
        port,
        http=heads_in_time(),
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )


def listen(app: App, host: str, port: int, path: str, api_key: str | None) -> None:
    """Serve until stopped, and say on stderr where. Ends with one line where the address cannot be had."""
    import uvicorn

    from ui.http.middleware import LOOPBACK

    config = server_config(app, host, port)
    try:
        listener = config.bind_socket()
    except SystemExit as error:
        raise exit_codes.fail(f"cannot listen on {host}:{port}", exit_codes.USAGE) from error
    print(f"Serving at http://{host}:{listener.getsockname()[1]}{path} (stop: Ctrl+C)", file=sys.stderr, flush=True)
    if host not in LOOPBACK and not api_key:
        print("Anybody who reaches this address may ask; --api-key demands a key.", file=sys.stderr, flush=True)
    gc.freeze()  # what is loaded stays; looking through it again and again would hold up answers
    uvicorn.Server(config).run(sockets=[listener])
