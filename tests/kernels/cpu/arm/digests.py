"""What the int8 engine computes on the processor that this runs on, one line each: `check.sh` compares those of two processors.

Run as `python -m tests.kernels.cpu.arm.digests FOLDER TOKENS`. FOLDER: a small checkpoint, on which methods decode without a
trained head, without and with mask tokens, and beside it a Domino head's arrays (`small`). Then the embedded model reads a
prompt of so many tokens with a tree, and writes as many, also with its mask tokens. Imports neither torch nor pytest, so that
it runs where neither is.
"""

import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

from decoding.checkpoints.bigrams import FITTED, TokenPairs
from decoding.checkpoints.mask_adapter import Ahead, MaskAdapter
from decoding.checkpoints.model_config import ModelConfig, load_config
from decoding.checkpoints.weight_files import read_stored, weight_files
from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.method import Context, LookupCorpus
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.heads.on_kernels.block import KernelPaths
from decoding.heads.on_kernels.weights import HeadWeights
from decoding.methods.registry import load_method
from decoding.targets.int8.buffers import address
from decoding.targets.int8.compiled import compiled
from decoding.targets.int8.cpu_target import CpuModel, CpuTarget
from decoding.targets.int8.packing import packed_model
from kernels.cpu.job import aligned_copy
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
) -> tuple[list[int], str]:
    """The text, and of all drafts a digest."""
    rounds = list(decode(target, [Request(prompt, load_method(name, **options), new, sampler)]))
    drafts = [token for each in rounds for token in each.draft_tokens]
    return [token for each in rounds for token in each.committed], digest(np.array(drafts, np.int64))


def small(folder: Path) -> None:
    config = load_config(folder)
    arrays = packed_model(config, read_stored(folder))
    say("packed", {name: digest(array) for name, array in arrays.items()})
    target = CpuTarget(CpuModel(config, arrays), cache_bytes=0)
    for count in (1, 3, len(PROMPT)):
        say("logits after", count, logits(target, PROMPT[:count]))
    for heat in (0.0, 0.8):
        for name, options in METHODS.items():
            say(name, "at", heat, text(target, PROMPT, name, 16, Sampler(heat, 7), **options)[0])
    masked = CpuTarget(CpuModel(config, arrays, masks=random_masks(config)), cache_bytes=0)
    for heat in (0.0, 0.8):
        say("masks at", heat, *text(masked, PROMPT, "mask_tokens", 16, Sampler(heat, 7), copies=0))
    domino(folder / "domino.npz")


def random_masks(config: ModelConfig) -> MaskAdapter:
    """With heads for a token after a mask's own, and scores of pairs: so that every kernel for masks is called."""
    chance = np.random.default_rng(0)
    shapes = [(3, config.hidden_size), *[(config.layers, 5, config.hidden_size)] * 2]
    embeddings, down, up = (chance.standard_normal(shape, dtype=np.float32) for shape in shapes)
    before, after = chance.standard_normal((2, 40, 6), dtype=np.float32)
    ahead = Ahead(*(0.3 * chance.standard_normal((2, 2, 1, 70, config.hidden_size), dtype=np.float32)))
    return MaskAdapter(embeddings, down, up, TokenPairs(np.arange(5, 45), before, after, FITTED), ahead=ahead)


def domino(file: Path) -> None:
    """States, guesses, and their corrections along paths, of the head that `small` has written."""
    with np.load(file, allow_pickle=False) as stored:
        arrays = {name: aligned_copy(stored[name]) for name in stored.files}
    sizes, chance = json.loads(arrays.pop("sizes").tobytes()), np.random.default_rng(1)
    matrix = chance.standard_normal((90, sizes["hidden"]), dtype=np.float32) / np.float32(4)
    context = Context(Sampler(0.7, 5), matrix, matrix, LookupCorpus(), runtime="kernels")
    head = KernelPaths(HeadWeights.of(sizes["hidden"], sizes, arrays), context, (), PROMPT[:0])
    prompt = [token % 90 for token in PROMPT]
    head.append(chance.standard_normal((len(prompt), 2, sizes["hidden"]), dtype=np.float32))
    states = head.states([7], 5)
    (guesses,) = head.best_of([(head, states, len(prompt) + 1, 8)])
    paths = head.expansion(states, [*prompt, 7], 8)
    rows, size = states.shape
    x = chance.standard_normal((rows, 4 * size), dtype=np.float32)
    matrices = chance.standard_normal((4, size, size), dtype=np.float32)
    products = np.empty((rows, 4, size), np.float32)
    parts_times = compiled("weighted_sums:parts_times")
    parts_times(address(x), x.strides[0], rows, address(matrices), 4, size, size, address(products))
    found = [
        states,
        products,
        *guesses,
        *paths(0, (), (0,)),
        *paths(1, (3, 9, 4), (0, 0, 0)),
        *paths(2, (8, 8), (2, 0)),
    ]
    say("domino", *map(digest, found))


def embedded(count: int) -> None:
    from decoding.checkpoints.adapter import merged_arrays  # here, since they take long to import in an emulator
    from decoding.checkpoints.cache_folder import silent
    from decoding.checkpoints.catalog import chosen_adapter, chosen_masks, resolve
    from decoding.targets.int8.packed_model import kept_packed
    from decoding.tokenizer import Tokenizer

    path = resolve("embedded", silent)
    config, adapter = load_config(path), chosen_adapter("embedded", path, "auto", False)
    files = (*weight_files(path), *(adapter.files if adapter else ()))
    arrays = kept_packed(files, lambda: packed_model(config, merged_arrays(read_stored(path), adapter)))
    model = CpuModel(config, arrays, masks=chosen_masks("embedded", adapter))
    target, tokenizer = CpuTarget(model, cache_bytes=0), Tokenizer(path)
    prompt = tuple(tokenizer.encode(EMBEDDED_PROMPT))[-count:]
    say("embedded", logits(target, prompt))
    for name, options in {"plain": {}, "mask_tokens": {"copies": 0}}.items():
        written, drafts = text(target, prompt, name, count, Sampler(), **options)
        say("embedded", name, repr(tokenizer.decode(written)), drafts)


def main() -> None:
    folder, count = sys.argv[1:]
    print(f"{platform.machine()}, {variant()}", file=sys.stderr, flush=True)
    small(Path(folder))
    if int(count):
        embedded(int(count))


if __name__ == "__main__":
    main()
