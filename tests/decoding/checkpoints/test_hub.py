"""Guards the way to other models: the real hub client against a hub on the loopback address."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from decoding.checkpoints.cache_folder import silent
from decoding.checkpoints.catalog import list_models, pull, resolve
from decoding.errors import ModelUnavailable
from tests.decoding.checkpoints.file_server import FileServer, serving
from tests.decoding.models.tiny_models import tiny_checkpoint

REPO = "someone/tiny"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    path = tiny_checkpoint(tmp_path / "original", sharded=True)
    with serving() as server:
        files = {file.name: file.read_bytes() for file in path.iterdir()}
        others = {"pytorch_model.bin": b"x", "onnx/model.safetensors": b"x", "README.md": b"x"}
        server.add_hub_model(REPO, files | others)
        yield server


@pytest.fixture(autouse=True)
def client(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub client talks to `server` and keeps what it fetches in this test's folder."""
    use_hub(server.url, monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path / "sqlagent"))


def use_hub(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


def test_a_hub_model_is_fetched_once_and_only_what_is_needed(server: FileServer) -> None:
    folder = resolve(REPO)
    names = {file.name for file in folder.iterdir()}
    assert {
        "config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        "model-00001-of-00005.safetensors",
    } <= names
    assert not names & {"pytorch_model.bin", "onnx", "README.md"}
    assert [model.name for model in list_models()] == ["embedded", REPO]
    server.requests.clear()
    assert resolve(REPO) == folder
    assert server.requests == [], "a model that is there whole needs no network"


def test_a_half_fetched_model_is_completed() -> None:
    folder = resolve(REPO)
    shard = folder / "model-00003-of-00005.safetensors"
    content = shard.read_bytes()
    shard.resolve().unlink()
    shard.unlink()
    assert resolve(REPO) == folder
    assert shard.read_bytes() == content


def test_pull_brings_a_model_up_to_date(server: FileServer, tmp_path: Path) -> None:
    old = resolve(REPO)
    newer = tiny_checkpoint(tmp_path / "newer", seed=1)
    server.add_hub_model(REPO, {file.name: file.read_bytes() for file in newer.iterdir()}, commit="decade" + "0" * 34)
    assert resolve(REPO) == old
    new = pull(REPO, silent).folder
    assert new is not None
    assert (new / "model.safetensors").read_bytes() == (newer / "model.safetensors").read_bytes()


def test_unknown_and_unreachable_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelUnavailable, match="check the name"):
        resolve("someone/else")
    use_hub("http://127.0.0.1:1", monkeypatch)
    with pytest.raises(ModelUnavailable, match=f"{REPO} is not in the cache and the hub cannot be reached: ") as caught:
        resolve(REPO)
    assert "\n" not in str(caught.value)
