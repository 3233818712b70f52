"""`sqlagent train all`: data, training, export on tiny data; killed between stages, it goes on with the next one."""

import json
import os
import signal
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.shared import exit_codes
from app.train.train_all import RECIPES, Stage, StageError, export_of, run_stages
from decoding.checkpoints.adapter import read_adapter
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.eval.databases import build

TINY = (
    Stage(
        "data",
        "data build --data {data} --out {out}/data --model {model} --variants 1 --refine 0 --follow-ups 0",
        "data/manifest.json",
    ),
    Stage(
        "sft",
        "train sft --data {out}/data/train.jsonl --model {model} --out {out}/sft --pack-tokens 2048 --dtype fp32 --rank 2 "
        "--steps 3 --resume",
        "sft/adapter",
    ),
    export_of("sft"),
)
QUESTIONS = (("library", "Which authors are there?", "SELECT name FROM author"),
             ("gauge", "How many readings?", "SELECT count(*) FROM reading"))  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Data and model; the data folder has two questions in two databases."""
    root = tmp_path_factory.mktemp("data")
    build(root / "spider")
    tables = json.loads((root / "spider" / "tables.json").read_text())
    for entry in tables:
        entry |= {"column_types": ["text"] * len(entry["column_names_original"]), "primary_keys": []}
    asked = [{"db_id": db_id, "question": text, "query": sql} for db_id, text, sql in QUESTIONS]
    syn = [{"SpiderQuestion": e["question"], "SpiderSynQuestion": e["question"]} | e for e in asked]
    (root / "spider_syn").mkdir()
    for name, content in {
        "spider/tables.json": tables,
        "spider/train_spider.json": asked,
        "spider/train_others.json": [],
        "spider/dev.json": [],
        "spider_syn/train_spider.json": syn,
    }.items():
        (root / name).write_text(json.dumps(content))
    model = tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", max_position_embeddings=4096)
    return {"data": str(root), "model": str(model)}


def _alone(places: dict[str, str], out: Path) -> None:
    """The chain in a group of its own, so that it can be killed with whatever it runs."""
    os.setsid()
    run_stages(TINY, places, out)


def _done(out: Path) -> list[str]:
    file = out / "stages.json"
    return list(json.loads(file.read_text())) if file.exists() else []


def test_killed_between_stages_it_goes_on_with_the_next(
    places: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    process = get_context("fork").Process(target=_alone, args=(places | {"out": str(out)}, out))
    process.start()
    deadline = time.monotonic() + 120
    while not _done(out) and time.monotonic() < deadline and process.is_alive():
        time.sleep(0.02)
    assert process.pid is not None
    os.killpg(process.pid, signal.SIGKILL)
    process.join()
    assert _done(out) == ["data"]
    built_at = (out / "data" / "train.jsonl").stat().st_mtime_ns
    capfd.readouterr()

    seconds = run_stages(TINY, places | {"out": str(out)}, out)
    assert list(seconds) == _done(out) == ["data", "sft", "export"]
    assert (out / "data" / "train.jsonl").stat().st_mtime_ns == built_at
    assert read_adapter(out / "shipped").rank == 2
    said = capfd.readouterr().err
    assert "data: done before" in said
    assert "sft: sqlagent train sft" in said
    assert "so far" in said

    assert run_stages(TINY, places | {"out": str(out)}, out) == seconds, "nothing is left to do"
    other = (Stage("data", TINY[0].command + " --seed 1", TINY[0].result),)
    with pytest.raises(StageError, match="holds data by another command"):
        run_stages(other, places | {"out": str(out)}, out)


def test_a_stage_that_fails_is_named_and_not_done(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"data ended too soon \(exit code 2\)"):
        run_stages((Stage("data", "data nonsense", "data/manifest.json"),), {}, tmp_path)
    assert not json.loads((tmp_path / "stages.json").read_text())["data"]["finished"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_stage_of_a_recipe_is_a_command_with_these_options(recipe: str) -> None:
    for stage in RECIPES[recipe]:
        words = stage.arguments({"data": "d", "out": "o", "model": "embedded"})
        result = CliRunner().invoke(app, [*words, "--help"])  # unknown options come before help
        assert result.exit_code == exit_codes.OK, (stage.name, result.output)
    assert CliRunner().invoke(app, [*words, "--nonsense", "--help"]).exit_code == exit_codes.USAGE


def test_an_unknown_recipe_is_told_the_known_ones(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "all", "--data", "x", "--out", str(tmp_path), "--recipe", "tpu"])
    assert result.exit_code == exit_codes.USAGE
    assert "cpu, gpu" in result.stderr
