"""`sqlagent learn`: adds answers with a thumbs-up to the examples of a knowledge folder, for a person to review."""

from pathlib import Path
from typing import Annotated

import typer

from app.shared import exit_codes, output
from app.shared.options import Chats

Folder = Annotated[Path, typer.Argument(help="Folder of knowledge; `--knowledge` of other commands takes it.")]
Opened = Annotated[
    str | None,
    typer.Option("--source", help="What the chat had opened. Default: the database that `sqlagent ui` was started on."),
]


def learn(folder: Folder, chats: Chats = None, source: Opened = None) -> None:
    """Add the liked question-SQL pairs of the web chat to a folder's examples."""
    with exit_codes.plain_errors():
        from agent.archive import Archive, learn
        from agent.prompts.knowledge import read_knowledge
        from decoding.checkpoints.cache_folder import cache_root
        from ui.session.session import EXAMPLE

        path = chats or cache_root() / "chats.sqlite"
        if not path.exists():
            raise exit_codes.fail(f"no chats at {path}", exit_codes.USAGE)
        read_knowledge(folder)  # raises before anything is written
        archive = Archive(path)
        learnt = learn(folder, archive.every(source or EXAMPLE))
        archive.close()
    for question in learnt:
        print(output.for_stdout(question))
