"""One of several processes, in a module that a fresh interpreter imports quickly; and the texts that one process writes, too.

    python -m tests.decoding.targets.parallel.parallel_process PLANT OUT FOLDER...

PLANT names a bug that is planted, see PLANTS, or is "none". Texts of the checkpoints go to the file OUT.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from decoding.engine.draft import ROOT, Draft
from decoding.engine.loop import Request, decode
from decoding.engine.method import Method
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget
from decoding.methods.registry import load_method
from decoding.serving import processes
from decoding.targets import cached_target, fast_target, llama_model
from decoding.targets import prefix_cache as kv_cache
from decoding.targets.parallel import Group, Leader
from tests.decoding.models.doubles import Blank, Fuzz
from tests.decoding.models.random_heads import ready_method

VOCAB, LENGTH = 321, 16
PROMPTS = [[(7 * i + shift) % VOCAB for i in range(length)] for length, shift in ((30, 1), (20, 1), (45, 3))]
METHODS = ("jacobi_forcing", "path_tree", "eagle3")


class Crooked(Blank):
    """Trees with the right tokens of a known text, each behind a wrong sibling, so that every accepted row must move."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text = list(text)

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        right = self._text[len(tokens) :][: min(4, room)]
        nodes = [node for token in right for node in ((token + 1) % VOCAB, token)]
        parents = [ROOT if i < 2 else 2 * (i // 2) - 1 for i in range(len(nodes))]
        return Draft(tuple(nodes), tuple(parents))


def texts_of(target: AnyTarget) -> dict[str, list[list[int]]]:
    """Texts by method: of one prompt after another, which find parts of each other, and of all at once."""
    found = {}
    for sampler, methods in ((Sampler(), METHODS), (Sampler(0.8, 1), ())):
        plain = [_text(target, load_method("plain"), prompt, sampler) for prompt in PROMPTS]
        found[f"plain {sampler.temperature}"] = plain
        for name in methods:
            method = ready_method(name, target)
            found[f"{name} {sampler.temperature}"] = [_text(target, method, prompt, sampler) for prompt in PROMPTS]
        for name, trees in {"fuzz": [Fuzz(seed, VOCAB) for seed in range(3)], "crooked": _crooked(plain)}.items():
            requests = [
                Request(tuple(prompt), method, LENGTH, sampler) for prompt, method in zip(PROMPTS, trees, strict=True)
            ]
            together: list[list[int]] = [[] for _ in requests]
            for each in decode(target, requests):
                together[each.sequence] += each.committed
            found[f"{name} {sampler.temperature}"] = together
    return found


def _crooked(texts: Sequence[Sequence[int]]) -> list[Method]:
    return [Crooked([*prompt, *text]) for prompt, text in zip(PROMPTS, texts, strict=True)]


def _text(target: AnyTarget, method: Method, prompt: Sequence[int], sampler: Sampler) -> list[int]:
    request = Request(tuple(prompt), method, LENGTH, sampler)
    return [token for each in decode(target, [request]) for token in each.committed]


def small_steps() -> None:
    """Buffers grow, and prompts go in several forwards, also in tests of few tokens."""
    kv_cache._SMALLEST, fast_target.CHUNK_ROWS, cached_target.FORWARD_ROWS = 8, 8, 20
    llama_model.WORTH_SHARING = 3


def _note_but(kind: str) -> Callable[..., None]:
    note = Leader.note
    return lambda self, *change: None if change[0] == kind else note(self, *change)


PLANTS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "no sum": lambda: setattr(Group, "add_up", lambda self, x: x),
    "moves untold": lambda: setattr(Leader, "note", _note_but("compact")),
}


def main(plant: str, out: str, *folders: str) -> None:
    """OUT "wait": load, say so on stdout, and wait to be killed."""
    from decoding.serving.parts import parallel_target

    torch.set_num_threads(1)
    small_steps()
    PLANTS[plant]()
    with ExitStack() as end:
        if not processes.join(end.callback):
            return
        leader = processes.leader_here()
        assert leader is not None
        targets = [parallel_target(leader, Path(each), "fp32", "cpu", None, 1 << 20) for each in folders]
        if out == "wait":
            print("loaded", flush=True)
            time.sleep(600)
        Path(out).write_text(json.dumps([texts_of(target) for target in targets]))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # without the interpreter's own shutdown, which torch's threads have been seen to abort now and then
