"""Our own `decoding.engine.target.Target` for the Llama, Qwen2 and Qwen3 families, on torch's operators or on a GPU.

Equal to `hf_target` within rounding. In fp32, logits differ by less than 2e-5 on the tiny models of the tests (they reach
8 there) and by less than 3e-4 on the embedded model (40); in bf16 they are as near to fp32 as transformers' own.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import ROOT, Draft
from decoding.engine.sampling.tensor_choice import chooser, chosen_together
from decoding.engine.sampling.tensor_scores import dtype_name, scores_of
from decoding.engine.target import Array, Scores
from decoding.targets.cache import cached_sequence
from decoding.targets.cache.cached_target import CACHE_BYTES, CachedTarget, Scored
from decoding.targets.cache.shared_table import SharedTable
from decoding.targets.cache.tensor_table import TensorTable
from decoding.targets.fast_model import FastModel
from decoding.targets.llama_model import LlamaModel
from kernels.ragged import SequenceRows

CHUNK_ROWS = 128  # attention goes chunk by chunk, so a prompt's first rows do not meet the keys of its last ones
FastSequence = cached_sequence.CachedSequence[SharedTable]
Chunk = cached_sequence.Chunk[SharedTable]


class FastTarget(CachedTarget[SharedTable, SharedTable]):
    """A target whose sequences each have a table of keys and values, a plane per layer, whose first rows they may share.

    cache_bytes: memory for the prefixes of closed sequences, and a quarter more for their buffers; 0 keeps nothing.
    """

    mode = torch.inference_mode

    def __init__(self, model: LlamaModel, cache_bytes: int = CACHE_BYTES) -> None:
        super().__init__(cache_bytes)
        self.model: LlamaModel = model
        self._idle: list[TensorTable] = []  # buffers of closed sequences that wait for new ones
        self._idle_bytes = cache_bytes // 4

    @classmethod
    def load(
        cls,
        path: Path,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        cache_bytes: int = CACHE_BYTES,
    ) -> "FastTarget":
        """From a checkpoint folder. Raises ModelUnavailable, UnsupportedModel."""
        return cls(FastModel(load_config(path), read_weights(path), dtype, device), cache_bytes)

    @property
    def weight_dtype(self) -> str:
        return "stored" if self.model.is_packed else dtype_name(self.model.weight_dtype)

    @property
    def runtime(self) -> str:
        return self.model.device.type

    @property
    def _chunk_rows(self) -> int:
        return self.model.forward_rows or CHUNK_ROWS

    @property
    def _forward_rows(self) -> int:
        return self.model.forward_rows or super()._forward_rows

    def _new_cache(self, source: SharedTable | None, count: int) -> SharedTable:
        own = self._idle.pop() if self._idle else self.model.new_table()
        return SharedTable(own) if source is None else source.begin(count, own)

    def _view(self, cache: SharedTable, count: int) -> SharedTable:
        return cache

    def _kept(self, cache: SharedTable, count: int) -> tuple[SharedTable, int]:
        kept = cache.kept(count)
        return kept, kept.nbytes

    def _released(self, cache: SharedTable) -> None:
        if cache.is_lent:  # its rows stay as they are for those who read them
            return
        if sum(table.data.nbytes for table in (*self._idle, cache.own)) <= self._idle_bytes:
            self._idle.append(cache.own)

    def _run(self, chunks: Sequence[Chunk], taps: Sequence[int]) -> tuple[list[Scored], Tensor | None]:
        logits, hidden = self.model.forward([sequence_rows(chunk) for chunk in chunks], taps, head_rows(chunks))
        last = [chunk for chunk in chunks if chunk.is_last]
        choosers = self._choosers(last, logits) if last else ()
        parts = torch.split(logits, [1 + len(chunk.draft) for chunk in last])
        return [partial(_scores, *each) for each in zip(parts, choosers, strict=True)], hidden

    def _choosers(self, last: Sequence[Chunk], logits: Tensor) -> Sequence[Callable[[int], int]]:
        """The choice after every row of each sequence."""
        samplers, positions = [chunk.sequence.sampler for chunk in last], [chunk.choice_positions for chunk in last]
        if self.model.chooses_together:
            return [each.__getitem__ for each in chosen_together(samplers, logits, positions)]
        parts = torch.split(logits, [len(places) for places in positions])
        each_one = zip(samplers, parts, positions, strict=True)
        return [chooser(sampler, part, places.__getitem__) for sampler, part, places in each_one]


def _scores(logits: Tensor, choose: Callable[[int], int], hidden: Array | None) -> Scores:
    return scores_of(logits, hidden, choose)


def head_rows(chunks: Sequence[Chunk]) -> list[int]:
    """Rows of a forward of these chunks whose logits are wanted."""
    starts = accumulate(map(len, chunks), initial=0)
    return [start + row for chunk, start in zip(chunks, starts, strict=False) for row in chunk.head_rows()]


def sequence_rows(chunk: Chunk) -> SequenceRows:
    """A chunk as a forward takes it."""
    cache, seen = chunk.sequence.cache, seen_rows(chunk.draft, len(chunk.pending))
    return SequenceRows(cache.own.data, chunk.before, chunk.tokens, row_positions(chunk), seen, cache.prefix)


def row_positions(chunk: Chunk) -> list[int]:
    """Positions in the text: a node counts from the root by its depth, and siblings share a position."""
    root = chunk.before + len(chunk.pending) - 1
    return [*range(chunk.before, root + 1), *(root + depth for depth in chunk.draft.depths)]


def seen_rows(draft: Draft, pending: int) -> Tensor | None:
    """[rows, rows] which of a chunk's rows each of them sees; None where that is all up to itself.

    Pending tokens see those before them; a node sees them all, its ancestors and itself.
    """
    if draft.is_chain:
        return None
    seen = np.tri(pending + len(draft), dtype=bool)
    for node, parent in enumerate(draft.parents):
        row = pending + node
        seen[row, pending:] = seen[pending + parent, pending:] if parent != ROOT else False
        seen[row, row] = True
    return torch.from_numpy(seen)
