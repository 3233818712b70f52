"""Guards the way to stop: a step that waits, decodes or streams ends soon after the asker said so, and says who came first."""

from pathlib import Path

import pytest

from agent.assemble import LoadedModel, ModelChoice, load_model
from agent.context import AgentOptions
from agent.conversation import Conversation
from agent.observe.events import Event, Started, Waiting, Wrote
from decoding.serving.model_queue import Stopped
from tests.agent.conftest import Talk
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.databases.database import Database


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    checkpoint = tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny", max_position_embeddings=4096)
    return load_model(ModelChoice(model=str(checkpoint), profile="compact", dtype="fp32"), progress=lambda *told: None)


@pytest.fixture
def conversation(loaded: LoadedModel, database: Database) -> Conversation:
    return Conversation(loaded.toolbox(database, AgentOptions(max_attempts=1)))


def test_a_step_that_waits_says_how_many_come_first_and_can_be_called_off(conversation: Conversation) -> None:
    queue, seen = conversation.toolbox.model.decoder.queue, list[Event]()  # type: ignore[attr-defined]

    def ask() -> None:
        for event in conversation.events("How many singers?"):
            seen.append(event)
            if isinstance(event, Waiting):
                conversation.toolbox.stop.stop()

    with queue.take(queue.seats), pytest.raises(Stopped):
        ask()
    assert seen[-1] == Waiting("plan", 1) and not any(isinstance(event, Wrote) for event in seen)
    assert len(queue) == 0


def test_a_step_called_off_while_it_decodes_is_not_followed_by_another(conversation: Conversation) -> None:
    stop, started = conversation.toolbox.stop, list[str]()

    def ask() -> None:
        for event in conversation.events("How many singers?"):
            if isinstance(event, Started):
                started.append(event.step)
                if event.step == "plan":
                    stop.stop()

    with pytest.raises(Stopped):
        ask()
    assert started[-1] == "plan" and len(conversation.toolbox.model.decoder.queue) == 0  # type: ignore[attr-defined]
    stop.clear()
    assert conversation.ask("How many singers?").steps


def test_stop_reaches_any_model_that_streams(talk: Talk) -> None:
    conversation = talk("p", "SELECT name FROM singer")
    conversation.toolbox.model.sleep = 0.1  # type: ignore[attr-defined]  # a letter: who listens keeps up
    written: list[str] = []

    def listen() -> None:
        for event in conversation.events("Names?"):
            if isinstance(event, Wrote) and event.step == "generate":
                written.append(event.text)
                conversation.toolbox.stop.stop()

    with pytest.raises(Stopped):
        listen()
    assert 0 < len("".join(written)) < len("SELECT name FROM singer")
