"""An ASGI application on a free port of this machine, served by a thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any

import uvicorn

from app.serve.listening import server_config


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The address, while it is served."""
    config = server_config(app, "127.0.0.1", 0)
    server, listener = uvicorn.Server(config), config.bind_socket()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started and thread.is_alive():
        sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
