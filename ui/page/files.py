"""Files: a preview before they are opened, and the routes on which they come and go.

The preview shows how a dropped file is read and which row names the columns, and whether it joins the open data or replaces it.
The routes replace Gradio's: everybody has only their own files, up to a quota.
"""

from asyncio import timeout
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tools.result import OpenError
from ui.http.entrance import UPLOAD
from ui.http.middleware import API
from ui.session.open_data import OpenData
from ui.session.session import Session
from ui.session.workspace import Workspace
from ui.views.data_html import header_choices, preview_html
from ui.views.words import plain

Updates = dict[Any, Any]
Follow = Callable[..., Iterator[Updates]]


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


def waiting_files(preview: Preview, session: Session, place: int = 0) -> Updates:
    """The sheet at that place of those that wait; nothing where none does."""
    offer = session.data.offered
    if offer is None or not offer.sheets:
        return {preview.box: gr.update(visible=False)}
    place = min(place, len(offer.sheets) - 1)
    sheet = offer.sheets[place]
    names = [(f"{each.file} · {each.name}" if each.name else each.file, i) for i, each in enumerate(offer.sheets)]
    others = bool(session.data.now.files)
    return {
        preview.box: gr.update(visible=True),
        preview.sheet: gr.update(choices=names, value=place, visible=len(names) > 1),
        preview.header: gr.update(choices=header_choices(sheet), value=-1 if sheet.header is None else sheet.header),
        preview.total: gr.update(value=sheet.keeps_total, visible=bool(sheet.total)),
        preview.view: preview_html(sheet, session.database.name),
        preview.trouble: gr.update(value="", visible=False),
        preview.beside: gr.update(visible=others),
        preview.alone: gr.update(
            value="Replace what is open" if others else "Open",
            variant="secondary" if others else "primary",
        ),
    }


class Incoming:
    """Handlers of the preview. `follow`: what brings the whole page up to date."""

    def __init__(self, preview: Preview, find: Callable[[gr.Request], Session], follow: Follow) -> None:
        self._preview, self._find, self._follow = preview, find, follow

    def choose(self, place: int | None, request: gr.Request) -> Updates:
        return waiting_files(self._preview, self._find(request), place or 0)

    def name_columns(self, place: int | None, row: int | None, request: gr.Request) -> Iterator[Updates]:
        chosen = None if row == -1 else row
        yield from self._read_anew(request, place, lambda data: data.name_columns(place or 0, chosen))

    def keep_total(self, place: int | None, keeps: bool, request: gr.Request) -> Iterator[Updates]:
        yield from self._read_anew(request, place, lambda data: data.keep_total(place or 0, keeps))

    def _read_anew(self, request: gr.Request, place: int | None, read: Callable[[OpenData], None]) -> Iterator[Updates]:
        """Open can be clicked meanwhile, and waits: a button that is disabled under the pointer swallows the click."""
        session = self._find(request)
        try:
            read(session.data)
        except OpenError as error:
            yield waiting_files(self._preview, session, place or 0) | self._told(error)
            return
        shown = session.standing
        yield waiting_files(self._preview, session, place or 0)
        yield from self._follow(session, shown, place or 0)

    def beside(self, request: gr.Request) -> Iterator[Updates]:
        yield from self._take(self._find(request), beside=True)

    def alone(self, request: gr.Request) -> Iterator[Updates]:
        yield from self._take(self._find(request), beside=False)

    def decline(self, request: gr.Request) -> Iterator[Updates]:
        session = self._find(request)
        session.data.decline()
        yield from self._follow(session)

    def _take(self, session: Session, beside: bool) -> Iterator[Updates]:
        try:
            session.take(beside=beside)
        except OpenError as error:
            yield self._told(error)
        else:
            yield from self._follow(session)

    def _told(self, error: OpenError) -> Updates:
        return {self._preview.trouble: gr.update(value=f"⚠ {plain(str(error))}", visible=True)}

    def wire(self, on_change: Callable[..., None], outputs: list[Any]) -> None:
        """Connect the preview; called inside the blocks. `outputs`: what `follow` updates."""
        preview, parts = self._preview, self._preview.parts
        on_change(preview.sheet.input, self.choose, [preview.sheet], parts)
        on_change(preview.header.input, self.name_columns, [preview.sheet, preview.header], outputs)
        on_change(preview.total.input, self.keep_total, [preview.sheet, preview.total], outputs)
        on_change(preview.beside.click, self.beside, [], outputs)
        on_change(preview.alone.click, self.alone, [], outputs)
        on_change(preview.decline.click, self.decline, [], outputs)


PATIENCE_S, SLOWEST_BYTES_A_S = 30.0, 128 << 10
MOST_FILES = 200  # of one upload
_OUTSIDE_FILES = 64 << 10  # bytes of an upload that belong to no file


def file_routes(workspace: Workspace) -> list[Route]:
    """Upload, its progress, and download."""
    files = workspace.files

    async def upload(request: Request) -> Response:
        owner, length = request.state.owner, int(request.headers.get("content-length", 0))
        if not length:
            return PlainTextResponse("an upload says how long it is", 411)
        if not workspace.is_here(owner):
            return PlainTextResponse("reload the page first", 403)
        try:
            with files.room(owner, length - _OUTSIDE_FILES):
                async with timeout(PATIENCE_S + length / SLOWEST_BYTES_A_S):
                    form = await request.form(max_files=MOST_FILES, max_fields=MOST_FILES)
                paths = await run_in_threadpool(_stored, form, files.new_folder(owner))
        except OpenError as error:
            return PlainTextResponse(str(error), 413, {"connection": "close"})
        except TimeoutError:
            return PlainTextResponse("the upload took too long", 408, {"connection": "close"})
        return JSONResponse([str(path) for path in paths])

    async def progress(request: Request) -> Response:
        """The page may ask how far its upload is; it learns by the upload's answer that it is there."""
        return PlainTextResponse('data: {"msg": "done"}\n\n', media_type="text/event-stream")

    async def download(request: Request) -> Response:
        path = Path(request.path_params["path"])
        if not files.offers(request.state.owner, path):
            raise HTTPException(404)
        headers = {"cache-control": "no-store"}
        return FileResponse(path, filename=path.name, media_type="application/octet-stream", headers=headers)

    return [
        Route(UPLOAD, upload, methods=["POST"]),
        Route(f"{API}/upload_progress", progress),
        Route(f"{API}/file={{path:path}}", download),
    ]


def _stored(form: FormData, folder: Path) -> list[Path]:
    """The uploaded files, under their own names where these are plain, each in a folder of its own."""
    paths = []
    for number, file in enumerate(form.getlist("files")):
        if isinstance(file, UploadFile):
            name = "".join(sign for sign in Path(file.filename or "").name if sign.isprintable())[-120:].lstrip(".")
            path = folder / str(number) / (name or "file")
            path.parent.mkdir()
            with path.open("wb") as copy:
                while part := file.file.read(1 << 20):
                    copy.write(part)
            paths.append(path)
    return paths
