"""A `decoding.engine.target.Target` for int8 on a processor, on our own kernels.

Its sums have one order, whatever other rows are in the batch: texts are equal to the bit under every method, in every batch,
and with any prefix from the cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, count
from pathlib import Path

import numpy as np

from decoding.checkpoints.cache_folder import cache_root
from decoding.checkpoints.model_config import load_config
from decoding.engine.draft import ROOT, Draft
from decoding.engine.sampler import Floats, Sampler
from decoding.engine.target import Array, ForwardOutput, TokenSet
from decoding.targets import prefix_cache
from decoding.targets.cached_target import CACHE_BYTES, CachedTarget, Scored
from decoding.targets.int8.buffers import Keys, Pages, Part
from decoding.targets.int8.cpu_model import CpuModel, HeadRows
from decoding.targets.int8.mask_rows import KernelPairs
from decoding.targets.kv_cache import StateTable
from decoding.targets.prefix_cache import WORTH_PAGES, DiskPrefixCache, Entry
from kernels.cpu.job import PAGE

CpuSequence = prefix_cache.CachedSequence[Pages]
Chunk = prefix_cache.Chunk[Pages]


class CpuTarget(CachedTarget[Pages, Pages]):
    """A target whose sequences keep keys and values in pages, which those with the same beginning share."""

    def __init__(self, model: CpuModel, cache_bytes: int = CACHE_BYTES, kept: DiskPrefixCache | None = None) -> None:
        """kept: prompts of earlier processes, to which this one adds its own."""
        super().__init__(cache_bytes)
        self.model: CpuModel = model
        self._kept_prompts = kept

    @classmethod
    def load(cls, path: Path, cache_bytes: int = CACHE_BYTES) -> "CpuTarget":
        """From a checkpoint folder, packed anew. Raises ModelUnavailable, UnsupportedModel."""
        from decoding.checkpoints.weight_files import read_stored
        from decoding.targets.int8.packing import packed_model

        config = load_config(path)
        return cls(CpuModel(config, packed_model(config, read_stored(path))), cache_bytes)

    def open(self, prompt: Sequence[int], sampler: Sampler, taps: tuple[int, ...] = ()) -> CpuSequence:
        if self._kept_prompts and not taps:
            self._take(self._kept_prompts, prompt[:-1])
        return super().open(prompt, sampler, taps)

    def close(self, sequence: CpuSequence) -> None:
        kept = self._kept_prompts
        if kept:
            kept.write(sequence.tokens, sequence.cache.pages)
        super().close(sequence)

    def _take(self, kept: DiskPrefixCache, tokens: Sequence[int]) -> None:
        """Put what is kept of these tokens among the prefixes, unless as much is known."""
        _, known = self._longest(tokens, ()) or (None, 0)
        if len(tokens) - known >= WORTH_PAGES * PAGE and (pages := kept.read(tokens)):
            held, end = self.model.new_pages().of(pages), PAGE * len(pages)
            if end > known:
                no_states: StateTable[Floats] = StateTable(self.model.new_states(0))
                self._prefixes.add(Entry(tuple(tokens[:end]), (), (held, no_states), held.size_bytes))

    @property
    def weight_dtype(self) -> str:
        return "int8"

    @property
    def ahead(self) -> int:
        adapter = self.model.mask_adapter
        return adapter.ahead.tokens if adapter and adapter.ahead else 0

    @property
    def mask_pairs(self) -> KernelPairs | None:
        return self.model.mask_pairs

    @property
    def runtime(self) -> str:
        return "kernels"

    def _new_cache(self, source: Pages | None, count: int) -> Pages:
        return self.model.new_pages() if source is None else source.prefix(count)

    def _view(self, cache: Pages, count: int) -> Pages:
        return cache

    def _kept(self, cache: Pages, count: int) -> tuple[Pages, int]:
        return cache, cache.size_bytes

    def _run(self, chunks: Sequence[Chunk], taps: Sequence[int]) -> tuple[list[Scored], Array | None]:
        parts = [_part(chunk) for chunk in chunks]
        choices, head_rows, hidden = self.model.forward(parts, _keys(chunks), taps)
        asked, later = count(), count(len(choices))
        scored: list[Scored] = [
            _Scored(chunk, [next(later if masked else asked) for masked in _masked(chunk)], head_rows, choices)
            for chunk in chunks
            if chunk.is_last
        ]
        return scored, hidden


def kept_prompts(model: CpuModel, identity: str) -> DiskPrefixCache:
    """The prompts in the user's cache folder. identity: what changes with any of the model's numbers."""
    layout = model.new_pages().layout
    return DiskPrefixCache(cache_root() / "prompts", identity, PAGE, layout.shape, np.dtype(layout.dtype))


@dataclass(frozen=True, slots=True)
class _Scored:
    """What a forward says of a sequence. places: among the head rows, of the root and of each node."""

    chunk: Chunk
    places: Sequence[int]
    head_rows: HeadRows
    choices: Sequence[int]  # after the first of the head rows; after the others nobody has chosen yet

    def __call__(self, hidden: Array | None) -> ForwardOutput:
        nodes, ahead = len(self.chunk.draft), self._ahead if self.head_rows.model.ahead_heads else None
        return ForwardOutput(self._after, hidden, self._choice, nodes, self._among, self._log_prob, ahead)

    def _after(self, nodes: Sequence[int]) -> Floats:
        return self.head_rows.logits([self.places[1 + node] for node in nodes])

    def _among(self, nodes: Sequence[int], tokens: TokenSet) -> Floats:
        return self.head_rows.logits_of([self.places[1 + node] for node in nodes], tokens)

    def _ahead(self, asked: Sequence[tuple[int, int]], tokens: TokenSet | None) -> Floats:
        vocab, drafted = self.head_rows.model.config.vocab_size, self.chunk.draft.tokens
        heads = [(node != ROOT and drafted[node] >= vocab, count) for node, count in asked]
        return self.head_rows.logits_ahead([self.places[1 + node] for node, _ in asked], heads, tokens)

    def _log_prob(self, node: int) -> float | None:
        place = self.places[1 + node]
        if place >= len(self.choices) or self.chunk.sequence.sampler.temperature:
            return None
        return self.head_rows.largest_log_prob(place)

    def _choice(self, node: int) -> int:
        place = self.places[1 + node]
        if place < len(self.choices):
            return self.choices[place]
        (logits,) = self._after([node])
        return self.chunk.sequence.sampler.pick(logits, self.chunk.choice_positions[1 + node])


def _masked(chunk: Chunk) -> list[bool]:
    """Whether the choice after a row may wait until it is asked for; of the root and each node."""
    draft = chunk.draft
    return [False, *(token in draft.masks for token in draft.tokens)]


def _part(chunk: Chunk) -> Part:
    own = _own_rows(chunk.draft, len(chunk.pending))
    rows: tuple[list[int], list[int]] = ([], [])
    for row, masked in zip(chunk.head_rows(), _masked(chunk), strict=False):
        rows[masked].append(row)
    return Part(chunk.sequence.cache, chunk.before, chunk.tokens, own, *rows)


def _own_rows(draft: Draft, pending: int) -> list[list[int]] | None:
    """The rows of its chunk that each row sees: pending tokens those before them, a node all of them and its ancestors."""
    if draft.is_chain:
        return None
    own = [list(range(row + 1)) for row in range(pending)]
    for node, parent in enumerate(draft.parents):
        own.append([*own[pending - 1 if parent == ROOT else pending + parent], pending + node])
    return own


def _keys(chunks: Sequence[Chunk]) -> Keys:
    """Temperature, seed and position for each choice."""
    temperatures: list[float] = []
    seeds: list[int] = []
    positions: list[int] = []
    for chunk in chunks:
        if chunk.is_last:
            sampler, wanted = chunk.sequence.sampler, [not masked for masked in _masked(chunk)]
            positions += compress(chunk.choice_positions, wanted)
            temperatures += [sampler.temperature] * sum(wanted)
            seeds += [sampler.seed % (1 << 64)] * sum(wanted)
    return Keys(temperatures, seeds, positions)
