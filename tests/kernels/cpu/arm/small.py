"""Writes the small checkpoint and the packed head that `digests` reads: python -m tests.kernels.cpu.arm.small FOLDER.

Random weights. This needs torch, which the emulated processor has not.
"""

import json
import sys
from pathlib import Path

import numpy as np

from decoding.heads.on_kernels.packing import packed_head
from tests.decoding.heads.test_on_kernels import head_of
from tests.decoding.models.tiny_models import tiny_checkpoint


def main() -> None:
    folder = tiny_checkpoint(Path(sys.argv[1]), "qwen3", seed=3)
    weights = packed_head(head_of("domino", 64, skip_places=0))  # else numpy takes exponentials, with other last bits
    sizes = json.dumps({**weights.sizes, "hidden": weights.hidden}).encode()
    np.savez(folder / "domino.npz", sizes=np.frombuffer(sizes, np.uint8), **weights.arrays)


if __name__ == "__main__":
    main()
