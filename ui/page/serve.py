"""Serving the page: where it listens, who may come in, what it may load."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import gradio as gr

from ui.page.asking import Asking
from ui.page.page import FOLDER, build_page
from ui.page.wiring import wire
from ui.session.workspace import Workspace

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self' data: blob:; img-src 'self' data: blob:; font-src 'self' data:"
)  # nothing is ever loaded from elsewhere, whatever a question, a cell or a shared file says


SPARE_THREADS = 32  # for clicks, while each question that waits for the model holds a thread


@dataclass(frozen=True, slots=True)
class Serving:
    """`users`: (name, password) pairs; none lets everybody in who can reach the address."""

    host: str = "127.0.0.1"
    port: int | None = None  # None: the first free one from 7860 on
    users: Sequence[tuple[str, str]] = ()
    waiting: int = 64  # questions under way at once; more are turned away
    inbrowser: bool = False


def serve(workspace: Workspace, serving: Serving) -> tuple[str, Callable[[], None]]:
    """Start the server in the background. Returns its address and what stops it. Raises OSError when the port is taken."""
    page = build_page(workspace)
    controller = wire(workspace, page)
    Asking(controller, page).wire()
    page.blocks.queue(max_size=serving.waiting, api_open=False, default_concurrency_limit=serving.waiting)
    _, address, _ = page.blocks.launch(
        server_name=serving.host,
        server_port=serving.port,
        auth=list(serving.users) or None,
        max_file_size=f"{workspace.rules.upload_mb}mb",
        prevent_thread_lock=True,
        inbrowser=serving.inbrowser,
        share=False,
        ssr_mode=False,
        quiet=True,
        footer_links=[],
        run_history=False,
        max_threads=serving.waiting + SPARE_THREADS,
        theme=_theme(),
        css_paths=[FOLDER / "style.css"],
        head=_head(),
    )
    return address, partial(page.blocks.close, verbose=False)


def _theme() -> gr.themes.Base:
    """Fonts of the system alone: by plain name, a theme fetches none."""
    theme = gr.themes.Soft(
        primary_hue="teal",
        secondary_hue="teal",
        neutral_hue="slate",
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
    )
    quiet = {"background_fill": "transparent", "text_color": "*body_text_color_subdued", "text_weight": "500"}
    labels = {f"block_{part}_{name}": value for part in ("title", "label") for name, value in quiet.items()}
    dark = {f"{name}_dark": value for name, value in labels.items() if not name.endswith("weight")}
    return theme.set(**labels, **dark, block_title_padding="0", block_label_padding="4px 8px")


def _head() -> str:
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    return (
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><script>{script}</script>'
    )
