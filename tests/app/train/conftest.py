"""A tiny checkpoint and data to train it on."""

import pytest

from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.models.training_data import agent_groups
from training.packs.groups import group_line


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "groups.jsonl"
    path.write_text("".join(map(group_line, agent_groups(3, 4))), encoding="utf-8")
    return str(path)
