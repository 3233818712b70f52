"""Block heads on our kernels: the context's keys and values, one pass per round, and Domino's corrections along paths."""

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.method import Context
from decoding.engine.sampler import Floats
from decoding.engine.target import Array
from decoding.heads.on_kernels.layers import ROWS, Fed, HeadLayers, Seen
from decoding.heads.on_kernels.weights import (
    HeadWeights,
    KernelVocabulary,
    PackedRows,
    Placed,
    Workspace,
    padded_rows,
    silu,
)
from decoding.targets.int8.buffers import Longs, address
from decoding.targets.int8.compiled import compiled
from kernels.cpu.draft_tokens import Corrector, corrected_scratch


class KernelBlock:
    """One text's block head. See `decoding.methods.head_runtimes.BlockRuntime`."""

    def __init__(self, weights: HeadWeights, context: Context, frequent: Sequence[int], prompt: Sequence[int]) -> None:
        self.head = self._weights = weights
        self._space, sizes = Workspace(), weights.sizes
        self._embedding = np.asarray(context.embedding)
        self._vocabulary = KernelVocabulary.for_prompt(context, frequent, prompt, self._space)
        norms = [f"layers.{index}.input_norm" for index in range(sizes["layers"])]
        self._layers = HeadLayers(weights, self._space, norms, context.draft_caches)
        token, self._mask = sizes["mask_token"], weights.arrays.get("mask")
        if token is not None:
            self._mask = padded_rows(self._embedding[token])
        self._unread: Floats | None = None  # the newest states [new, taps, width], which the next pass takes in
        self._times = compiled("weighted_sums:parts_times")
        self._carried = np.zeros(weights.width, np.float32)  # what the last token's features add to every position
        self._last = np.zeros(weights.width, np.float32)  # its last tapped state

    @property
    def count(self) -> int:
        return self._layers.kept.count + (0 if self._unread is None else len(self._unread))

    def append(self, hidden: Array) -> None:
        if len(hidden):
            parts = [*([] if self._unread is None else [self._unread]), padded_rows(hidden)]
            self._unread = np.concatenate(parts) if len(parts) > 1 else parts[0]

    def states(self, known: Sequence[int], masks: int) -> Floats:
        return self.together([(self, known, masks)])[0]

    def together(self, blocks: "Sequence[tuple[KernelBlock, Sequence[int], int]]") -> list[Floats]:
        texts = [text for text, _, _ in blocks]
        self._read(texts)
        x = np.concatenate([text._block(known, masks) for text, known, masks in blocks])
        fed = [text._fed(len(known) + masks) for text, known, masks in blocks]
        positions = np.concatenate([each.slots for each in fed])
        states = self._weights.normed(self._layers.run_together(x, None, positions, fed), "norm")
        ends = np.cumsum([each.rows for each in fed])
        skipped = [len(known) - bool(self._weights.sizes["shift"]) for _, known, _ in blocks]
        found = [part[first:] for part, first in zip(np.split(states, ends[:-1]), skipped, strict=True)]
        if self._weights.sizes["skip_places"]:
            self._add_shortcuts(texts, found, [len(known) - 1 for _, known, _ in blocks])
        return found

    def best_of(self, asked: "Sequence[tuple[KernelBlock, Floats, int, int]]") -> list[tuple[Longs, Floats]]:
        return [text._vocabulary.best(states, first, count) for text, states, first, count in asked]

    def _read(self, texts: "Sequence[KernelBlock]") -> None:
        """Take in the newest states of texts, up to `ROWS` of each at a time."""
        matrix, carries = self._weights.matrix, self._weights.sizes["carry"]
        while new := [text for text in texts if text._unread is not None]:
            parts = [text._next() for text in new]
            fused = self._space.linear(matrix("fc"), np.concatenate([states for states, _ in parts]))
            self._layers.context(fused, [fed for _, fed in parts], "hidden_norm")
            newest = fused[np.cumsum([fed.rows for _, fed in parts]) - 1]
            carried = self._space.linear(matrix("carry", "hidden_norm"), newest) if carries else np.zeros_like(newest)
            for text, (states, _), adds in zip(new, parts, carried, strict=True):
                text._last, text._carried = states[-1, -1].copy(), adds
                text._layers.kept.count += len(states)

    def _next(self) -> tuple[Floats, Fed]:
        """The next states that are taken in, and where they go."""
        assert self._unread is not None
        some, rest = self._unread[:ROWS], self._unread[ROWS:]
        self._unread = rest if len(rest) else None
        return some, Fed(self._layers, len(some), self._layers.kept.count, Seen.chain(len(some)))

    def _block(self, known: Sequence[int], masks: int) -> Floats:
        """The rows [known + masks, width] before the layers."""
        count = len(known)
        x = np.empty((count + masks, self._weights.width), np.float32)
        x[:count], x[count:] = padded_rows(self._embedding[list(known)]), self._mask
        x += self._carried
        return x

    def _fed(self, rows: int) -> Fed:
        seen = Seen.chain(rows) if self._weights.sizes["causal"] else Seen.block(rows)
        return Fed(self._layers, rows, self.count, seen)

    def _add_shortcuts(self, texts: "Sequence[KernelBlock]", states: Sequence[Floats], firsts: Sequence[int]) -> None:
        """Add `decoding.heads.modules.block` to the states of each text, whose first stands at that place."""
        arrays, places = self._weights.arrays, self._weights.sizes["skip_places"]
        lasts, up = np.stack([text._last for text in texts]), arrays["skip_up"]
        inner = silu(self._space.linear(self._weights.matrix("skip_down"), lasts))
        corrections, (_, rank, width) = np.empty((len(texts), *up.shape[::2]), np.float32), up.shape
        # Not by numpy's BLAS, whose threads keep a processor busy for 100 ms after each product.
        self._times(
            address(inner), inner.strides[0], len(texts), address(up), places, rank, width, address(corrections)
        )
        for rows, last, correction, first in zip(states, lasts, corrections, firsts, strict=True):
            wanted = np.minimum(np.arange(first, first + len(rows)), places - 1)
            rows += (arrays["skip_gain"] * last + correction)[wanted]


class _FactorRows:
    """Domino's right factor for the rows of an LM head, each computed when a text's vocabulary has it first."""

    def __init__(self, weights: HeadWeights, lm_head: Array) -> None:
        self._matrix, self.lm_head = weights.matrix("to_factor"), lm_head
        self._rows = np.empty((len(lm_head), self._matrix.record.outputs), np.float32)
        self._known = np.zeros(len(lm_head), np.bool_)

    def of(self, ids: Longs, space: Workspace) -> Floats:
        """[vocab, rank], where the rows of `ids` are computed."""
        if len(new := ids[~self._known[ids]]):
            self._rows[new] = space.linear(self._matrix, padded_rows(np.asarray(self.lm_head)[new]))
            self._known[new] = True
        return self._rows


_FACTORS: WeakKeyDictionary[HeadWeights, _FactorRows] = WeakKeyDictionary()


def _factor_rows(weights: HeadWeights, lm_head: Array) -> _FactorRows:
    """Those of the LM head that was used last."""
    known = _FACTORS.get(weights)
    if known is None or known.lm_head is not lm_head:
        known = _FACTORS[weights] = _FactorRows(weights, lm_head)
    return known


class KernelPaths(KernelBlock):
    """One text's Domino head."""

    def __init__(self, weights: HeadWeights, context: Context, frequent: Sequence[int], prompt: Sequence[int]) -> None:
        super().__init__(weights, context, frequent, prompt)
        factors, ids = weights.arrays.get("right_factor"), self._vocabulary.ids
        if factors is None:
            factors = _factor_rows(weights, context.lm_head).of(ids, self._space)
        self._factors = PackedRows(factors, ids)
        record = Corrector(
            inputs=weights.matrix("gru_inputs").record,
            recurrent=weights.matrix("gru_recurrent").record,
            mixed=weights.matrix("from_prefix").record,
            factors=self._factors.matrix,
            embedding=address(self._embedding),
            columns=self._embedding.shape[1],
        )
        self._corrector = Placed(record)
        self._corrected = compiled("draft_tokens:corrected")

    def chain(self, states: Floats, tokens: Sequence[int], cursor: ConstraintCursor | None) -> list[int] | None:
        """There is no faster way to a chain than `expansion`."""
        return None

    def candidates(
        self, states: Floats, tokens: Sequence[int], width: int, children: int
    ) -> tuple[list[int], list[int], list[float]] | None:
        """Nor to a tree."""
        return None

    def expansion(
        self, states: Floats, tokens: Sequence[int], count: int
    ) -> Callable[[int, Sequence[int], Sequence[int]], tuple[Longs, Floats]]:
        """A function of a frontier's depth, tokens and parents, which gives the best `count` tokens below each node."""
        base = self._vocabulary.ranked(states, len(tokens))
        places = self._space.linear(self._weights.matrix("from_state"), np.ascontiguousarray(states))
        prefix = np.zeros((1, self._corrector.record.recurrent.inputs), np.float32)
        count = min(count, len(self._vocabulary.ids))

        def expand(depth: int, guessed: Sequence[int], parents: Sequence[int]) -> tuple[Longs, Floats]:
            nonlocal prefix
            nodes, place = guessed or tokens[-1:], places[depth] if depth else None
            prefix, found, scores = self._expanded(nodes, parents, prefix, place, base[depth], count)
            return found, scores

        return expand

    def _expanded(
        self,
        guessed: Sequence[int],
        parents: Sequence[int],
        before: Floats,
        place: Floats | None,
        base: Floats,
        count: int,
    ) -> tuple[Floats, Longs, Floats]:
        """The encoder's states after every node, and its best tokens and their log-probabilities.

        place: what the position's state adds to the left factor; None: there is no correction.
        """
        rows, record = len(guessed), self._corrector.record
        nodes, above = np.array(guessed, np.int64), np.array(parents, np.int32)
        after = np.empty((rows, record.recurrent.inputs), np.float32)
        found, scores = np.empty((rows, count), np.int64), np.empty((rows, count), np.float32)
        self._corrected(
            self._corrector.at,
            self._vocabulary.placed.at,
            address(above),
            address(nodes),
            rows,
            address(before),
            address(after),
            0 if place is None else address(place),
            address(base),
            count,
            address(found),
            address(scores),
            self._space.scratch(corrected_scratch(record, self._vocabulary.placed.record, rows)),
        )
        return after, found, scores
