"""Records the conversation that the page's tests play back: python -m tests.ui.record. Needs the embedded model."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from agent.assemble import ModelChoice, load_model
from agent.conversation.archive import Archive
from app.shared.databases import open_named
from ui.session.workspace import Workspace

QUESTIONS = (
    ("How many concerts were there per year?", "lookahead"),
    ("How many albums are there for each genre?", "jacobi_forcing"),
)


def main(path: Path) -> None:
    with TemporaryDirectory() as scratch:
        workspace = Workspace(
            ModelChoice(), Archive(Path(scratch) / "chats.sqlite"), load_model, lambda: open_named(None)
        )
        session = workspace.session("recording", "recorder")
        for question, decoder in QUESTIONS:
            session.settings = replace(session.settings, decoder=decoder)
            for _ in session.ask(question):
                pass
        path.write_bytes(session.share().read_bytes())
        workspace.close()


if __name__ == "__main__":
    main(Path(__file__).parent / "recorded" / "albums.jsonl")
