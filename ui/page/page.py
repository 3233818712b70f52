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
    "CSV, Excel, Parquet, JSON, SQLite or DuckDB, up to {} MiB. CSV and Excel files are shown before they are opened. "
    "A copy stays on this machine for a week."
)


@dataclass(slots=True, eq=False)
class Sidebar:
    """The components; `settings` in the order of `ui.session.services.Settings`."""

    schema: gr.HTML
    query: gr.Button
    undo: gr.Button
    recent: gr.Dropdown
    forget: gr.Button
    files: gr.File
    files_trouble: gr.Markdown
    url: gr.Textbox
    url_trouble: gr.Markdown
    open_url: gr.Button
    example: gr.Button
    new: gr.Button
    search: gr.Textbox
    conversations: gr.Radio
    name: gr.Textbox
    pin: gr.Button
    delete: gr.Button
    restore: gr.Button
    share: gr.Button
    shared: gr.DownloadButton
    replay: gr.UploadButton
    settings: list[Any]
    options_hint: gr.Markdown

    @property
    def listed(self) -> list[Any]:
        """The list of conversations, and what depends on which of them is shown."""
        return [self.conversations, self.restore, self.name, self.pin]


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
    query = gr.Button("New query: write SQL yourself", size="sm", elem_id="new-query")
    undo = gr.Button("Undo: back to the data before", size="sm", elem_id="undo", visible=False)
    with gr.Accordion("Open other data", open=False, elem_id="open"):
        recent = gr.Dropdown([], label="Files of the last week", elem_id="recent", interactive=True, visible=False)
        forget = gr.Button("Remove these files from this machine", size="sm", elem_id="forget", visible=False)
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
    return schema, query, undo, recent, forget, files, files_trouble, url, url_trouble, open_url, example


def _build_chats() -> tuple[Any, ...]:
    new = gr.Button("New conversation", variant="primary", elem_id="new")
    search = gr.Textbox(label="Search", placeholder="words of a question", elem_id="search", max_lines=1)
    restore = gr.Button("Undo", size="sm", elem_id="restore", visible=False)
    listed = gr.Radio([], label="Conversations", elem_id="conversations", interactive=True)
    name = gr.Textbox(
        label="Name of this conversation",
        info="Enter keeps it",
        elem_id="name",
        max_lines=1,
        max_length=80,
        visible=False,
    )
    with gr.Row(elem_classes="tight"):
        pin = gr.Button("Pin", size="sm", elem_id="pin", min_width=60, interactive=False)
        share = gr.Button("Save", size="sm", elem_id="share", min_width=60)
        replay = gr.UploadButton("Open", size="sm", file_types=[".jsonl"], elem_id="replay", min_width=60)
        delete = gr.Button("Delete", size="sm", variant="stop", elem_id="delete", min_width=60)
    shared = gr.DownloadButton("Download conversation.jsonl", visible=False, variant="primary", elem_id="shared")
    return new, search, listed, name, pin, delete, restore, share, shared, replay


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
PIECES = (
    "SELECT artists.name, COUNT(*) FROM", " artists JOIN albums ON albums.artist_id = artists.artist_id GROUP BY",
    " artists.artist_id", " HAVING", " COUNT(*) > 3", "",
)  # fmt: skip
PLAIN_LOOKS = 34
"""The text of each pass of the model, of which the last only ends it, and the passes that plain
decoding takes for it, as recorded with the shipped model
(tests/ui/recorded/artists.jsonl)."""
_LOOK_S, _LOOK_PX = 0.7, 7


def how_it_is_fast() -> str:
    """A query as it was written, piece by piece, in four seconds; in their time plain decoding comes a part of its way."""
    pieces = "".join(
        f'<i style="animation-delay:{_LOOK_S * at:.1f}s">{html(text)}</i>' for at, text in enumerate(PIECES)
    )
    ours, plain = _LOOK_PX * len(PIECES), _LOOK_PX * PLAIN_LOOKS
    done = f'<b style="width:{ours}px"></b>'
    return (
        f'<div class="how"><pre><code>{pieces}</code></pre>'
        f'<div class="looks"><i style="width:{ours}px">{done}</i> {len(PIECES)} looks of the model</div>'
        f'<div class="looks"><i style="width:{plain}px">{done}</i> {PLAIN_LOOKS} word by word</div></div>'
    )


PLACEHOLDER = (
    "## Ask your data a question\n"
    "The SQL is written on this machine; nothing leaves it. Many words of it are written at a time: "
    f"{len(PIECES)} looks of the model instead of {PLAIN_LOOKS}, and the text is the same to the letter.\n\n{how_it_is_fast()}"
)


@dataclass(slots=True, eq=False)
class Page:
    blocks: gr.Blocks
    side: Sidebar
    chat: gr.Chatbot
    notice: gr.Markdown
    question: gr.Textbox
    panel: Panel
    preview: Preview
    bridge: gr.HTML


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
        bridge = gr.HTML("", html_template="<i></i>", js_on_load=_BRIDGE, elem_id="bridge")
    return Page(blocks, side, chat, notice, question, panel, preview, bridge)


_BRIDGE = """
document.addEventListener("sqlagent:do", (event) => trigger("click", event.detail));
document.addEventListener("sqlagent:sort", (event) => trigger("select", event.detail));
watch("value", () => document.dispatchEvent(new CustomEvent("sqlagent:shows", { detail: props.value })));
"""  # clicks inside an answer and on headings, and Back, come to the server; the id of the conversation goes to the address


def _build_chat() -> gr.Chatbot:
    return gr.Chatbot(
        show_label=False,
        label="Conversation",
        elem_id="chat",
        height="calc(100dvh - 106px)",
        min_height=300,
        placeholder=PLACEHOLDER,
        latex_delimiters=[],
        layout="bubble",
        buttons=[],  # Gradio would copy an answer's HTML; a card copies its rows or its SQL
        autoscroll=True,
    )


_BRAND = (
    '<header class="brand"><h1>sqlagent</h1><button type="button" data-theme-switch title="light or dark" '
    'aria-label="switch between light and dark">◐ Theme</button></header>'
)

_READABLE = {  # where the theme's own colours have a contrast below 4.5 (WCAG 2, AA)
    "body_text_color_subdued": "*neutral_500",
    "body_text_color_subdued_dark": "*neutral_400",
    "button_primary_background_fill": "*primary_700",
    "button_primary_background_fill_dark": "*primary_700",
    "button_primary_background_fill_hover": "*primary_800",
    "button_primary_background_fill_hover_dark": "*primary_800",
    "button_secondary_background_fill_hover_dark": "*primary_800",
    "input_placeholder_color": "*neutral_500",
    "input_placeholder_color_dark": "*neutral_300",
    "checkbox_label_background_fill_selected": "*primary_700",
    "checkbox_label_background_fill_selected_dark": "*primary_700",
    "color_accent": "*primary_700",
}


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
