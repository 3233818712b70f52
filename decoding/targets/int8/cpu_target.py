"""A `decoding.engine.target.Target` for int8 on a processor, on our own kernels.

Its sums have one order, whatever other rows are in the batch: texts are equal to the bit under every method, in every batch,
and with any prefix from the cache.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

from decoding.checkpoints.model_config import load_config
from decoding.engine.draft import ROOT, Draft
from decoding.engine.target import Array, Scores
from decoding.targets.cache import cached_target
from decoding.targets.cache.cached_target import CachedSequence, CachedTarget, Scored
from decoding.targets.int8.buffers import Keys, Part
from decoding.targets.int8.cpu_model import CpuModel, HeadRows
from decoding.targets.int8.pages import Pages

CpuSequence = CachedSequence[Pages]
Chunk = cached_target.Chunk[Pages]


class CpuTarget(CachedTarget[Pages, Pages]):
    """A target whose sequences keep keys and values in pages, which those with the same beginning share."""

    def __init__(self, model: CpuModel, cache_bytes: int = cached_target.CACHE_BYTES) -> None:
        super().__init__(cache_bytes)
        self.model: CpuModel = model

    @classmethod
    def load(cls, path: Path, cache_bytes: int = cached_target.CACHE_BYTES) -> "CpuTarget":
        """From a checkpoint folder, packed anew. Raises ModelUnavailable, UnsupportedModel."""
        from decoding.checkpoints.weight_files import read_weights
        from decoding.targets.int8.packing import packed_model

        config = load_config(path)
        return cls(CpuModel(config, packed_model(config, read_weights(path))), cache_bytes)

    @property
    def weight_dtype(self) -> str:
        return "int8"

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
        choices, head_rows, hidden = self.model.forward([_part(chunk) for chunk in chunks], _keys(chunks), taps)
        last = [chunk for chunk in chunks if chunk.is_last]
        roots = accumulate((1 + len(chunk.draft) for chunk in last), initial=1)
        scored: list[Scored] = [
            partial(_scores, len(chunk.draft), root, head_rows, choices)
            for chunk, root in zip(last, roots, strict=False)
        ]
        return scored, hidden


def _scores(nodes: int, root: int, head_rows: HeadRows, choices: Sequence[int], hidden: Array | None) -> Scores:
    """root: the wanted row of node 0; that of ROOT, which is -1, stands before it."""
    return Scores(
        lambda wanted: head_rows.logits([root + node for node in wanted]),
        hidden,
        lambda node: choices[root + node],
        nodes,
    )


def _part(chunk: Chunk) -> Part:
    own = _own_rows(chunk.draft, len(chunk.pending))
    return Part(chunk.sequence.cache, chunk.before, chunk.tokens, own, chunk.head_rows())


def _own_rows(draft: Draft, pending: int) -> list[list[int]] | None:
    """The rows of its chunk that each row sees: pending tokens those before them, a node all of them and its ancestors."""
    if draft.is_chain:
        return None
    own = [list(range(row + 1)) for row in range(pending)]
    for node, parent in enumerate(draft.parents):
        own.append([*own[pending - 1 if parent == ROOT else pending + parent], pending + node])
    return own


def _keys(chunks: Sequence[Chunk]) -> Keys:
    """Temperature, seed and position for the choice after each wanted row."""
    temperatures: list[float] = []
    seeds: list[int] = []
    positions: list[int] = []
    for chunk in chunks:
        if chunk.is_last:
            sampler, count = chunk.sequence.sampler, 1 + len(chunk.draft)
            positions += chunk.choice_positions
            temperatures += [sampler.temperature] * count
            seeds += [sampler.seed % (1 << 64)] * count
    return Keys(temperatures, seeds, positions)
