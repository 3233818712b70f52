"""`sqlagent train`: from a file of groups to an adapter that the decoder loads, stopped and resumed on the way.

`sqlagent data passages`: prompts from a file of responses, the same each time, and nothing is overwritten.

`sqlagent train masks`: from the target's answers to an adapter that decoding uses.

`sqlagent train jacobi`: from groups to trajectories to an adapter, and a second round from that adapter.

`sqlagent train head`: the four commands one after another on a tiny model, and a published head brought in.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from warnings import warn

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from agent.calibration import Calibration, read_calibration
from agent.prompts.compact import PROMPT_VERSION
from app.cli import app
from app.shared import exit_codes
from app.train.train_all import HEADS
from decoding.checkpoints.adapter import About, Adapter, read_adapter, write_adapter
from decoding.checkpoints.mask_adapter import FILE, read_mask_adapter
from decoding.heads.head import OtherTarget, load_head
from decoding.heads.kinds import KINDS
from decoding.serving.load import load_text_decoder
from decoding.tokenizer import Tokenizer
from tests.decoding.models.jacobi_data import ending_checkpoint
from tests.decoding.models.training_data import agent_groups
from training.heads.responses import Response
from training.packs.collect import RecordLog
from training.packs.groups import group_line, read_groups
from training.packs.prompts import chat_parts
from training.run.base import load_base
from training.run.gpu_model import new_factors
from training.run.progress import read_log

SMALL = ("--pack-tokens", "256", "--dtype", "fp32", "--rank", "4", "--accumulate", "1")


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["train", *args])


def test_trains_exports_and_loads(tiny: str, data: str, tmp_path: Path) -> None:
    """Also: a whole model becomes an adapter; stdout ends in one JSON object; the adapter names its prompts."""
    for name, more in (("low", ()), ("full", ("--full", "--lr", "1e-3"))):
        out = tmp_path / name
        arguments = ("sft", "--data", data, "--held-out", data, "--model", tiny, "--out", str(out), "--steps", "3")
        result = run(*arguments, *SMALL, *more)
        assert result.exit_code == exit_codes.OK, result.output
        outcome = json.loads(result.stdout.splitlines()[-1])
        assert (outcome["steps"], outcome["finished"]) == (3, True)
        trained, shipped = out / ("model" if more else "adapter"), tmp_path / f"shipped-{name}"
        shipped.mkdir()
        Calibration(0.0, {}, 0.5).write(shipped)  # another adapter's: it must not speak for the new one
        result = run("export", str(trained), "--model", tiny, "--out", str(shipped), "--rank", "4")
        assert result.exit_code == exit_codes.OK, result.output
        assert read_calibration(shipped) is None and "confidence of another adapter" in result.stderr
        assert read_adapter(shipped).about.prompt_version == PROMPT_VERSION
        load_text_decoder(tiny, dtype="fp32", adapter=shipped)


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ((), exit_codes.USAGE, "a run needs an end"),
        (("--steps", "1", "--stop-token", "nothing"), exit_codes.USAGE, "no stop token"),
        (("--steps", "1", "--pack-tokens", "16"), exit_codes.USAGE, "nothing to train on"),
        (("--steps", "1", "--grow-rank", "8"), exit_codes.USAGE, "give --init-adapter"),
        (("--steps", "1", "--init-adapter", "/nowhere"), exit_codes.MODEL, "holds no adapter"),
    ],
)
def test_what_cannot_be_is_one_line(
    tiny: str, data: str, tmp_path: Path, change: tuple[str, ...], code: int, message: str
) -> None:
    result = run("sft", "--data", data, "--model", tiny, "--out", str(tmp_path / "out"), *SMALL, *change)
    assert result.exit_code == code
    assert message in result.stderr.splitlines()[-1]


def test_sigterm_leaves_a_checkpoint_to_go_on_from(tiny: str, data: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["train", "sft", "--data", data, "--model", tiny, "--out", str(out), "--steps", "5000", *SMALL]
    command = [sys.executable, "-c", "from app.cli import main; main()", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    while len(read_log(out)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    outcome = json.loads(process.communicate(timeout=60)[0].splitlines()[-1])
    assert (process.returncode, outcome["finished"]) == (exit_codes.OK, False)
    done = int(outcome["steps"])
    result = run(
        "sft", "--data", data, "--model", tiny, "--out", str(out), "--steps", str(done + 2), *SMALL, "--resume"
    )
    assert json.loads(result.stdout.splitlines()[-1])["steps"] == done + 2
    assert [record["step"] for record in read_log(out)] == list(range(done + 2))


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


def ran(*arguments: object, code: int = exit_codes.OK) -> Any:
    result = CliRunner().invoke(app, ["train", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout.splitlines()[-1]) if code == exit_codes.OK else " ".join(result.output.split())


def adapted(folder: Path) -> tuple[str, Path]:
    """A tiny model, and a folder with an adapter for it."""
    model = str(ending_checkpoint(folder / "tiny"))
    base = load_base(model)
    shapes = {"model.layers.0.mlp.down_proj": [base.config.hidden_size, base.config.intermediate_size]}
    factors = new_factors(shapes, rank=2, seed=0)
    write_adapter(Adapter(factors, 2, 4.0, About(base.name, base.sha256, 2)), folder / "adapter")
    return model, folder / "adapter"


def test_from_answers_to_masks_beside_the_targets_adapter(tmp_path: Path) -> None:
    model, adapter = adapted(tmp_path)
    data = tmp_path / "groups.jsonl"
    data.write_text("".join(group_line(group) for group in agent_groups(3, 6)))
    on = ("--model", model, "--adapter", adapter, "--device", "cpu")
    ran("head", "collect", "--data", data, "--out", tmp_path / "r", "--max-new-tokens", 30, *on)
    responses = tmp_path / "r" / "responses.jsonl"
    options = ("--depths", 2, "--rank", 3, "--steps", 2, "--pack-tokens", 256, "--dtype", "fp32", *on)
    told = ran("masks", "--data", responses, "--out", tmp_path / "m", "--into", adapter, *options)
    assert told["finished"] and told["steps"] == 2
    found = read_mask_adapter(adapter)
    assert found is not None and (found.depths, found.rank) == (2, 3)
    told = ran("beginnings", "--data", responses, "--into", adapter, "--least", 2)
    begun = read_mask_adapter(adapter)
    assert begun is not None and begun.pairs is not None and begun.pairs.beginnings is not None
    assert told["ends"] == len(begun.pairs.beginnings.ends) > 0 and max(told["right"]) > 0.5
    assert "lower --least" in ran("beginnings", "--data", responses, "--into", adapter, code=exit_codes.USAGE)
    decoder = load_text_decoder(model, dtype="fp32", device="cpu", adapter=adapter)
    assert len(decoder.target.mask_tokens) == 2
    assert ran("masks", "--data", responses, "--out", tmp_path / "m", *options, "--resume")["steps"] == 2
    (adapter / FILE).unlink()
    assert len(load_text_decoder(model, dtype="fp32", device="cpu", adapter=adapter).target.mask_tokens) == 0


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    model = str(ending_checkpoint(tmp_path / "tiny"))
    data = tmp_path / "groups.jsonl"
    data.write_text("".join(group_line(group) for group in agent_groups(1, 2)))
    on = ("--model", model, "--device", "cpu", "--out", tmp_path / "m", "--steps", 1)
    assert "holds no responses" in ran("masks", "--data", data, *on, code=exit_codes.USAGE)
    told = ran("beginnings", "--data", data, "--into", tmp_path / "tiny", code=exit_codes.USAGE)
    assert "has no masks with scores of pairs" in told
    assert "--depths" in ran("masks", "--data", data, "--depths", 0, *on, code=exit_codes.USAGE)


SMALL_TRAIN_JACOBI = ("--pack-tokens", "256", "--dtype", "fp32", "--rank", "4", "--accumulate", "1", "--steps", "2")


@pytest.fixture(scope="module")
def tiny_train_jacobi(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(ending_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "groups.jsonl"
    path.write_text("".join(map(group_line, agent_groups(3, 2))), encoding="utf-8")
    return str(path)


def run_train_jacobi(*args: str) -> Result:
    return CliRunner().invoke(app, ["train", "jacobi", *args])


def collected(tiny: str, groups: str, out: Path, *more: str) -> Result:
    arguments = ("--data", groups, "--model", tiny, "--out", str(out), "--max-new-tokens", "30", "--dtype", "fp32")
    return run_train_jacobi("collect", *arguments, *more)


def test_two_rounds(tiny_train_jacobi: str, groups: str, tmp_path: Path) -> None:
    """The second collects with the first one's adapter and larger blocks, and trains on from it."""
    adapter: tuple[str, ...] = ()
    start: tuple[str, ...] = ("--gold", groups, "--stop-token", "<|im_end|>")
    for number, (size, method) in enumerate((("4", "cllm"), ("8", "jacobi_forcing"))):
        data, out = tmp_path / f"data{number}", tmp_path / f"run{number}"
        result = collected(tiny_train_jacobi, groups, data, "--block-size", size, *adapter)
        counts = json.loads(result.stdout.splitlines()[-1])
        assert (
            result.exit_code == exit_codes.OK and counts["finished"] and counts["prompts"] == 12 and counts["kept"] > 0
        )
        again = json.loads(
            collected(tiny_train_jacobi, groups, data, "--block-size", size, *adapter).stdout.splitlines()[-1]
        )
        assert (again["prompts"], again["finished"]) == (0, True)
        arguments = (
            "--data",
            counts["out"],
            "--held-out",
            counts["out"],
            "--model",
            tiny_train_jacobi,
            "--out",
            str(out),
        )
        result = run_train_jacobi(*arguments, "--method", method, "--window", "4", *SMALL_TRAIN_JACOBI, *start)
        assert result.exit_code == exit_codes.OK, result.output
        outcome = json.loads(result.stdout.splitlines()[-1])
        assert (outcome["steps"], outcome["finished"]) == (2, True) and "stationary" in outcome["held_out"]
        assert "consistency" in read_log(out)[0]
        about = read_adapter(out / "adapter").about
        assert about.notes["jacobi"]["method"] == method
        assert about.notes["jacobi"]["gold"] == (["groups.jsonl"] if number == 0 else [])
        adapter, start = ("--adapter", str(out / "adapter")), ("--init-adapter", str(out / "adapter"))


ROOT = Path(__file__).parents[3]


def recipe_commands(model: str) -> list[list[str]]:
    """Steps 1 to 5 of RECIPE_7B.md, for one process, with packs and answers as small as the model."""
    text = (ROOT / "training/jacobi/RECIPE_7B.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    (.*)$", text, re.MULTILINE)
    script = "\n".join(lines[: lines.index("# 6. look: table and figure")]).replace("\\\n", " ")
    known = dict(re.findall(r"(\w+)='([^']*)'", script)) | {"MODEL": model}
    commands = [line for line in script.splitlines() if line.startswith(("$TRAIN", "sqlagent"))]
    found = [shlex.split(re.sub(r"\$(\w+)", lambda name: quoted(known[name[1]]), line)) for line in commands]
    small = {"--dtype": "fp32", "--pack-tokens": "512", "--accumulate": "1", "--ray": None}
    return [list(_changed(words[words.index("sqlagent") + 1 :], small)) for words in found]


def quoted(words: str) -> str:
    return words.replace("<", "'<").replace(">", ">'")


def _changed(words: list[str], values: dict[str, str | None]) -> Iterator[str]:
    for before, word in pairwise(["", *words]):
        if word not in values or values[word] is not None:
            value = values.get(before, word)
            yield from [] if value is None else [value]


def test_the_recipe_of_a_7b_coder_runs(
    tiny_train_jacobi: str, groups: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commands had never been run, at any size; the first stage, synthetic noise with all weights, was missing."""
    monkeypatch.chdir(tmp_path)
    Path("groups.jsonl").write_text(Path(groups).read_text())
    commands = recipe_commands(tiny_train_jacobi)
    assert [command[-1] for command in commands] == ["s0", "n16", "s1", "n32", "s2"]
    for command in commands:
        limits = ["--max-new-tokens", "40"] if "collect" in command else []
        result = CliRunner().invoke(app, [*command, *limits])
        assert result.exit_code == exit_codes.OK, (command, result.output)
        outcome = json.loads(result.stdout.splitlines()[-1])
        assert outcome["finished"] and outcome.get("steps", outcome.get("kept"))


def test_what_cannot_be_is_one_line_train_jacobi(tiny_train_jacobi: str, groups: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    cases = [
        (("--out", out), "training needs --data"),
        (("--data", groups, "--out", out, "--model", tiny_train_jacobi, *SMALL_TRAIN_JACOBI), "holds no trajectories"),
        (("--data", groups, "--out", out, "--model", tiny_train_jacobi), "a run needs an end"),
        (("collect", "--data", groups, "--out", out, "--model", "/nowhere"), "nowhere"),
    ]
    for arguments, message in cases:
        result = run_train_jacobi(*arguments)
        assert result.exit_code in (exit_codes.USAGE, exit_codes.MODEL) and message in result.stderr, result.stderr
    collected(tiny_train_jacobi, groups, tmp_path / "data", "--limit", "2")
    result = collected(tiny_train_jacobi, groups, tmp_path / "data", "--block-size", "5")
    assert result.exit_code == exit_codes.USAGE and "another block_size" in result.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def model_train_head(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(ending_checkpoint(tmp_path_factory.mktemp("model") / "tiny"))


def ran_train_head(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["train", "head", *map(str, arguments)])
    assert result.exit_code == exit_codes.OK, result.output
    told: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return told


def test_from_prompts_to_a_head_in_four_bits(model_train_head: str, tmp_path: Path) -> None:
    data = tmp_path / "groups.jsonl"
    data.write_text("".join(group_line(group) for group in agent_groups(3, 6)))
    on = ("--model", model_train_head, "--device", "cpu")
    told = ran_train_head(
        "collect", "--data", data, "--out", tmp_path / "r", "--samples", 1, "--max-new-tokens", 30, *on
    )
    assert told["finished"] and told["kept"] > 5
    responses = tmp_path / "r" / "responses.jsonl"
    told = ran_train_head("features", "--data", responses, "--out", tmp_path / "f", "--pack-tokens", 256, *on)
    assert told["finished"]
    run = (
        "--method",
        "medusa",
        "--data",
        tmp_path / "f",
        "--out",
        tmp_path / "run",
        "-o",
        "heads=2",
        "--steps",
        2,
        *on,
    )
    assert ran_train_head(*run)["finished"]
    assert ran_train_head(*run, "--resume")["steps"] == 2
    told = ran_train_head(
        "export", tmp_path / "run" / "head", "--data", responses, "--out", tmp_path / "out", "--limit", 2, *on
    )
    assert told["prompts"] == 2 and told["bytes"] < 20_000
    head = load_head(tmp_path / "out")
    assert (head.config.kind, head.size("heads")) == ("medusa", 2)
    assert head.identity is not None and head.identity.prompt_hash is not None


def test_mistakes_are_one_line_train_head(model_train_head: str, tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    for arguments, said in (
        (["--method", "x", "--data", tmp_path / "f", "--out", tmp_path / "o", "--steps", 1], "choose one of"),
        (["--method", "medusa", "--data", tmp_path / "f", "--out", tmp_path / "o", "--steps", 1], "features.json"),
        (["--method", "medusa", "--steps", 1], "needs --method, --data and --out"),
    ):
        result = CliRunner().invoke(app, ["train", "head", *map(str, arguments), "--model", model_train_head])
        assert result.exit_code != exit_codes.OK
        assert said in " ".join(result.output.split())


def test_a_published_head_becomes_ours(model_train_head: str, tmp_path: Path) -> None:
    tensors = {f"{i}.0.linear.{name}": torch.randn(*shape) for i in range(2) for name, shape in SHAPES.items()}
    (tmp_path / "theirs").mkdir()
    torch.save(tensors, tmp_path / "theirs" / "medusa_lm_head.pt")
    told = ran_train_head(
        "import", tmp_path / "theirs", "--out", tmp_path / "ours", "--model", model_train_head, "--storage", "fp32"
    )
    assert told["kind"] == "medusa"
    got = load_head(tmp_path / "ours").state_dict()["blocks.1.linear.weight"]
    torch.testing.assert_close(got, tensors["1.0.linear.weight"])


SHAPES = {"weight": (32, 32), "bias": (32,)}


def test_every_head_that_can_be_trained_is_a_stage_of_its_recipe() -> None:
    assert set(HEADS) == set(KINDS)


def test_a_benchmark_refuses_a_head_of_another_target(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, exit_codes.plain_errors(), exit_codes.own_heads_only():
        warn(OtherTarget("this medusa head was trained on another target"), stacklevel=1)
    assert ended.value.exit_code == exit_codes.MODEL
    assert capsys.readouterr().err == "sqlagent: this medusa head was trained on another target\n"
