"""The page: where the components stand. What they do is in `ui.page.wiring`."""

from dataclasses import dataclass
from pathlib import Path

import gradio as gr

from ui.page.incoming import Preview, build_preview
from ui.page.panel import Panel, build_panel
from ui.page.sidebar import Sidebar, build_sidebar
from ui.session.workspace import Workspace

FOLDER = Path(__file__).parent
CACHE_S = (3600, 24 * 3600)  # uploaded files and downloads: look every hour, remove those older than a day
PLACEHOLDER = "## Ask your data a question\nThe SQL is written on this machine; nothing leaves it."


@dataclass(slots=True, eq=False)
class Page:
    blocks: gr.Blocks
    side: Sidebar
    chat: gr.Chatbot
    notice: gr.Markdown
    question: gr.Textbox
    panel: Panel
    preview: Preview


def build_page(workspace: Workspace) -> Page:
    """All components, not yet wired."""
    with gr.Blocks(title="sqlagent", analytics_enabled=False, fill_width=True, delete_cache=CACHE_S) as blocks:
        with gr.Sidebar(width=340, label="Data, chats, settings", elem_id="sidebar"):
            gr.HTML(_BRAND)
            side = build_sidebar(workspace)
        with gr.Row(elem_id="main"):
            with gr.Column(scale=6, min_width=330, elem_id="talk"):
                chat = _build_chat()
                notice = gr.Markdown(elem_id="notice", visible=False)
                question = gr.Textbox(
                    placeholder="Ask a question about the data",
                    label="Question",
                    show_label=False,
                    submit_btn=True,
                    stop_btn=False,
                    max_lines=4,
                    elem_id="question",
                    autofocus=True,
                    max_length=2000,
                )
            with gr.Column(scale=5, min_width=330, elem_id="panel"):
                panel = build_panel()
        preview = build_preview()
    return Page(blocks, side, chat, notice, question, panel, preview)


def _build_chat() -> gr.Chatbot:
    return gr.Chatbot(
        show_label=False,
        label="Conversation",
        elem_id="chat",
        height="calc(100dvh - 106px)",
        min_height=300,
        placeholder=PLACEHOLDER,
        editable="user",
        latex_delimiters=[],
        layout="bubble",
        buttons=["copy"],
        feedback_options=("Like", "Dislike"),
        autoscroll=True,
    )


_BRAND = (
    '<header class="brand"><h1>sqlagent</h1><button type="button" data-theme-switch title="light or dark" '
    'aria-label="switch between light and dark">◐</button></header>'
)
