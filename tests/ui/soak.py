"""Many questions in a row through the whole chat, and what they leave behind: `make soak questions=2000`.

    python -m tests.ui.soak [QUESTIONS [MODEL]]     MODEL as `--model` takes it; by default a random one of two layers

Three people ask in turn: the agent and the decoder answer, query processes run the SQL, log and archive are written; they begin
new conversations, come and go, run SQL by hand, some of it refused, some of it stopped at its deadline. The random model would
babble, so that it gets few tokens. Ends with 1 where memory, open files, threads, processes, live objects or unbounded caches
have grown past `ALLOWED` after the warm-up.
"""

import functools
import gc
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from agent.archive import Archive
from agent.assemble import LoadedModel, ModelChoice, load_model
from agent.context import AgentContext
from agent.observe.audit import AuditLog
from agent.prompts.compact import Compact
from agent.prompts.profiles import ModelStep
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.ui.workspaces import MUSIC, Brief, music
from tools.databases.database import Database
from tools.databases.open_database import open_database
from ui.session.services import Settings
from ui.session.session import Session
from ui.session.workspace import Workspace

PEOPLE, CONVERSATION, VISIT = 3, 8, 50  # questions of a conversation, questions until somebody leaves
DEADLINE_S = 0.2
BY_HAND = ("SELECT count(*) FROM albums", "DROP TABLE albums", "SELECT titel FROM albums", "FROM artists")
WITHOUT_END = "SELECT count(*) FROM range(100000) a, range(1000000) b"


@dataclass(frozen=True, slots=True)
class Use:
    """What this process and its children hold; memory is resident, of all of them together."""

    memory_mb: float
    files: int
    threads: int
    processes: int
    objects: int  # that Python's garbage collector watches
    cached: int  # results in caches without a bound

    def beyond(self, before: "Use", allowed: "Use") -> dict[str, float]:
        """By how much each figure has grown, where that is more than allowed."""
        now, then, most = asdict(self), asdict(before), asdict(allowed)
        return {name: now[name] - then[name] for name in now if now[name] - then[name] > most[name]}


ALLOWED = Use(memory_mb=48, files=8, threads=4, processes=0, objects=4000, cached=64)
"""Growth after the warm-up, however many questions follow: a leak of 30 kB or 2 objects a question fails 2,000 of them."""


def children() -> list[psutil.Process]:
    """The processes that this one has started, and theirs."""
    return psutil.Process().children(recursive=True)


def measured(strangers: Collection[psutil.Process] = ()) -> Use:
    """What is held now. strangers: processes that have nothing to do with the chat, such as servers of other tests."""
    gc.collect()
    family = [psutil.Process(), *(child for child in children() if child not in strangers)]
    caches = [each.cache_info() for each in gc.get_objects() if type(each) is functools._lru_cache_wrapper]
    return Use(
        memory_mb=sum(process.memory_info().rss for process in family) / 2**20,
        files=sum(process.num_fds() for process in family),
        threads=sum(process.num_threads() for process in family),
        processes=len(family),
        objects=len(gc.get_objects()),
        cached=sum(cache.currsize for cache in caches if cache.maxsize is None),
    )


class Curt(Compact):
    """The compact profile with room for a few words."""

    def max_new_tokens(self, step: ModelStep) -> int:
        return 12


class Curtly(Brief):
    """Each question is tried once, in a few words."""

    def toolbox(self, settings: Settings, database: Database) -> AgentContext:
        made = super().toolbox(settings, database)
        made.profile = Curt()
        return made


@contextmanager
def soaking(folder: Path, model: str | None = None) -> Iterator[Workspace]:
    """A workspace on a small database whose queries run in processes of their own."""
    name = model or str(tiny_checkpoint(folder / "tiny", max_position_embeddings=4096))
    choice = ModelChoice(model=name, profile="compact", dtype="fp32", prefix_cache_mb=8)
    music(folder / "music")
    files = [folder / "music" / file for file in MUSIC]

    def load(wanted: ModelChoice) -> LoadedModel:
        return load_model(wanted, progress=lambda *told: None)

    archive, log = Archive(folder / "chats.sqlite"), AuditLog(folder / "log.sqlite")
    kind = Workspace if model else Curtly
    workspace = kind(choice, archive, load, lambda: open_database(files, isolated=True), log=log)
    try:
        yield workspace
    finally:
        workspace.close()
        log.close()


def soak(
    workspace: Workspace, questions: int, visit: int = VISIT, strangers: Collection[psutil.Process] = ()
) -> Iterator[Use]:
    """Ask; what is held whenever somebody has left, which happens every `visit` questions."""
    for number in range(questions):
        name = f"person {number % PEOPLE}"
        session = workspace.session(name, name)
        session.settings = replace(session.settings, deadline_s=DEADLINE_S)
        _ask(session, number)
        if number % visit == visit - 1:
            workspace.leave(name)
            yield measured(strangers)


def _ask(session: Session, number: int) -> None:
    if number // PEOPLE % CONVERSATION == 0:
        session.begin()
    for _ in session.ask(f"How many albums of {1900 + number % 200} has artist number {number}?"):
        pass
    turn = len(session.view.turns) - 1
    session.run_sql(WITHOUT_END if number % 25 == 24 else BY_HAND[number // PEOPLE % len(BY_HAND)], turn)
    session.judge(turn, number % 2 == 0)


def main(questions: int, model: str | None = None) -> int:
    """The exit code. The warm-up is a fifth of the questions."""
    uses: list[Use] = []
    with tempfile.TemporaryDirectory() as folder, soaking(Path(folder), model) as workspace:
        for use in soak(workspace, questions):
            uses.append(use)
            print(f"{len(uses) * VISIT} questions: {use}", file=sys.stderr)
    warm, last = uses[len(uses) // 5], uses[-1]
    print(f"{questions} questions; after the warm-up {warm}; at the end {last}")
    grown = last.beyond(warm, ALLOWED)
    print(f"grown past what is allowed: {grown}" if grown else "nothing has grown past what is allowed")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000, *sys.argv[2:3]))
