"""What the int8 engine computes on the processor that this runs on, one line each: `check.sh` compares those of two processors.

Run as `python -m tests.kernels.cpu.arm.digests FOLDER TOKENS`. FOLDER: a small checkpoint, on which every method without a head
decodes; then the embedded model reads a prompt of so many tokens with a tree, and writes as many. Imports neither torch nor
pytest, so that it runs where neither is.
"""

import hashlib
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_stored, weight_files
from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.methods.registry import load_method
from decoding.targets.int8.cpu_target import CpuModel, CpuTarget
from decoding.targets.int8.packing import packed_model
from kernels.cpu.processor import variant

TREE = Draft((5, 6, 7, 8, 9, 6, 11), (-1, 0, 1, -1, 3, 3, 5))
METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "prompt_lookup": {},
    "lookahead": {},
    "jacobi_forcing": {"remask": False},
    "adaptive": {"head": "none"},
}
PROMPT = tuple((7 * place * place + 3 * place) % 290 + 4 for place in range(12)) * 2
EMBEDDED_PROMPT = "CREATE TABLE singer (id INTEGER, name TEXT, country TEXT)\nHow many singers are there?\nSQL: SELECT"


def say(*words: object) -> None:
    print(*words, flush=True)


def digest(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def logits(target: CpuTarget, tokens: tuple[int, ...]) -> str:
    """Of a prompt and a tree after it, in one forward."""
    sequence = target.open(tokens, Sampler())
    (scores,) = target.score([ForwardInput(sequence, tokens, TREE)])
    found = np.asarray(scores.after(range(-1, len(TREE))))
    target.close(sequence)
    return f"{digest(found)} {found.argmax(1).tolist()}"


def text(
    target: CpuTarget, prompt: tuple[int, ...], name: str, new: int, sampler: Sampler, **options: Any
) -> list[int]:
    rounds = decode(target, [Request(prompt, load_method(name, **options), new, sampler)])
    return [token for each in rounds for token in each.committed]


def small(folder: Path) -> None:
    config = load_config(folder)
    arrays = packed_model(config, read_stored(folder))
    say("packed", {name: digest(array) for name, array in arrays.items()})
    target = CpuTarget(CpuModel(config, arrays), cache_bytes=0)
    for count in (1, 3, len(PROMPT)):
        say("logits after", count, logits(target, PROMPT[:count]))
    for heat in (0.0, 0.8):
        for name, options in METHODS.items():
            say(name, "at", heat, text(target, PROMPT, name, 16, Sampler(heat, 7), **options))


def embedded(count: int) -> None:
    from decoding.checkpoints.adapter import merged_arrays  # here, since they take long to import in an emulator
    from decoding.checkpoints.cache_folder import silent
    from decoding.checkpoints.catalog import chosen_adapter, resolve
    from decoding.targets.int8.packed_model import kept_packed
    from decoding.tokenizer import Tokenizer

    path = resolve("embedded", silent)
    config, adapter = load_config(path), chosen_adapter("embedded", path, "auto", False)
    files = (*weight_files(path), *(adapter.files if adapter else ()))
    arrays = kept_packed(files, lambda: packed_model(config, merged_arrays(read_stored(path), adapter)))
    target, tokenizer = CpuTarget(CpuModel(config, arrays), cache_bytes=0), Tokenizer(path)
    prompt = tuple(tokenizer.encode(EMBEDDED_PROMPT))[-count:]
    say("embedded", logits(target, prompt))
    say("embedded", repr(tokenizer.decode(text(target, prompt, "plain", count, Sampler()))))


def main() -> None:
    folder, count = sys.argv[1:]
    print(f"{platform.machine()}, {variant()}", file=sys.stderr, flush=True)
    small(Path(folder))
    if int(count):
        embedded(int(count))


if __name__ == "__main__":
    main()
