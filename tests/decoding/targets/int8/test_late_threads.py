"""A thread that comes when a forward is over finds nothing to do, and looks at nothing that may be gone by then."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu.processor import variant
from tests.decoding.models.tiny_models import tiny_checkpoint

LATE = """
import sys
from pathlib import Path
import numpy as np
from tests.decoding.targets.test_cpu_target import LONG, TREE, CpuTarget, fed

target = CpuTarget.load(Path(sys.argv[1]))
fed(target, LONG, TREE)
function, first, (model, _), ((job, _), sync) = target.model._team._job
gone = job.copy()
gone[gone > 2**20] = 0  # every address; to read there is a segmentation fault
before = sync.copy()
function(1, first, model, gone.ctypes.data)
done, taken, *own = (sync - before)[2:].reshape(2 + before[1], -1)
assert set(taken) == {0, 1}, "it has asked for work in every phase where anyone takes the next piece"
assert not done.any() and not np.any(own), "and has done none"
print("nothing touched")
"""


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
def test_a_late_thread_touches_nothing(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "llama")
    late = subprocess.run([sys.executable, "-c", LATE, str(folder)], capture_output=True, text=True)
    assert (late.returncode, late.stdout) == (0, "nothing touched\n"), late.stderr[-2000:]
