"""`sqlagent learn`: adds answers with a thumbs-up, and descriptions that exist already, to a knowledge folder, for a person
to review."""

from pathlib import Path
from typing import Annotated

import typer

from app.shared import exit_codes, output
from app.shared.options import Chats, DatabaseOptions, spread_for_people

Folder = Annotated[Path, typer.Argument(help="Folder of knowledge; `--knowledge` of other commands takes it.")]
Opened = Annotated[
    str | None,
    typer.Option("--source", help="What the chat had opened. Default: the database that `sqlagent ui` was started on."),
]
From = Annotated[
    list[Path] | None,
    typer.Option(
        "--from",
        help="Take descriptions of the database: dbt's manifest.json and catalog.json, Apache Ossie's YAML, a "
        "datapackage.json; repeatable.",
        dir_okay=False,
    ),
]


@spread_for_people
def learn(
    folder: Folder,
    chats: Chats = None,
    source: Opened = None,
    described: From = None,
    database: DatabaseOptions = DatabaseOptions(),
) -> None:
    """Add liked question-SQL pairs of the web chat, or descriptions of dbt and others, to a knowledge folder."""
    with exit_codes.plain_errors():
        if described:
            _take(described, folder, database)
            return
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


def _take(described: list[Path], folder: Path, database: DatabaseOptions) -> None:
    from contextlib import closing

    from agent.prompts.descriptions import take

    with closing(database.open()) as opened:
        for file in described:
            taken, left = take(file, folder, opened.schema())
            print(output.shown(f"{file}: {'; '.join(taken) or 'nothing new'}"))
            for each in left:
                print(output.shown(f"  left: {each}"))
