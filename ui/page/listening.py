"""Serves an application in the background, on a port that is free."""

import gc
import logging
import socket
import threading
from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from time import sleep

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

FIRST_PORT, PORTS = 7860, 100


def listener(host: str, port: int | None) -> socket.socket:
    """A socket that listens on the port, or on the first free one from 7860 on. Raises OSError."""
    if port is not None:
        return _bound(host, port)
    for each in range(FIRST_PORT, FIRST_PORT + PORTS):
        with suppress(OSError):
            return _bound(host, each)
    return _bound(host, FIRST_PORT)  # says what is wrong


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(256)
    except OSError:
        bound.close()
        raise
    return bound


def serve_in_background(app: ASGIApp, listening: socket.socket) -> Callable[[], None]:
    """Returns what stops the server; its requests get a second to end, and streams are then cut."""

    async def cut(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except CancelledError:
            if not server.should_exit:
                raise

    config = uvicorn.Config(
        cut,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    gc.freeze()  # what is loaded stays; looking through it again and again would hold up answers
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="chat-server", daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        sleep(0.01)

    def stop() -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # that streams are cut is no news
        server.should_exit = True
        thread.join(timeout=10)

    return stop
