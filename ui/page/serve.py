"""Serving the page: where it listens, who may come in, what it may load."""

import gc
import logging
import socket
import threading
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import sleep

import gradio as gr
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from ui.http.entrance import UPLOAD, Cookies, Entrance, Logins, OwnSessions
from ui.http.middleware import SafeHeaders, WholeBody, trusted
from ui.page.asking import Asking
from ui.page.files import file_routes
from ui.page.page import FOLDER, Page, build_page
from ui.page.wiring import wire
from ui.session.workspace import Workspace

LONGEST_EVENT = 4 << 20  # bytes; a statement in the editor may be long
EVENT_DEADLINE_S = 15.0
_POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self' data: blob:; img-src 'self' data: blob:; font-src 'self' data:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)  # nothing is ever loaded from elsewhere, whatever a question, a cell or a shared file says
_READABLE = {  # where the theme's own colours have a contrast below 4.5 (WCAG 2, AA)
    "body_text_color_subdued": "*neutral_500",
    "body_text_color_subdued_dark": "*neutral_400",
    "button_primary_background_fill": "*primary_700",
    "button_primary_background_fill_dark": "*primary_700",
    "button_primary_background_fill_hover": "*primary_800",
    "button_primary_background_fill_hover_dark": "*primary_800",
    "input_placeholder_color": "*neutral_500",
    "input_placeholder_color_dark": "*neutral_300",
    "checkbox_label_background_fill_selected": "*primary_700",
    "checkbox_label_background_fill_selected_dark": "*primary_700",
    "color_accent": "*primary_700",
}
SCRIPTS = ("page.js", "passes.js")
FIRST_PORT, PORTS = 7860, 100
SPARE_THREADS = 32  # for clicks, while each question that waits for the model holds a thread


@dataclass(frozen=True, slots=True)
class Serving:
    """`users`: (name, password) pairs, who sign in. `token`: without it nobody comes in; it is a part of the address that
    `serve` returns. With neither, everybody is let in who can reach the address. `hosts`: names that the server answers to,
    beside this machine's own and `host`."""

    host: str = "127.0.0.1"
    port: int | None = None  # None: the first free one from 7860 on
    users: Sequence[tuple[str, str]] = ()
    token: str | None = None
    hosts: Sequence[str] = ()
    waiting: int = 64  # questions under way at once; more are turned away


def serve(workspace: Workspace, serving: Serving) -> tuple[str, Callable[[], None]]:
    """Start the server in the background. Returns its address and what stops it. Raises OSError when the port is taken."""
    listening = _listener(serving.host, serving.port)
    port = listening.getsockname()[1]
    workspace.most_runs = serving.waiting
    page = build_page(workspace)
    controller = wire(workspace, page)
    Asking(controller, page).wire()
    page.blocks.queue(max_size=serving.waiting, api_open=False, default_concurrency_limit=serving.waiting)
    stop = _serve_in_background(_behind_doors(_mounted(page, workspace, serving), workspace, serving, port), listening)

    def close() -> None:
        page.blocks.close(verbose=False)
        stop()

    return _address(serving, port), close


def _address(serving: Serving, port: int) -> str:
    host = "localhost" if serving.host in ("0.0.0.0", "::") else serving.host
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={serving.token}" if serving.token else "")


def _mounted(page: Page, workspace: Workspace, serving: Serving) -> FastAPI:
    """The page as an application, with routes of our own for its files."""
    app = FastAPI(routes=[*file_routes(workspace)], docs_url=None, redoc_url=None, openapi_url=None)
    page.blocks.max_threads = page.blocks._queue.max_thread_count = (
        serving.waiting + SPARE_THREADS
    )  # as `launch` sets them
    gr.mount_gradio_app(
        app,
        page.blocks,
        path="",
        auth=Logins(serving.users) if serving.users else None,
        ssr_mode=False,
        footer_links=[],
        run_history=False,
        show_error=False,
        enable_monitoring=False,
        theme=theme(),
        css_paths=[FOLDER / "style.css"],
        head=_head(),
    )
    page.blocks.has_launched = True  # from now on Gradio looks at the paths that a request names
    return app


def _behind_doors(app: FastAPI, workspace: Workspace, serving: Serving, port: int) -> ASGIApp:
    """The application for those who may use it; the outermost door comes last."""
    signed_in = _signed_in(app) if serving.users else None
    token = None if serving.users else serving.token
    inner = OwnSessions(app, workspace.page_open)
    read = WholeBody(inner, LONGEST_EVENT, EVENT_DEADLINE_S, streamed=(UPLOAD,))
    return SafeHeaders(trusted(Entrance(read, token, port, signed_in), serving.host, serving.hosts), _POLICY)


def _signed_in(app: FastAPI) -> Callable[[Cookies], str | None]:
    """Who signed in, by Gradio's cookies."""
    inside = app.routes[-1].app  # type: ignore[attr-defined]  # what was mounted last

    def user(cookies: Cookies) -> str | None:
        name = f"access-token-unsecure-{inside.cookie_id}"
        found: str | None = inside.tokens.get(cookies.get(name, ""))
        return found

    return user


def theme() -> gr.themes.Base:
    """Fonts of the system alone: by plain name, a theme fetches none."""
    soft = gr.themes.Soft(
        primary_hue="teal",
        secondary_hue="teal",
        neutral_hue="slate",
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
    )
    quiet = {"background_fill": "transparent", "text_color": "*body_text_color_subdued", "text_weight": "500"}
    labels = {f"block_{part}_{name}": value for part in ("title", "label") for name, value in quiet.items()}
    dark = {f"{name}_dark": value for name, value in labels.items() if not name.endswith("weight")}
    return soft.set(**labels, **dark, **_READABLE, block_title_padding="0", block_label_padding="4px 8px")


def _head() -> str:
    script = "".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return f'<meta name="viewport" content="width=device-width, initial-scale=1"><script>{script}</script>'


def _listener(host: str, port: int | None) -> socket.socket:
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


def _serve_in_background(app: ASGIApp, listening: socket.socket) -> Callable[[], None]:
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
