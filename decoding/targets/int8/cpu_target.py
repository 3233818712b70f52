"""A `decoding.engine.target.Target` for int8 on a processor: `cpu_model`'s forward and the memory of it.

Its sums have one order, whatever stands beside a row: texts are equal to the bit under every method, in every batch,
and with any prefix from the cache.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakSet

import torch
from torch import Tensor

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import ROOT, Draft
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import Scores, Work
from decoding.targets.fast_target import FORWARD_ROWS, batches
from decoding.targets.int8.buffers import Keys, Part
from decoding.targets.int8.cpu_model import CpuModel, HeadRows
from decoding.targets.int8.packed_model import packed_model
from decoding.targets.int8.pages import Pages
from decoding.targets.kv_cache import TokenTable
from decoding.targets.prefix_cache import Entry, PrefixCache, longest_prefix

_EMPTY = Draft()
_CACHE_BYTES = 1 << 30


@dataclass(slots=True, eq=False, weakref_slot=True)
class CpuSequence:
    """One open sequence: its cached tokens and what is remembered of them; then what the last `score` staged."""

    sampler: Sampler
    taps: tuple[int, ...]
    pages: Pages
    states: TokenTable  # hidden states, a plane per tap
    tokens: list[int] = field(default_factory=list)
    staged: tuple[list[int], Draft] | None = None

    @property
    def cached(self) -> int:
        return len(self.tokens)

    @property
    def hidden(self) -> Tensor | None:
        return self.states.data[:, : self.cached].transpose(0, 1) if self.taps else None


_Source = CpuSequence | Entry[tuple[Pages, Tensor]]


@dataclass(frozen=True, slots=True)
class _Fed:
    """Rows of one sequence in one forward: pending tokens, and in the last ones the draft below the last of them."""

    sequence: CpuSequence
    before: int
    pending: Sequence[int]
    draft: Draft = _EMPTY
    is_last: bool = True

    def __len__(self) -> int:
        return len(self.pending) + len(self.draft)

    def part(self) -> Part:
        root = len(self.pending) - 1
        heads = range(root, len(self)) if self.is_last else range(0)
        return Part(self.sequence.pages, self.before, [*self.pending, *self.draft.tokens], self._own(), heads)

    def _own(self) -> list[list[int]] | None:
        """Of each row the rows that it sees: pending tokens those before them, a node all of them and its ancestors."""
        if self.draft.is_chain:
            return None
        count = len(self.pending)
        own = [list(range(row + 1)) for row in range(count)]
        for node, parent in enumerate(self.draft.parents):
            own.append([*own[count - 1 if parent == ROOT else count + parent], count + node])
        return own


class CpuTarget:
    """A `decoding.engine.target.Target`.

    cache_bytes: memory for the prefixes of closed sequences; 0 keeps nothing.
    """

    def __init__(self, model: CpuModel, cache_bytes: int = _CACHE_BYTES) -> None:
        self.model = model
        self._prefixes = PrefixCache[tuple[Pages, Tensor]](cache_bytes)
        self._live: WeakSet[CpuSequence] = WeakSet()
        config = model.config
        self._max_length = min([config.max_positions, *(window for window in config.sliding_windows if window)])

    @classmethod
    def load(cls, path: Path, cache_bytes: int = _CACHE_BYTES) -> "CpuTarget":
        """From a checkpoint folder, packed anew. Raises ModelUnavailable, UnsupportedModel."""
        config = load_config(path)
        return cls(CpuModel(config, packed_model(config, read_weights(path))), cache_bytes)

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
        return torch.int8

    @property
    def runtime(self) -> str:
        return "kernels"

    @torch.inference_mode()
    def open(self, prompt: Sequence[int], sampler: Sampler, taps: tuple[int, ...] = ()) -> CpuSequence:
        if not all(0 <= tap <= self.model.config.layers for tap in taps):
            raise ValueError(f"taps must lie between 0 and {self.model.config.layers}, not {taps}")
        sources: list[_Source] = [*self._prefixes.entries, *self._live]
        found = longest_prefix(sources, prompt[:-1], taps)
        if found and isinstance(found[0], Entry):
            self._prefixes.used(found[0])
        return self._new(sampler, taps, *found or ())

    @torch.inference_mode()
    def score(self, work: Sequence[Work[CpuSequence]]) -> list[Scores]:
        fed = [rows for each in work for rows in self._staged(each)]
        return [scores for batch in batches(fed) for scores in self._forward(batch)]

    @torch.inference_mode()
    def commit(self, sequence: CpuSequence, path: Sequence[int]) -> None:
        if sequence.staged is None:
            raise RuntimeError("commit() without score()")
        pending, draft = sequence.staged
        start = sequence.cached + len(pending)
        for place, node in enumerate(path):
            if place != node:
                sequence.pages.move(start + node, start + place)
        sequence.states.compact(start, path)
        sequence.tokens += [*pending, *(draft.tokens[node] for node in path)]
        sequence.staged = None

    @torch.inference_mode()
    def fork(self, sequence: CpuSequence, sampler: Sampler) -> CpuSequence:
        if sequence.staged is not None:
            raise RuntimeError("fork() between score() and commit()")
        return self._new(sampler, sequence.taps, sequence, sequence.cached)

    @torch.inference_mode()
    def close(self, sequence: CpuSequence) -> None:
        if sequence not in self._live:
            return
        self._live.remove(sequence)
        if sequence.cached and not self._prefixes.covers(sequence.tokens, sequence.taps):
            states = sequence.states.data[:, : sequence.cached].clone()
            size = sequence.pages.size_bytes + states.nbytes
            self._prefixes.add(Entry(tuple(sequence.tokens), sequence.taps, (sequence.pages, states), size))

    def _new(
        self, sampler: Sampler, taps: tuple[int, ...], source: _Source | None = None, count: int = 0
    ) -> CpuSequence:
        """A sequence with nothing cached, or with the first `count` tokens of `source`."""
        shape = (self.model.config.hidden_size,)
        states = TokenTable(len(taps), shape, torch.float32, torch.device("cpu"))
        if source is None:
            sequence = CpuSequence(sampler, taps, self.model.new_pages(), states)
        else:
            pages, known = source.kept if isinstance(source, Entry) else (source.pages, source.states.data)
            states.copy_from(known[[source.taps.index(tap) for tap in taps], :count])
            sequence = CpuSequence(sampler, taps, pages.prefix(count), states, list(source.tokens[:count]))
        self._live.add(sequence)
        return sequence

    def _staged(self, work: Work[CpuSequence]) -> list[_Fed]:
        """Make room for what a sequence feeds, and cut it into forwards."""
        sequence, pending, draft = work
        cached, fed = sequence.cached, len(pending)
        self._check(sequence, cached + fed + max(draft.depths, default=0), fed)
        sequence.pages.reserve(cached + fed + len(draft))
        sequence.states.reserve(cached + fed + len(draft), cached)
        sequence.staged = list(pending), draft
        starts = range(0, fed, FORWARD_ROWS)
        *first, last = [(cached + i, pending[i : i + FORWARD_ROWS]) for i in starts]
        return [*(_Fed(sequence, *rows, is_last=False) for rows in first), _Fed(sequence, *last, draft)]

    def _check(self, sequence: CpuSequence, length: int, pending: int) -> None:
        if sequence not in self._live:
            raise ValueError("the sequence is closed")
        if not pending:
            raise ValueError("nothing is pending: the last committed token is never cached")
        if length > self.max_length:
            raise ValueError(f"{length} tokens, draft included, do not fit: the model takes {self.max_length}")

    def _forward(self, fed: Sequence[_Fed]) -> Iterator[Scores]:
        """Of the sequences whose last rows these are; keys, values and hidden states are staged behind what is there."""
        taps = sorted({tap for rows in fed for tap in rows.sequence.taps})
        choices, head_rows, hidden = self.model.forward([rows.part() for rows in fed], _keys(fed), taps)
        first = start = 0
        for rows in fed:
            states = None
            if hidden is not None and rows.sequence.taps:
                states = hidden[[taps.index(tap) for tap in rows.sequence.taps], start : start + len(rows)]
                rows.sequence.states.data[:, rows.before : rows.before + len(rows)] = states
            if rows.is_last:
                yield _scores(rows, head_rows, first, choices)
                first += 1 + len(rows.draft)
            start += len(rows)


def _keys(fed: Iterable[_Fed]) -> Keys:
    """By which the choices after the wanted rows are made."""
    temperatures: list[float] = []
    seeds: list[int] = []
    positions: list[int] = []
    for rows in fed:
        if rows.is_last:
            sampler, root = rows.sequence.sampler, rows.before + len(rows.pending)
            positions += [root, *(root + depth for depth in rows.draft.depths)]
            temperatures += [sampler.temperature] * (1 + len(rows.draft))
            seeds += [sampler.seed % (1 << 64)] * (1 + len(rows.draft))
    return Keys(temperatures, seeds, positions)


def _scores(rows: _Fed, head_rows: HeadRows, first: int, choices: Sequence[int]) -> Scores:
    sequence, end = rows.sequence, rows.before + len(rows)
    states = sequence.states.data[:, sequence.cached : end].transpose(0, 1).clone() if sequence.taps else None
    root = first + 1
    return Scores(
        lambda nodes: head_rows.logits([root + node for node in nodes]),
        states,
        lambda node: choices[root + node],
        len(rows.draft),
    )
