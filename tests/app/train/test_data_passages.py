"""`sqlagent data passages`: prompts from a file of responses, the same each time, and nothing is overwritten."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli import app
from app.shared import exit_codes
from decoding.tokenizer import Tokenizer
from tests.decoding.models.jacobi_data import ending_checkpoint
from training.heads.responses import Response
from training.packs.collect import RecordLog
from training.packs.groups import read_groups
from training.packs.prompts import chat_parts

ANSWER = "The tower was built in 1078. It was the castle's strongest point. " * 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ending_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def responses(model: Path, tmp_path: Path) -> Path:
    tokenizer = Tokenizer(model)
    before, after = chat_parts(tokenizer)
    log = RecordLog(tmp_path / "responses.jsonl", {"target": {"base_sha256": "x"}})
    for number in range(12):
        prompt, answer = f"{before}Question {number}?{after}", tokenizer.encode(f"{number}: {ANSWER}")
        log.append(Response(str(number), "chat", prompt, tuple(tokenizer.encode(prompt)), 0, (tuple(answer),)))
    log.close()
    return log.path


def made(model: Path, responses: Path, out: Path, seed: int) -> Result:
    words = ["data", "passages", "--responses", str(responses), "--out", str(out), "--model", str(model)]
    return CliRunner().invoke(app, [*words, "--seed", str(seed)])


def test_the_same_command_gives_the_same_file_and_another_one_does_not_replace_it(
    model: Path, responses: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "prompts.jsonl"
    first = made(model, responses, out, seed=1)
    assert first.exit_code == exit_codes.OK, first.output
    assert json.loads(first.stdout) == {"out": str(out), "prompts": 4} and len(list(read_groups(out))) == 4
    written = out.read_bytes()
    assert made(model, responses, out, seed=1).exit_code == exit_codes.OK
    other = made(model, responses, out, seed=2)
    assert other.exit_code != exit_codes.OK and "holds other prompts" in other.stderr
    assert out.read_bytes() == written
