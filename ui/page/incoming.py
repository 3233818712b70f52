"""Files that were dropped are shown before they are taken in: how they are read, which row names the columns, beside the open
data or in their place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from tools.result import OpenError
from ui.session.open_data import OpenData
from ui.session.session import Session
from ui.views.preview_html import header_choices, preview_html
from ui.views.words import plain

Updates = dict[Any, Any]


@dataclass(slots=True, eq=False)
class Preview:
    """The components, laid over the page while files wait."""

    box: gr.Column
    sheet: gr.Dropdown
    header: gr.Dropdown
    total: gr.Checkbox
    view: gr.HTML
    trouble: gr.Markdown
    beside: gr.Button
    alone: gr.Button
    decline: gr.Button

    @property
    def parts(self) -> list[Any]:
        return [self.box, self.sheet, self.header, self.total, self.view, self.trouble, self.beside, self.alone]


def build_preview() -> Preview:
    """Lay it out; called inside a `gr.Blocks`."""
    with gr.Column(visible=False, elem_id="incoming") as box:
        with gr.Row(elem_classes="tight"):
            sheet = gr.Dropdown([], label="Sheet", elem_id="incoming-sheet", interactive=True, visible=False)
            header = gr.Dropdown([], label="Names of the columns", elem_id="incoming-header", interactive=True)
        total = gr.Checkbox(label="Keep the row of totals", elem_id="incoming-total", interactive=True, visible=False)
        view = gr.HTML(elem_id="incoming-view", padding=False)
        trouble = gr.Markdown(elem_id="incoming-trouble", elem_classes="trouble", visible=False)
        with gr.Row(elem_classes="tight"):
            beside = gr.Button("Add to what is open", variant="primary", elem_id="incoming-beside")
            alone = gr.Button("Open", elem_id="incoming-alone")
            decline = gr.Button("Cancel", elem_id="incoming-cancel")
    return Preview(box, sheet, header, total, view, trouble, beside, alone, decline)


class Incoming:
    """Handlers of the preview. `everything`: the whole page of a session."""

    def __init__(
        self, preview: Preview, find: Callable[[gr.Request], Session], everything: Callable[[Session], Updates]
    ) -> None:
        self._preview, self._find, self._everything = preview, find, everything

    def shown(self, session: Session, place: int = 0) -> Updates:
        """The sheet at that place of those that wait; nothing where none does."""
        preview, offer = self._preview, session.data.offered
        if offer is None or not offer.sheets:
            return {preview.box: gr.update(visible=False)}
        sheet = offer.sheets[min(place, len(offer.sheets) - 1)]
        names = [(f"{each.file} · {each.name}" if each.name else each.file, i) for i, each in enumerate(offer.sheets)]
        others = bool(session.data.now.files)
        return {
            preview.box: gr.update(visible=True),
            preview.sheet: gr.update(choices=names, value=place, visible=len(names) > 1),
            preview.header: gr.update(
                choices=header_choices(sheet), value=-1 if sheet.header is None else sheet.header
            ),
            preview.total: gr.update(value=sheet.keeps_total, visible=bool(sheet.total)),
            preview.view: preview_html(sheet),
            preview.trouble: gr.update(value="", visible=False),
            preview.beside: gr.update(visible=others),
            preview.alone: gr.update(
                value="Replace what is open" if others else "Open", variant="secondary" if others else "primary"
            ),
        }

    def choose(self, place: int | None, request: gr.Request) -> Updates:
        return self.shown(self._find(request), place or 0)

    def name_columns(self, place: int | None, row: int | None, request: gr.Request) -> Updates:
        chosen = None if row == -1 else row
        return self._read_anew(request, place, lambda data: data.name_columns(place or 0, chosen))

    def keep_total(self, place: int | None, keeps: bool, request: gr.Request) -> Updates:
        return self._read_anew(request, place, lambda data: data.keep_total(place or 0, keeps))

    def _read_anew(self, request: gr.Request, place: int | None, read: Callable[[OpenData], None]) -> Updates:
        session = self._find(request)
        try:
            read(session.data)
        except OpenError as error:
            return self._told(error)
        return self.shown(session, place or 0)

    def beside(self, request: gr.Request) -> Updates:
        return self._take(self._find(request), beside=True)

    def alone(self, request: gr.Request) -> Updates:
        return self._take(self._find(request), beside=False)

    def decline(self, request: gr.Request) -> Updates:
        session = self._find(request)
        session.data.decline()
        return self.shown(session)

    def _take(self, session: Session, beside: bool) -> Updates:
        try:
            session.take(beside=beside)
        except OpenError as error:
            return self._told(error)
        return self._everything(session) | self.shown(session)

    def _told(self, error: OpenError) -> Updates:
        return {self._preview.trouble: gr.update(value=f"⚠ {plain(str(error))}", visible=True)}

    def wire(self, on: Callable[..., None], everywhere: list[Any]) -> None:
        """Connect the preview; called inside the blocks. `everywhere`: what `everything` updates."""
        preview, parts = self._preview, self._preview.parts
        on(preview.sheet.input, self.choose, [preview.sheet], parts)
        on(preview.header.input, self.name_columns, [preview.sheet, preview.header], parts)
        on(preview.total.input, self.keep_total, [preview.sheet, preview.total], parts)
        on(preview.beside.click, self.beside, [], [*everywhere, *parts])
        on(preview.alone.click, self.alone, [], [*everywhere, *parts])
        on(preview.decline.click, self.decline, [], parts)
