"""Runs a peer in its own process: two runtimes in one process compete for the processors, and both appear ten times slower
than they are. `eval/speed/side_by_side/run.py` owns the process.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from decoding.checkpoints.adapter import Adapter

MODULES = {
    "transformers": "eval.speed.side_by_side.transformers_peer",
    "llama.cpp": "eval.speed.side_by_side.llama_cpp_peer",
}


@dataclass(frozen=True, slots=True)
class PeerModel:
    """The model with which a peer decodes."""

    checkpoint: Path  # folder in hub layout
    adapter: Adapter | None
    dtype: torch.dtype
    device: str
    stop_ids: frozenset[int]
    threads: int
    context: int  # tokens for which there must be room
    gguf: tuple[Path, ...] = ()  # the same weights for llama.cpp


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt to decode greedily, up to `limit` tokens. exact: do not end at a stop token before that."""

    peer: str
    prompt: tuple[int, ...]
    limit: int
    exact: bool = False


Peer = Callable[[Ask], tuple[list[int], float]]  # -> new tokens, milliseconds to the first


def serve(descriptor: int) -> None:
    """Load the peers of the module named first through the pipe, send their names, and answer until the other end closes."""
    pipe = Connection(descriptor)
    kind, model = pickle.loads(pipe.recv())
    torch.set_num_threads(model.threads)
    peers: dict[str, Peer] = import_module(MODULES[kind]).load(model)
    pipe.send(tuple(peers))
    while True:
        try:
            ask = pipe.recv()
        except EOFError:
            return
        pipe.send(peers[ask.peer](ask))
