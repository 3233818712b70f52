"""`sqlagent ui`: the web chat. Puts the workspace together and serves it until it is stopped."""

import os
import sqlite3
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from secrets import token_urlsafe
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from agent.archive import Archive
from agent.assemble import load_model
from agent.prompts.knowledge import Knowledge, read_knowledge
from app import doctor
from app.serve.listening import AllowHost
from app.shared import databases, exit_codes, options
from app.shared.options import Chats, DatabaseOptions, Decoding, spread_for_people
from decoding.checkpoints.cache_folder import cache_root
from decoding.errors import pip_install
from tools.processes import spill_folder

if TYPE_CHECKING:
    from agent.assemble import ModelChoice
    from ui.page.serve import Serving
    from ui.session.services import GuestRules
    from ui.session.workspace import Workspace


Host = Annotated[
    str, typer.Option("--host", help="Address to listen on; any but the default can be reached from other machines.")
]
Port = Annotated[int | None, typer.Option("--port", help="Default: the first free one from 7860 on.")]
Auth = Annotated[
    Path | None,
    typer.Option(
        "--auth", help="File of name:password lines; only these people may log in.", exists=True, dir_okay=False
    ),
]
Token = Annotated[
    bool,
    typer.Option(
        "--token/--no-token", help="Let in only those who open the printed address, or everybody on this machine."
    ),
]
AllowOpen = Annotated[
    bool | None,
    typer.Option(
        "--allow-open/--no-allow-open",
        help="Let visitors open databases by URL and load other models; by default only when just this machine is served.",
    ),
]
Upload = Annotated[int, typer.Option("--upload-limit", min=1, help="MiB of files that one person may open.")]
ChatsLimit = Annotated[
    int, typer.Option("--chats-limit", min=1, help="MiB of conversations that are kept for one person.")
]
Waiting = Annotated[
    int, typer.Option("--queue", min=1, help="Questions in progress or waiting at once; more are turned away.")
]
Browser = Annotated[bool, typer.Option("--browser", help="Open the page in a browser.")]


@spread_for_people
def ui(
    source: DatabaseOptions = DatabaseOptions(),
    decoding: Decoding = Decoding(),
    host: Host = "127.0.0.1",
    port: Port = None,
    allow_host: AllowHost = None,
    auth: Auth = None,
    token: Token = True,
    allow_open: AllowOpen = None,
    upload_limit: Upload = 200,
    queue: Waiting = 64,
    chats: Chats = None,
    chats_limit: ChatsLimit = 200,
    browser: Browser = False,
    knowledge: options.KnowledgeFolder = None,
    escalate: options.Escalate = "",
) -> None:
    """Chat with a database in the browser. Nothing leaves this machine, unless a model elsewhere is named."""
    with exit_codes.plain_errors():
        private_and_quiet()
        serving = _serving(host, port, allow_host or [], auth, token, queue)
        workspace = _workspace(
            source, decoding.choice(escalate), _rules(serving, allow_open, upload_limit, chats_limit), chats, knowledge
        )
        try:
            workspace.warm()
            _serve(workspace, serving, browser)
        finally:
            workspace.close()


def private_and_quiet() -> None:
    """Before gradio is imported: no analytics."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise exit_codes.fail(
            f"the chat needs gradio; install it with: {pip_install('ui')}", exit_codes.USAGE
        ) from error


def _workspace(
    source: DatabaseOptions, choice: "ModelChoice", rules: "GuestRules", chats: Path | None, knowledge: Path | None
) -> "Workspace":
    from ui.session.workspace import Workspace

    source.open().close()  # a wrong path should not wait for a model
    known = read_knowledge(knowledge) if knowledge else Knowledge()
    archive = _archive(chats, rules.chats_mb)
    return Workspace(
        choice, archive, load_model, source.open, rules, doctor.facts(), databases.open_log(), known,
        cache_root() / "files",
    )  # fmt: skip


def _archive(chats: Path | None, most_mb: int) -> "Archive":
    """In the file that is named, which must be usable; else in the cache, or until the program ends where that is not."""
    path = chats or cache_root() / "chats.sqlite"
    try:
        return Archive(path, most_mb)
    except (OSError, sqlite3.Error) as error:
        trouble = f"{path} cannot be used ({error}): make it writable, or move it away if it is damaged"
        if chats is not None:
            raise exit_codes.fail(trouble, exit_codes.USAGE) from error
        print(f"sqlagent: conversations last until the page is stopped, {trouble}", file=sys.stderr)
        return Archive(spill_folder() / "chats.sqlite", most_mb)


def _rules(serving: "Serving", allow_open: bool | None, upload_mb: int, chats_mb: int) -> "GuestRules":
    """Unless it was said, only who sits at this machine may open databases by URL and load other models."""
    from ui.http.middleware import LOOPBACK
    from ui.session.services import GuestRules

    alone = serving.host in LOOPBACK and not serving.hosts
    may_open = alone if allow_open is None else allow_open
    return GuestRules(upload_mb=upload_mb, chats_mb=chats_mb, urls=may_open, models=may_open)


def _serving(
    host: str, port: int | None, hosts: Sequence[str], auth: Path | None, token: bool, queue: int
) -> "Serving":
    """Raises typer.Exit where nothing would keep strangers out."""
    from ui.http.middleware import LOOPBACK
    from ui.page.serve import Serving

    if not token and not auth and (host not in LOOPBACK or hosts):
        raise exit_codes.fail(
            "--no-token is for this machine alone; elsewhere name people with --auth", exit_codes.USAGE
        )
    secret = os.environ.get("SQLAGENT_TOKEN") or _token(host in LOOPBACK and not hosts) if token and not auth else None
    return Serving(host, port, _users(auth) if auth else (), secret, hosts, queue)


def _token(alone: bool) -> str:
    """Where this machine alone is served, the one of the last start: an open page and a bookmark go on."""
    from ui.http.entrance import kept_token

    return kept_token(cache_root()) if alone else token_urlsafe(24)


def _users(path: Path) -> list[tuple[str, str]]:
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    pairs = [line.partition(":") for line in lines]
    if not pairs or not all(name and password for name, _, password in pairs):
        raise exit_codes.fail(f"{path} must hold lines of the form name:password", exit_codes.USAGE)
    return [(name, password) for name, _, password in pairs]


def _serve(workspace: "Workspace", serving: "Serving", browser: bool) -> None:
    from ui.page.serve import serve

    try:
        address, close = serve(workspace, serving)
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise exit_codes.fail(f"cannot listen on {serving.host}: {reason}", exit_codes.USAGE) from error
    print(f"The chat is at {address} (stop: Ctrl+C)", file=sys.stderr, flush=True)
    if browser:
        webbrowser.open(address)
    try:
        while True:
            sleep(3600)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        close()
