"""Records the conversation that the page's tests play back: python -m tests.ui.record [NAME ...]. Needs the
embedded model."""

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from agent.archive import Archive
from agent.assemble import ModelChoice, load_model
from app.shared.databases import open_named
from ui.session.workspace import Workspace

RECORDINGS = {
    "albums": (
        ("How many customers are there in each country?", "lookahead"),
        ("How many albums are there for each genre?", "jacobi_forcing"),
    ),
    "artists": (
        ("Which artists have more than three albums? Show their names and the number of albums.", "jacobi_forcing"),
    ),
}
FOLDER = Path(__file__).parent / "recorded"


def main(name: str) -> None:
    with TemporaryDirectory() as scratch:
        workspace = Workspace(
            ModelChoice(), Archive(Path(scratch) / "chats.sqlite"), load_model, lambda: open_named(None)
        )
        session = workspace.session("recording", "recorder")
        for question, decoder in RECORDINGS[name]:
            session.settings = replace(session.settings, decoder=decoder)
            for _ in session.ask(question):
                pass
        (FOLDER / f"{name}.jsonl").write_bytes(session.share().read_bytes())
        workspace.close()


if __name__ == "__main__":
    for recording in sys.argv[1:] or RECORDINGS:
        main(recording)
