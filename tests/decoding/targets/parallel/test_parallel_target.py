"""Guards tensor parallelism: several processes write what one writes, and end when the first one does.

The processes are real ones, which talk through gloo on a processor. NCCL and GPUs are not tested here.

Guards what each process of a model holds, and the refusal of what cannot be shared out.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_parts, read_weights
from decoding.errors import UnsupportedModel
from decoding.targets import cached_target, fast_target, llama_model
from decoding.targets import prefix_cache as kv_cache
from decoding.targets.fast_target import FastTarget
from decoding.targets.parallel import Leader, Message, ProcessLost, Split
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.ranks import free_port, in_processes, world_of
from tests.decoding.targets.parallel.parallel_process import PLANTS, VOCAB, main, texts_of

MODULE = "tests.decoding.targets.parallel.parallel_process"
SECONDS = 600


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Biases that must be added once, heads that share keys, a vocabulary that cannot be halved; tied and not."""
    root = tmp_path_factory.mktemp("tiny")
    return [
        tiny_checkpoint(root / "llama", "llama", vocab=VOCAB, attention_bias=True, mlp_bias=True, sharded=True),
        tiny_checkpoint(root / "qwen2", "qwen2", vocab=VOCAB, tie=False),
        tiny_checkpoint(root / "qwen3", "qwen3", vocab=VOCAB, tie=False, head_dim=16),
    ]


@pytest.fixture(scope="module")
def texts_of_one(folders: list[Path]) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_cache, "_SMALLEST", 8)
        patch.setattr(fast_target, "CHUNK_ROWS", 8)
        patch.setattr(cached_target, "FORWARD_ROWS", 20)
        patch.setattr(llama_model, "WORTH_SHARING", 3)
        return [json.loads(json.dumps(texts_of(FastTarget.load(folder)))) for folder in folders]


def started(size: int, command: list[str]) -> list["subprocess.Popen[str]"]:
    """So many processes of Python, as torchrun starts them."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **world_of(size, port, rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def texts_of_several(size: int, plant: str, folders: list[Path], out: Path) -> list[Any]:
    in_processes(size, main, plant, str(out), *map(str, folders))
    return json.loads(out.read_text())  # type: ignore[no-any-return]


@pytest.mark.usefixtures("one_thread")
def test_two_processes_write_what_one_writes(folders: list[Path], texts_of_one: list[Any], tmp_path: Path) -> None:
    """Plain decoding, chains, trees, heads that read states and the LM head, and several texts at once."""
    found = texts_of_several(2, "none", folders, tmp_path / "texts")
    assert len(set(map(tuple, texts_of_one[0]["plain 0.0"]))) == 3, "the texts differ, so mixing them up would be seen"
    for texts, want in zip(found, texts_of_one, strict=True):
        assert texts.keys() == want.keys()
        for name in want:
            assert texts[name] == want[name], name


@pytest.mark.usefixtures("one_thread")
def test_more_processes_than_key_value_heads(folders: list[Path], texts_of_one: list[Any], tmp_path: Path) -> None:
    """Four processes, two key-value heads: two processes hold each."""
    assert texts_of_several(4, "none", folders[2:], tmp_path / "texts") == texts_of_one[2:]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("plant", [name for name in PLANTS if name != "none"])
def test_a_planted_bug_is_seen(plant: str, folders: list[Path], texts_of_one: list[Any], tmp_path: Path) -> None:
    assert texts_of_several(2, plant, folders[:1], tmp_path / "texts") != texts_of_one[:1]


@pytest.mark.usefixtures("one_thread")
def test_the_others_end_when_the_first_is_killed(folders: list[Path]) -> None:
    first, second = started(2, ["-m", MODULE, "none", "wait", str(folders[0])])
    assert first.stdout is not None and first.stdout.readline() == "loaded\n"
    assert second.poll() is None
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=SECONDS)
    out, said = second.communicate(timeout=20)
    assert (second.returncode, out) == (0, "") and "Traceback" not in said


COMMAND = ["-c", "from app.cli import main; main()"]


@pytest.mark.parametrize("size", [2, 4])
def test_the_parts_make_up_the_whole(size: int, tmp_path: Path) -> None:
    """Cut by rows or columns, with a key-value head twice where there are four processes; in memory of their own."""
    path = tiny_checkpoint(tmp_path, "qwen2", vocab=321, tie=False, head_dim=16)
    config = load_config(path)
    splits = [Split(config, rank, size) for rank in range(size)]
    parts = [dict(read_parts(path, split.cut)) for split in splits]
    for name, whole in read_weights(path):
        pieces = [part[name] for part in parts]
        assert all(piece.untyped_storage().nbytes() == piece.nbytes for piece in pieces)
        if ".k_proj." in name or ".v_proj." in name:
            pieces = [pieces[0], pieces[size // 2]]
        if all(torch.equal(piece, whole) for piece in pieces):
            assert "norm" in name or "embed" in name
        else:
            assert torch.equal(torch.cat(pieces, int(whole.shape[0] == pieces[0].shape[0])), whole), name
    held = [sum(tensor.nbytes for tensor in part.values() if tensor.dim() == 2) for part in parts]
    assert held[0] == splits[0].memory_bytes(4, 4) == splits[0].memory_bytes(2, 2) * 2
    assert max(held) < config.memory_bytes(4, 4)


def test_a_bias_that_is_summed_is_held_once(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, attention_bias=True, mlp_bias=True)
    whole = dict(read_weights(path))
    parts = [dict(read_parts(path, Split(load_config(path), rank, 2).cut)) for rank in range(2)]
    for name in ("model.layers.0.self_attn.o_proj.bias", "model.layers.1.mlp.down_proj.bias"):
        assert whole[name].any()
        assert torch.equal(parts[0][name] + parts[1][name], whole[name])


@pytest.mark.parametrize(
    ("size", "fields", "told"),
    [
        (3, {}, "4 attention heads cannot be cut into 3"),
        (2, {"intermediate_size": 49}, "49 inner numbers of the MLP cannot be cut into 2"),
        (
            2,
            {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3},
            "3 key-value heads cannot be shared out to 2",
        ),
    ],
)
def test_what_cannot_be_shared_out_is_refused(size: int, fields: dict[str, Any], told: str, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, **fields)
    with pytest.raises(UnsupportedModel, match=told):
        Split(load_config(path), 0, size)


def test_pickles_are_refused(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, bin=True)
    with pytest.raises(UnsupportedModel, match="pickles"):
        read_parts(path, Split(load_config(path), 0, 2).cut)


class Heard:
    """A group whose others only listen."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def send(self, message: Message) -> None:
        self.messages.append(message)


class Table:
    """Anything that has a number."""


def test_a_forward_that_broke_off_is_the_last() -> None:
    """The others wait in the middle of it, so that a further message would never be read."""
    leader = Leader(Heard())  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError), leader.told("forward"):
        raise ZeroDivisionError
    with pytest.raises(ProcessLost, match="broken off"), leader.told("forward"):
        pytest.fail("nothing is computed any more")


def test_the_others_forget_what_is_gone() -> None:
    group, table = Heard(), Table()
    leader = Leader(group)  # type: ignore[arg-type]
    number = leader.number(table)
    assert leader.number(table) == number != leader.number(Table())
    with leader.told("forward"):
        pass
    del table
    with leader.told("forward"):
        pass
    assert ("forget", number) not in group.messages[0]["changes"]
    assert ("forget", number) in group.messages[1]["changes"]


def test_an_error_is_one_line_and_ends_all(tmp_path: Path) -> None:
    """As a user starts them: the command runs in the first process only."""
    path = tiny_checkpoint(tmp_path)
    command = [*COMMAND, "ask", "How many albums?", "--model", str(path), "--dtype", "int8", "--device", "cpu"]
    said = [(*process.communicate(timeout=SECONDS), process.returncode) for process in started(2, command)]
    assert said[0][::2] == ("", 6)
    own, other = (
        err.partition("nanobind: ")[0] for _, err, _ in said
    )  # DuckDB 2.0 reports what torch keeps of it at the end
    assert "int8 weights are computed by one process: give --dtype fp32 or bf16" in own.splitlines()[-1]
    assert "Traceback" not in own and (said[1][0], other, said[1][2]) == ("", "", 0)


def test_several_processes_without_torchrun() -> None:
    world = {name: value for name, value in os.environ.items() if name not in ("RANK", "MASTER_ADDR")}
    done = subprocess.run(
        [sys.executable, *COMMAND, "schema"],
        env={**world, "WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 6 and done.stderr.count("\n") == 1
    assert "start them with torchrun --no-python --nproc-per-node N sqlagent" in done.stderr
