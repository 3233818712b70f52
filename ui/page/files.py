"""The routes on which files come and go, in the place of Gradio's: everybody has only their own, and so many of them."""

from asyncio import timeout
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tools.result import OpenError
from ui.doors.refusal import API
from ui.doors.sessions import UPLOAD
from ui.session.workspace import Workspace

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
