"""Guards tensor parallelism: several processes write what one writes, and end when the first one does.

The processes are real ones, which talk through gloo on a processor. NCCL and GPUs are not tested here.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from decoding.targets import cached_target, fast_target, kv_cache
from decoding.targets import tensor_tables as shared_table
from decoding.targets.fast_target import FastTarget
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.targets.parallel.parallel_process import PLANTS, VOCAB, texts_of

MODULE = "tests.decoding.targets.parallel.parallel_process"
SECONDS = 600

pytestmark = pytest.mark.usefixtures("one_thread")


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
        patch.setattr(shared_table, "WORTH_SHARING", 3)
        return [json.loads(json.dumps(texts_of(FastTarget.load(folder)))) for folder in folders]


def started(size: int, *arguments: str) -> list["subprocess.Popen[str]"]:
    return started_with(size, ["-m", MODULE, *arguments])


def started_with(size: int, command: list[str]) -> list["subprocess.Popen[str]"]:
    """So many processes of Python, as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def texts_of_several(size: int, plant: str, folders: list[Path], out: Path) -> list[Any]:
    processes = started(size, plant, str(out), *map(str, folders))
    said = [process.communicate(timeout=SECONDS) for process in processes]
    assert [process.returncode for process in processes] == [0] * size, said
    return json.loads(out.read_text())  # type: ignore[no-any-return]


def test_two_processes_write_what_one_writes(folders: list[Path], texts_of_one: list[Any], tmp_path: Path) -> None:
    """Plain decoding, chains, trees, heads that read states and the LM head, and several texts at once."""
    found = texts_of_several(2, "none", folders, tmp_path / "texts")
    assert len(set(map(tuple, texts_of_one[0]["plain 0.0"]))) == 3, "the texts differ, so mixing them up would be seen"
    for texts, want in zip(found, texts_of_one, strict=True):
        assert texts.keys() == want.keys()
        for name in want:
            assert texts[name] == want[name], name


def test_more_processes_than_key_value_heads(folders: list[Path], texts_of_one: list[Any], tmp_path: Path) -> None:
    """Four processes, two key-value heads: two processes hold each."""
    assert texts_of_several(4, "none", folders[2:], tmp_path / "texts") == texts_of_one[2:]


@pytest.mark.parametrize("plant", [name for name in PLANTS if name != "none"])
def test_a_planted_bug_is_seen(plant: str, folders: list[Path], texts_of_one: list[Any], tmp_path: Path) -> None:
    assert texts_of_several(2, plant, folders[:1], tmp_path / "texts") != texts_of_one[:1]


def test_the_others_end_when_the_first_is_killed(folders: list[Path]) -> None:
    first, second = started(2, "none", "wait", str(folders[0]))
    assert first.stdout is not None and first.stdout.readline() == "loaded\n"
    assert second.poll() is None
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=SECONDS)
    out, said = second.communicate(timeout=20)
    assert (second.returncode, out) == (0, "") and "Traceback" not in said
