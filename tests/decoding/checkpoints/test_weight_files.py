"""Guards against tensors that are lost, mixed up or trusted too much when a checkpoint is read."""

import os
from itertools import product
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from decoding.checkpoints.identity import weights_sha256
from decoding.checkpoints.resolve import resolve
from decoding.checkpoints.weight_files import base_sha256, read_weights
from decoding.errors import ModelUnavailable
from tests.decoding.models.tiny_models import FAMILIES, Family, tiny_checkpoint


@pytest.mark.parametrize(("sharded", "bin"), list(product([False, True], repeat=2)))
@pytest.mark.parametrize("family", FAMILIES)
def test_reads_every_layout_as_transformers_does(family: Family, sharded: bool, bin: bool, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, family, tie=False, sharded=sharded, bin=bin)
    ours = dict(read_weights(resolve(str(path))))
    theirs = AutoModelForCausalLM.from_pretrained(path).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_identity_knows_the_weights_and_not_their_files(tmp_path: Path) -> None:
    layouts = [(False, False), (True, False), (True, True)]
    paths = [tiny_checkpoint(tmp_path / str(i), sharded=sharded, bin=bin) for i, (sharded, bin) in enumerate(layouts)]
    identities = {base_sha256(path) for path in paths}
    assert len(identities) == 1
    assert base_sha256(tiny_checkpoint(tmp_path / "other", seed=1)) not in identities


def test_identity_sees_values_names_shapes_and_types() -> None:
    tensor = torch.arange(4, dtype=torch.float32)
    variants = [
        {"a": tensor},
        {"b": tensor},
        {"a": tensor.reshape(2, 2)},
        {"a": tensor.view(torch.int32)},
        {"a": tensor.flip(0)},
        {"a": tensor, "c": torch.tensor(1.0)},
    ]
    assert len({weights_sha256(variant) for variant in variants}) == len(variants)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, sharded=True)
    (path / "model-00002-of-00005.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match="lacks the weight file model-00002-of-00005"):
        resolve(str(path))


@pytest.mark.parametrize("bin", [False, True])
def test_a_truncated_file_is_named(tmp_path: Path, bin: bool) -> None:
    path = tiny_checkpoint(tmp_path, bin=bin)
    file = path / ("pytorch_model.bin" if bin else "model.safetensors")
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(ModelUnavailable, match=f"{file.name} is damaged"):
        list(read_weights(path))


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (os.environ["EVIL_FOLDER"],)


def test_a_pickle_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVIL_FOLDER", str(tmp_path / "evil"))
    path = tiny_checkpoint(tmp_path / "model", bin=True)
    torch.save({"a": _Evil()}, path / "pytorch_model.bin")
    with pytest.raises(ModelUnavailable, match="more than tensors"):
        list(read_weights(path))
    assert not (tmp_path / "evil").exists()


def test_names_that_mean_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for name in ("no-such-model", str(tmp_path / "notes.txt"), str(tmp_path / "empty"), "a/b/c", "missing/file.gguf"):
        with pytest.raises(ModelUnavailable) as caught:
            resolve(name)
        assert "\n" not in str(caught.value)
