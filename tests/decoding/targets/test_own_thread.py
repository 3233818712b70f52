"""Loading leaves no thread behind that computes in parallel: its sleeping workers would slow every later step by half."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from decoding.targets.own_thread import in_own_thread
from tests.decoding.models.tiny_models import tiny_checkpoint

COUNT = """
import os, sys, time, torch
from decoding.serving.load import load_text_decoder
from decoding.heads.head import find_head
threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
load_text_decoder(sys.argv[1], dtype=sys.argv[2], target="fast")
find_head("jetspec")
ends = time.monotonic() + 10
while threads() > before and time.monotonic() < ends:  # workers take a moment to end
    time.sleep(0.01)
after = threads()
torch.ones(1 << 20).mul_(2)  # the test can fail: this thread's own workers stay
print(before, after, threads())
"""


def test_it_gives_what_comes_or_raises_and_its_thread_ends() -> None:
    names = in_own_thread(lambda: [thread.name for thread in threading.enumerate()])
    assert any("apart" in name for name in names)
    assert not any("apart" in thread.name for thread in threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        in_own_thread(lambda: 1 // 0)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc counts the threads")
@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_loading_leaves_no_workers_of_the_main_thread(dtype: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, hidden_size=256, intermediate_size=512, vocab=2900)
    command = [sys.executable, "-c", COUNT, str(folder), dtype]
    out = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "2"}, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    before, after, with_workers = map(int, out.split())
    assert before == after < with_workers
