"""Workspaces for the page's tests: a model that says what a script gives it, or a tiny random one that really decodes."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from agent.archive import Archive
from agent.assemble import LoadedModel, ModelChoice, load_model
from agent.context import AgentContext, AgentOptions
from agent.prompts.profiles import load_profile
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import Limits
from ui.session.services import GuestRules, Settings
from ui.session.session import Session
from ui.session.workspace import Workspace

OPEN = GuestRules()
Script = Mapping[str, str]  # question -> SQL
MUSIC = {
    "artists.csv": "artist_id,name,country\n1,Ada,France\n2,Bo,Spain\n3,Home,France\n",
    "albums.csv": "album_id,artist_id,title,year\n1,1,Home,2014\n2,1,Away,2015\n3,2,Up,2015\n4,3,Low,2017\n",
}


class Scripted(BaseChatModel):
    """Knows which SQL belongs to which question, or question and [evidence]; `pause_s` between words, as a slow model would."""

    script: dict[str, str]
    pause_s: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _reply(self, messages: list[BaseMessage]) -> str:
        prompt = str(messages[-1].text)
        if prompt.endswith("plan:"):
            return "albums.title"
        question = prompt.rpartition("question: ")[2].partition("\n")[0]
        evidence = prompt.rpartition("evidence: ")[2].partition("\n")[0]
        return self.script.get(f"{question} [{evidence}]") or self.script.get(question, "SELECT nothing FROM nowhere")

    def _generate(self, messages: list[BaseMessage], *rest: Any, **more: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self._reply(messages)))])

    def _stream(self, messages: list[BaseMessage], *rest: Any, **more: Any) -> Iterator[ChatGenerationChunk]:
        for word in self._reply(messages).split(" "):
            time.sleep(self.pause_s)
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))


class ScriptedLoaded:
    """In the place of `agent.assemble.LoadedModel`."""

    def __init__(self, script: Script, pause_s: float = 0.0) -> None:
        self._model = Scripted(script=dict(script), pause_s=pause_s)

    def with_choice(self, choice: ModelChoice) -> "ScriptedLoaded":
        return self

    def toolbox(self, database: Database, options: AgentOptions, limits: Limits) -> AgentContext:
        return AgentContext(database, self._model, load_profile("compact"), options, limits)


def music(folder: Path) -> Callable[[], Database]:
    """What opens a small database of two tables."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in MUSIC.items():
        (folder / name).write_text(text)
    return lambda: open_database([folder / name for name in MUSIC])


def scripted_workspace(folder: Path, script: Script, pause_s: float = 0.0, rules: GuestRules = OPEN) -> Workspace:
    loaded = ScriptedLoaded(script, pause_s)
    archive = Archive(folder / "chats.sqlite", rules.chats_mb)
    return Workspace(
        ModelChoice(),
        archive,
        lambda choice: loaded,
        music(folder / "music"),
        rules,
        {"python": "3"},
        kept=folder / "kept",
    )


def bring(session: Session, *files: Path) -> None:
    """Take files in beside those that are open."""
    session.data.offer(files)
    session.take(beside=True)


class Brief(Workspace):
    """Tries one statement per question: what a random model writes is not worth correcting."""

    def default_settings(self) -> Settings:
        return replace(super().default_settings(), attempts=1)


def tiny_workspace(folder: Path) -> Workspace:
    """A random model of two layers that the grammar holds to SQL: real rounds, senseless answers."""
    checkpoint = tiny_checkpoint(folder / "tiny", max_position_embeddings=4096)
    choice = ModelChoice(model=str(checkpoint), profile="compact", dtype="fp32", decoder="lookahead")

    def load(wanted: ModelChoice) -> LoadedModel:
        return load_model(wanted, progress=lambda *told: None)

    return Brief(choice, Archive(folder / "chats.sqlite"), load, music(folder / "music"))
