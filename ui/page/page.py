"""The sidebar: data, conversations, settings. Components only.

The page: where the components stand. What they do is in `ui.page.serve`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from decoding.methods.registry import METHODS
from ui.page.files import Preview, build_preview
from ui.page.panel import Panel, build_panel
from ui.session.services import options_hint
from ui.session.workspace import Workspace
from ui.views.words import html

FILE_TYPES = [
    ".csv", ".tsv", ".txt", ".gz", ".parquet", ".json", ".jsonl", ".ndjson", ".xlsx", ".xls", ".xlsm", ".xlsb", ".ods",
    ".sqlite", ".sqlite3", ".db", ".db3", ".duckdb", ".ddb",
]  # fmt: skip


_FILES_HINT = (
    "CSV, Excel, Parquet, JSON, SQLite or DuckDB, up to {} MiB. CSV and Excel files are shown before they are opened."
)


@dataclass(slots=True, eq=False)
class Sidebar:
    """The components; `settings` in the order of `ui.session.services.Settings`."""

    schema: gr.HTML
    undo: gr.Button
    files: gr.File
    files_trouble: gr.Markdown
    url: gr.Textbox
    url_trouble: gr.Markdown
    open_url: gr.Button
    example: gr.Button
    new: gr.Button
    search: gr.Textbox
    conversations: gr.Radio
    delete: gr.Button
    restore: gr.Button
    share: gr.Button
    shared: gr.DownloadButton
    replay: gr.UploadButton
    settings: list[Any]
    options_hint: gr.Markdown


def build_sidebar(workspace: Workspace) -> Sidebar:
    """Lay the sidebar out; called inside a `gr.Sidebar`."""
    with gr.Tabs(elem_id="side"):
        with gr.Tab("Data", id="data"):
            data = _build_data(workspace)
        with gr.Tab("Chats", id="chats"):
            chats = _build_chats()
        with gr.Tab("Settings", id="settings"):
            settings = _build_settings(workspace)
    return Sidebar(*data, *chats, *settings)


def _build_data(workspace: Workspace) -> tuple[Any, ...]:
    schema = gr.HTML(elem_id="schema")
    undo = gr.Button("Undo: back to the data before", size="sm", elem_id="undo", visible=False)
    with gr.Accordion("Open other data", open=False, elem_id="open"):
        files = gr.File(
            file_count="multiple",
            file_types=FILE_TYPES,
            height=120,
            elem_id="files",
            label="Files",
        )
        gr.Markdown(_FILES_HINT.format(workspace.rules.upload_mb), elem_classes="hint")
        files_trouble = gr.Markdown(elem_id="files-trouble", elem_classes="trouble", visible=False)
        url = gr.Textbox(
            label="Database URL",
            placeholder="postgresql://reader:…@host/name",
            elem_id="url",
            visible=workspace.rules.urls,
            max_lines=1,
        )
        url_trouble = gr.Markdown(elem_id="url-trouble", elem_classes="trouble", visible=False)
        open_url = gr.Button("Open the URL", elem_id="open-url", visible=workspace.rules.urls)
        example = gr.Button("Open the data that the server began with", elem_id="example")
    return schema, undo, files, files_trouble, url, url_trouble, open_url, example


def _build_chats() -> tuple[Any, ...]:
    new = gr.Button("New conversation", variant="primary", elem_id="new")
    search = gr.Textbox(label="Search", placeholder="words of a question", elem_id="search", max_lines=1)
    listed = gr.Radio([], label="Conversations", elem_id="conversations", interactive=True)
    with gr.Row(elem_classes="tight"):
        share = gr.Button("Save", size="sm", elem_id="share", min_width=90)
        replay = gr.UploadButton("Open", size="sm", file_types=[".jsonl"], elem_id="replay", min_width=90)
        delete = gr.Button("Delete", size="sm", variant="stop", elem_id="delete", min_width=80)
    restore = gr.Button("Undo", size="sm", elem_id="restore", visible=False)
    shared = gr.DownloadButton("Download conversation.jsonl", visible=False, variant="primary", elem_id="shared")
    return new, search, listed, delete, restore, share, shared, replay


def _build_settings(workspace: Workspace) -> tuple[Any, ...]:
    now = workspace.default_settings()
    gr.Markdown("Changes apply to the next question.")
    model = gr.Textbox(
        now.model,
        label="Model",
        info="'embedded', a folder, a .gguf file or a hub id",
        interactive=workspace.rules.models,
        elem_id="model",
        max_lines=1,
    )
    decoder = gr.Dropdown(list(METHODS), value=now.decoder, label="Decoder", elem_id="decoder")
    options = gr.Textbox(now.options, label="Decoder options", info="name=value, ...", elem_id="options", max_lines=1)
    hint = gr.Markdown(hint_text(now.decoder), elem_id="options-hint")
    settings = [
        model,
        decoder,
        options,
        gr.Slider(0, 2, now.temperature, step=0.05, label="Temperature", info="0 is greedy"),
        gr.Slider(1, 10, now.attempts, step=1, label="Attempts", info="SQL statements tried per question"),
        gr.Number(now.max_rows, label="Row limit", minimum=1, maximum=workspace.rules.most_rows, precision=0),
        gr.Number(now.deadline_s, label="Seconds per query", minimum=0.1, maximum=workspace.rules.most_deadline_s),
        gr.Checkbox(now.measure, label="Measure plain decoding too", info="every step is decoded twice"),
        gr.Checkbox(now.constrain, label="Let the model write nothing but SQL over the schema"),
        gr.Checkbox(
            now.clarify, label="Ask back", info="when the data leave open what a question means", elem_id="clarify"
        ),
    ]
    with gr.Accordion("This machine", open=False):
        gr.HTML(facts_html(workspace.facts))
    return settings, hint


def hint_text(decoder: str) -> str:
    return f"`{options_hint(decoder)}`"


def facts_html(facts: dict[str, Any]) -> str:
    """What `sqlagent doctor` knows."""
    shown = {key: value for key, value in facts.items() if not isinstance(value, dict)}
    rows = "".join(f"<dt>{html(key.replace('_', ' '))}</dt><dd>{html(value)}</dd>" for key, value in shown.items())
    return f'<dl class="facts">{rows}</dl>'


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
        buttons=[],  # Gradio would copy an answer's HTML; a card copies its rows or its SQL
        feedback_options=("Like", "Dislike"),
        autoscroll=True,
    )


_BRAND = (
    '<header class="brand"><h1>sqlagent</h1><button type="button" data-theme-switch title="light or dark" '
    'aria-label="switch between light and dark">◐ Theme</button></header>'
)
