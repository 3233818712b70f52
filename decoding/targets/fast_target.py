"""Our own `decoding.engine.target.Target` for the Llama, Qwen2 and Qwen3 families: `fast_model`'s forward and the memory of it.

Equal to `hf_target` within rounding. In fp32, logits differ by less than 2e-5 on the tiny models of the tests (they reach
8 there) and by less than 3e-4 on the embedded model (40); in bf16 they are as near to fp32 as transformers' own.
"""

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import ROOT, Draft
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import Scores, Work
from decoding.targets.fast_model import FastModel
from decoding.targets.kv_cache import TokenTable
from decoding.targets.llama_model import LlamaModel
from decoding.targets.prefix_cache import Entry, PrefixCache, longest_prefix
from kernels.ragged import SequenceRows

CHUNK_ROWS = 128  # attention goes chunk by chunk, so a prompt's first rows do not meet the keys of its last ones
FORWARD_ROWS = 512  # more go in several forwards, which bounds their memory
_EMPTY = Draft()
Rows = TypeVar("Rows", bound=Sized)
_CACHE_BYTES = 1 << 30


@dataclass(slots=True, eq=False, weakref_slot=True)
class FastSequence:
    """One open sequence: its cached tokens and what is remembered of them; then what the last `score` staged."""

    sampler: Sampler
    taps: tuple[int, ...]
    table: TokenTable  # keys and values, a plane per layer
    states: TokenTable  # hidden states, a plane per tap
    tokens: list[int] = field(default_factory=list)
    staged: tuple[list[int], Draft] | None = None

    @property
    def cached(self) -> int:
        return len(self.tokens)

    @property
    def hidden(self) -> Tensor | None:
        return self.states.data[:, : self.cached].transpose(0, 1) if self.taps else None


_Source = FastSequence | Entry[tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one sequence in one forward: pending tokens, and in the last chunk the draft below the last of them."""

    sequence: FastSequence
    before: int  # rows of the sequence that go before
    pending: Sequence[int]
    draft: Draft = _EMPTY
    is_last: bool = False

    def __len__(self) -> int:
        return len(self.pending) + len(self.draft)

    def rows(self) -> SequenceRows:
        """As a forward takes them."""
        tokens = [*self.pending, *self.draft.tokens]
        return SequenceRows(self.sequence.table.data, self.before, tokens, self.positions(), self.seen())

    def positions(self) -> list[int]:
        """In the text: a node counts from the root by its depth, and siblings share a position."""
        root = self.before + len(self.pending) - 1
        return [*range(self.before, root + 1), *(root + depth for depth in self.draft.depths)]

    def head_rows(self, stop: int) -> range:
        """Rows of the forward whose logits are wanted when the chunk ends at row `stop`: root and nodes."""
        return range(stop - len(self.draft) - 1 if self.is_last else stop, stop)

    def seen(self) -> Tensor | None:
        """[rows, rows] which of the chunk's rows each of them sees; None where that is all up to itself.

        Pending tokens see those before them; a node sees them all, its ancestors and itself.
        """
        if self.draft.is_chain:
            return None
        count, seen = len(self.pending), np.tri(len(self), dtype=bool)
        for node, parent in enumerate(self.draft.parents):
            row = count + node
            seen[row, count:] = seen[count + parent, count:] if parent != ROOT else False
            seen[row, row] = True
        return torch.from_numpy(seen)


class FastTarget:
    """A `decoding.engine.target.Target`.

    cache_bytes: memory for the prefixes of closed sequences, and a quarter more for their buffers; 0 keeps nothing.
    """

    def __init__(self, model: LlamaModel, cache_bytes: int = _CACHE_BYTES) -> None:
        self.model = model
        self._prefixes = PrefixCache[tuple[Tensor, Tensor]](cache_bytes)
        self._live: WeakSet[FastSequence] = WeakSet()
        self._idle: list[TokenTable] = []  # buffers of closed sequences that wait for new ones
        self._idle_bytes = cache_bytes // 4
        config = model.config
        self._max_length = min([config.max_positions, *(window for window in config.sliding_windows if window)])

    @classmethod
    def load(
        cls,
        path: Path,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        cache_bytes: int = _CACHE_BYTES,
    ) -> "FastTarget":
        """From a checkpoint folder. Raises ModelUnavailable, UnsupportedModel."""
        return cls(FastModel(load_config(path), read_weights(path), dtype, device), cache_bytes)

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @property
    def max_length(self) -> int:
        return self._max_length

    @property
    def embedding(self) -> Tensor:
        return self.model.embedding

    @property
    def lm_head(self) -> Tensor:
        return self.model.lm_head

    @property
    def weight_dtype(self) -> torch.dtype:
        return self.model.weight_dtype

    @property
    def runtime(self) -> str:
        return self.lm_head.device.type

    @torch.inference_mode()
    def open(self, prompt: Sequence[int], sampler: Sampler, taps: tuple[int, ...] = ()) -> FastSequence:
        if not all(0 <= tap <= self.model.config.layers for tap in taps):
            raise ValueError(f"taps must lie between 0 and {self.model.config.layers}, not {taps}")
        sources: list[_Source] = [*self._prefixes.entries, *self._live]
        found = longest_prefix(sources, prompt[:-1], taps)
        if found and isinstance(found[0], Entry):
            self._prefixes.used(found[0])
        return self._new(sampler, taps, *found or ())

    @torch.inference_mode()
    def score(self, work: Sequence[Work[FastSequence]]) -> list[Scores]:
        chunks = [chunk for each in work for chunk in self._staged(each)]
        logits = [one for batch in batches(chunks) for one in self._forward(batch)]
        return [_scores(chunk, one) for chunk, one in zip((p for p in chunks if p.is_last), logits, strict=True)]

    @torch.inference_mode()
    def commit(self, sequence: FastSequence, path: Sequence[int]) -> None:
        if sequence.staged is None:
            raise RuntimeError("commit() without score()")
        pending, draft = sequence.staged
        for table in (sequence.table, sequence.states):
            table.compact(sequence.cached + len(pending), path)
        sequence.tokens += [*pending, *(draft.tokens[node] for node in path)]
        sequence.staged = None

    @torch.inference_mode()
    def fork(self, sequence: FastSequence, sampler: Sampler) -> FastSequence:
        if sequence.staged is not None:
            raise RuntimeError("fork() between score() and commit()")
        return self._new(sampler, sequence.taps, sequence, sequence.cached)

    @torch.inference_mode()
    def close(self, sequence: FastSequence) -> None:
        if sequence not in self._live:
            return
        self._live.remove(sequence)
        if sequence.cached and not self._prefixes.covers(sequence.tokens, sequence.taps):
            kept = _prefix_of(sequence, sequence.cached)
            copies = kept[0].clone(), kept[1].clone()
            size = copies[0].nbytes + copies[1].nbytes
            self._prefixes.add(Entry(tuple(sequence.tokens), sequence.taps, copies, size))
        if sum(table.data.nbytes for table in (*self._idle, sequence.table)) <= self._idle_bytes:
            self._idle.append(sequence.table)

    def _new(
        self, sampler: Sampler, taps: tuple[int, ...], source: _Source | None = None, count: int = 0
    ) -> FastSequence:
        """A sequence with nothing cached, or with copies of the first `count` tokens of `source`."""
        table = self._idle.pop() if self._idle else self.model.new_table()
        sequence = FastSequence(sampler, taps, table, self.model.new_states(len(taps)))
        if source is not None:
            keys_values, states = _prefix_of(source, count)
            table.copy_from(keys_values)
            sequence.states.copy_from(states[[source.taps.index(tap) for tap in taps]])
            sequence.tokens += source.tokens[:count]
        self._live.add(sequence)
        return sequence

    def _staged(self, work: Work[FastSequence]) -> list[Chunk]:
        """Make room for what a sequence feeds, and cut it into chunks."""
        sequence, pending, draft = work
        cached, fed = sequence.cached, len(pending)
        self._check(sequence, cached + fed + max(draft.depths, default=0), fed)
        for table in (sequence.table, sequence.states):
            table.reserve(cached + fed + len(draft), cached)
        sequence.staged = list(pending), draft
        starts = range(0, fed, CHUNK_ROWS)
        *first, last = [Chunk(sequence, cached + i, pending[i : i + CHUNK_ROWS]) for i in starts]
        return [*first, replace(last, draft=draft, is_last=True)]

    def _check(self, sequence: FastSequence, length: int, pending: int) -> None:
        if sequence not in self._live:
            raise ValueError("the sequence is closed")
        if not pending:
            raise ValueError("nothing is pending: the last committed token is never cached")
        if length > self.max_length:
            raise ValueError(f"{length} tokens, draft included, do not fit: the model takes {self.max_length}")

    def _forward(self, chunks: Sequence[Chunk]) -> Sequence[Tensor]:
        """Logits [1 + nodes, vocab] per last chunk; keys, values and hidden states are staged behind what is there."""
        starts = list(accumulate(map(len, chunks), initial=0))
        heads = [row for chunk, stop in zip(chunks, starts[1:], strict=True) for row in chunk.head_rows(stop)]
        taps = sorted({tap for chunk in chunks for tap in chunk.sequence.taps})
        logits, hidden = self.model.forward([chunk.rows() for chunk in chunks], taps, heads)
        if hidden is not None:
            for chunk, ends in zip(chunks, pairwise(starts), strict=True):
                planes = [taps.index(tap) for tap in chunk.sequence.taps]
                chunk.sequence.states.data[:, chunk.before : chunk.before + len(chunk)] = hidden[planes, slice(*ends)]
        return torch.split(logits, [1 + len(chunk.draft) for chunk in chunks if chunk.is_last])


def _prefix_of(source: _Source, count: int) -> tuple[Tensor, Tensor]:
    """Keys and values [planes, count, head_dim] and hidden states [taps, count, hidden] of its first tokens."""
    if isinstance(source, FastSequence):
        return source.table.data[:, :count], source.states.data[:, :count]
    keys_values, states = source.kept
    return keys_values[:, :count], states[:, :count]


def batches(chunks: Iterable[Rows]) -> Iterator[list[Rows]]:
    """Chunks in order, as many at a time as a forward takes; a chunk's length is its rows."""
    batch: list[Rows] = []
    for chunk in chunks:
        if batch and sum(map(len, batch)) + len(chunk) > FORWARD_ROWS:
            yield batch
            batch = []
        batch.append(chunk)
    if batch:
        yield batch


def _scores(chunk: Chunk, logits: Tensor) -> Scores:
    sequence, draft = chunk.sequence, chunk.draft
    root = chunk.before + len(chunk.pending)  # position of the token that the root predicts
    choose = sequence.sampler.chooser(logits, lambda row: root + draft.depth(row - 1))
    states = sequence.states.data[:, sequence.cached : root + len(draft)].transpose(0, 1)
    return Scores.of(logits, states.clone() if sequence.taps else None, lambda node: choose(node + 1))
