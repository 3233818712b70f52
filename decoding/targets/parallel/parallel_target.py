"""The target of the first of several processes: `FastTarget`, which tells the others of every forward and every commit."""

from collections.abc import Callable, Sequence

from torch import Tensor

from decoding.engine.target import Array
from decoding.targets.cache import cached_target
from decoding.targets.cache.cached_target import Scored
from decoding.targets.cache.shared_table import SharedTable
from decoding.targets.fast_target import Chunk, FastSequence, FastTarget, head_rows, sequence_rows
from decoding.targets.llama_model import LlamaModel
from decoding.targets.parallel.leader import Leader
from kernels.ragged import SequenceRows


class ParallelTarget(FastTarget):
    """model: this process's part. whole_head: reads the LM head, for draft heads, which have no part of it."""

    def __init__(
        self,
        model: LlamaModel,
        leader: Leader,
        whole_head: Callable[[], Tensor],
        cache_bytes: int = cached_target.CACHE_BYTES,
    ) -> None:
        super().__init__(model, cache_bytes)
        self._leader, self._whole_head = leader, whole_head
        self._lm_head: Tensor | None = None

    @property
    def lm_head(self) -> Array:
        if self._lm_head is None:
            self._lm_head = self._whole_head()
        return self._lm_head

    def commit(self, sequence: FastSequence, path: Sequence[int]) -> None:
        super().commit(sequence, path)
        if list(path) != list(range(len(path))):
            start = sequence.cached - len(path)
            self._leader.note("compact", self._leader.number(sequence.cache), start, list(path))

    def _new_cache(self, source: SharedTable | None, count: int) -> SharedTable:
        table = super()._new_cache(source, count)
        if source is not None:
            self._leader.note("begin", self._leader.number(table), self._leader.number(source), count)
        return table

    def _kept(self, cache: SharedTable, count: int) -> tuple[SharedTable, int]:
        kept, size_bytes = super()._kept(cache, count)
        self._leader.note("keep", self._leader.number(kept), self._leader.number(cache), count)
        return kept, size_bytes

    def _run(self, chunks: Sequence[Chunk], taps: Sequence[int]) -> tuple[list[Scored], Tensor | None]:
        rows = [self._told(chunk, sequence_rows(chunk)) for chunk in chunks]
        model = self._leader.number(self.model)
        with self._leader.told("forward", model=model, rows=rows, taps=list(taps), heads=head_rows(chunks)):
            return super()._run(chunks, taps)

    def _told(self, chunk: Chunk, rows: SequenceRows) -> list[object]:
        """The rows as `follower` reads them."""
        seen = None if rows.seen is None else rows.seen.numpy().tobytes()
        table = self._leader.number(chunk.sequence.cache)
        return [table, rows.before, list(rows.tokens), list(rows.positions), seen]
