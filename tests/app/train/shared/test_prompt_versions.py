"""Weights and data must agree on the prompts; the agent writes those that its weights know."""

import json
from pathlib import Path

import pytest

from agent.assemble import ModelChoice, profile_of
from agent.prompts.profiles.compact import PROMPT_VERSION, Compact
from app.train.shared.prompt_versions import check_versions, version_of_data, version_of_weights
from decoding.checkpoints.adapters.adapter import About, Adapter, AdapterMismatch
from decoding.checkpoints.adapters.adapter_files import read_adapter
from decoding.checkpoints.adapters.shipped import SHIPPED_ADAPTER
from decoding.training.data.groups import TrainingDataError


def _data(folder: Path, version: int) -> Path:
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"prompt_version": version}))
    return folder / "train.jsonl"


def _weights(version: int | None) -> Adapter:
    return Adapter({}, 1, 1.0, About("base", "0", version))


def test_data_and_weights_that_disagree_are_one_line(tmp_path: Path) -> None:
    one, two = _data(tmp_path / "one", 1), _data(tmp_path / "two", 2)
    assert check_versions(_weights(1), [one]) == 1 and check_versions(_weights(2), [two, two]) == 2
    with pytest.raises(
        TrainingDataError, match=r"^the data are prompts of version 2, and the weights know version 1: "
    ):
        check_versions(_weights(1), [two])
    with pytest.raises(TrainingDataError, match="one run takes prompts of one version"):
        version_of_data([one, two])
    assert version_of_data([tmp_path / "train.jsonl"]) is None
    assert version_of_weights(None) == version_of_weights(_weights(None)) == PROMPT_VERSION


def test_the_agent_writes_the_prompts_that_its_weights_know() -> None:
    shipped = read_adapter(SHIPPED_ADAPTER).about
    profile = profile_of(ModelChoice(), shipped)
    assert isinstance(profile, Compact) and profile.version == shipped.prompt_version
    assert profile_of(ModelChoice(profile="chat"), shipped).name == "chat"
    with pytest.raises(AdapterMismatch, match="no prompts have version 99"):
        profile_of(ModelChoice(), About("base", "0", 99))
