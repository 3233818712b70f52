"""Packs that are made by one command and trained from by another, which imports little: the results are the same bytes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.shared import exit_codes
from decoding.checkpoints.adapter import read_adapter
from tests.decoding.models.tiny_models import tiny_checkpoint
from training.run.progress import read_log

RUN = ("--pack-tokens", "256", "--dtype", "fp32", "--device", "cpu", "--accumulate", "1", "--steps", "2", "--seed", "3")
SMALL = (*RUN, "--rank", "4")
JACOBI = ("--sweeps", "1", "--block-size", "4")
MASKS = ("--depths", "2", "--ahead", "1", "--pair-rank", "4", "--chains", "8")

# Runs a module in a process that cannot import what a machine that only trains lacks.
BARE = """
import runpy, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
runpy.run_module("app.train.on_gpu", run_name="__main__", alter_sys=True)
"""
ABSENT = {
    "sqlglot",
    "duckdb",
    "langgraph",
    "langchain_core",
    "sqlalchemy",
    "gradio",
    "pydantic",
    "platformdirs",
    "gguf",
}


def train(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["train", *words])
    assert result.exit_code == exit_codes.OK, result.output
    said: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return said


def bare(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", BARE.format(absent=ABSENT), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def contents(folder: Path) -> dict[str, Any]:
    """What the files hold. The header of safetensors has its entries in any order."""
    found: dict[str, Any] = {}
    for file in folder.iterdir():
        raw = found[file.name] = file.read_bytes()
        if file.suffix == ".safetensors":
            end = 8 + int.from_bytes(raw[:8], "little")
            found[file.name] = json.loads(raw[8:end]), raw[end:]
    return found


@pytest.mark.parametrize(
    ("command", "result"),
    [
        (("sft", *SMALL), "adapter"),
        (("jacobi", *JACOBI, *SMALL), "adapter"),
        (("masks", *MASKS, *RUN, "--adapter", "none"), "masks"),
    ],
    ids=["sft", "jacobi", "masks"],
)
def test_packs_train_the_same_where_little_is_installed(
    tiny: str, data: str, tmp_path: Path, command: tuple[str, ...], result: str
) -> None:
    """Also: the bare run is resumed where the ordinary command has begun it, for the packs have the same digest."""
    given = "--pairs" if command[0] == "masks" else "--data"
    measured = () if command[0] == "masks" else ("--held-out", data)
    asked = (*command, given, data, *measured, "--model", tiny)
    ordinary = train(*asked, "--out", str(tmp_path / "ordinary"))
    packs = tmp_path / "packs"
    said = train(*asked, "--packs-only", "--out", str(packs))
    assert said["bytes"] == packs.stat().st_size and said["tokens"] > 0
    ran = bare("train", packs, "--model", tiny, "--out", tmp_path / "bare")
    assert ran.returncode == exit_codes.OK, ran.stderr
    outcome = json.loads(ran.stdout.splitlines()[-1])
    # Some processors round a dot product by where its arrays lie in memory, so figures are compared up to that.
    assert outcome["finished"] and outcome["held_out"] == pytest.approx(ordinary["held_out"], rel=1e-6)
    assert contents(tmp_path / "bare" / result) == contents(tmp_path / "ordinary" / result)
    ran = bare("train", packs, "--model", tiny, "--out", tmp_path / "ordinary", "--steps", 3, "--resume")
    assert json.loads(ran.stdout.splitlines()[-1])["steps"] == 3, ran.stderr


def test_one_script_runs_all_that_a_gpu_is_for(data: str, tmp_path: Path) -> None:
    """An adapter goes on, its mean with the one before is exported, and masks of the mean follow; without a GPU that is all.
    What an earlier run has begun and exported is there: it goes on with the one and writes the other anew.
    """
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_key_value_heads": 4, "head_dim": 16}
    model = str(tiny_checkpoint(tmp_path / "model", **sizes))  # as wide as the rank that the script ships
    first, packs, out = tmp_path / "first", tmp_path / "packs", tmp_path / "out"
    train("sft", "--data", data, "--model", model, "--out", str(first), *SMALL)
    target = (
        "sft",
        "--data",
        data,
        "--model",
        model,
        *RUN,
        "--grow-rank",
        "6",
        "--init-adapter",
        str(first / "adapter"),
    )
    train(*target, "--steps", "1", "--out", str(out / "target"))
    begun = next(iter(read_log(out / "target")))
    shutil.copytree(first / "adapter", out / "trained")
    train(*target, "--packs-only", "--out", str(packs / "target.packs"))
    masks = ("masks", "--pairs", data, "--adapter", "none", *MASKS, "--model", model, *RUN)
    train(*masks, "--packs-only", "--out", str(packs / "masks.packs"))
    chosen = {"ADAPTER": str(first / "adapter"), "MODEL": model, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(
        ["bash", "training/gpu.sh", str(packs), str(out), "60"],
        capture_output=True, text=True, check=False, env={**os.environ, **chosen},
    )  # fmt: skip
    said = (out / "steps").read_text(encoding="utf-8").splitlines()
    steps = [line.partition(",")[0] for line in said]
    assert steps == ["target: 0", "trained: 0", "averaged: 0", "masks: 0", "tests"], ran.stderr
    assert ran.returncode == 1  # not all was done
    assert next(iter(read_log(out / "target"))) == begun, "the first step was not taken again"
    assert json.loads((out / "target.json").read_text(encoding="utf-8").splitlines()[-1])["steps"] == 2
    assert read_adapter(out / "trained").rank == read_adapter(out / "averaged").rank == 50
    assert (out / "masks" / "masks" / "masks.safetensors").exists()


def test_packs_that_do_not_fit_end_in_one_line(tiny: str, data: str, tmp_path: Path) -> None:
    packs, out = tmp_path / "packs", ("--out", tmp_path / "out")
    train("sft", "--data", data, "--model", tiny, *SMALL, "--packs-only", "--out", str(packs))
    other = bare("train", packs, "--model", tiny_checkpoint(tmp_path / "other", seed=1), *out)
    assert other.returncode == 1 and "another base model" in other.stderr.splitlines()[-1]
    packs.write_bytes(packs.read_bytes()[:-100])  # a copy that was cut short
    short = bare("train", packs, "--model", tiny, *out)
    assert short.returncode == 1 and "copy it whole" in short.stderr.splitlines()[-1]
