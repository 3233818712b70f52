"""Block heads on our kernels: the context's keys and values, one pass per round, and Domino's corrections along paths."""

from collections.abc import Callable, Sequence

import numpy as np

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.method import Context
from decoding.engine.sampling.numpy_choice import Floats
from decoding.engine.target import Array
from decoding.heads.on_kernels.layers import ROWS, HeadLayers, Seen
from decoding.heads.on_kernels.vocabulary import KernelVocabulary, PackedRows
from decoding.heads.on_kernels.weights import HeadWeights, Placed, Workspace, padded_rows, silu
from decoding.targets.int8.buffers import Longs, address
from decoding.targets.int8.compiled import compiled
from kernels.cpu.draft_tokens import Corrector, corrected_scratch


class KernelBlock:
    """One text's block head. See `decoding.methods.drafting.head_runtimes.BlockRuntime`."""

    def __init__(self, weights: HeadWeights, context: Context, frequent: Sequence[int], prompt: Sequence[int]) -> None:
        self._weights, self._space, sizes = weights, Workspace(), weights.sizes
        self._embedding, self.count = np.asarray(context.embedding), 0
        self._vocabulary = KernelVocabulary.for_prompt(context, frequent, prompt, self._space)
        norms = [f"layers.{index}.input_norm" for index in range(sizes["layers"])]
        self._layers = HeadLayers(weights, self._space, norms)
        token, self._mask = sizes["mask_token"], weights.arrays.get("mask")
        if token is not None:
            self._mask = padded_rows(self._embedding[token])
        self._carried: Floats | None = None  # what the last token's features add to every position [1, width]
        self._last: Floats | None = None  # its last tapped state [1, width]

    def append(self, hidden: Array) -> None:
        """The next tokens' tapped states [new, taps, hidden]."""
        states = padded_rows(hidden)
        for first in range(0, len(states), ROWS):
            some = states[first : first + ROWS]
            fused = self._space.linear(self._weights.matrix("fc"), some)
            self._layers.context(fused, self.count, "hidden_norm")
            self.count += len(some)
            self._last = some[-1:, -1].copy()
            if self._weights.sizes["carry"]:
                self._carried = self._space.linear(self._weights.matrix("carry", "hidden_norm"), fused[-1:])

    def states(self, known: Sequence[int], masks: int) -> Floats:
        """[guesses, width] of the positions after `known`, the tokens from position `count` on."""
        weights, sizes, count = self._weights, self._weights.sizes, len(known)
        x = np.empty((count + masks, weights.width), np.float32)
        x[:count], x[count:] = padded_rows(self._embedding[list(known)]), self._mask
        if self._carried is not None:
            x += self._carried
        seen = Seen.chain(len(x)) if sizes["causal"] else Seen.block(len(x))
        positions = np.arange(self.count, self.count + len(x))
        states = weights.normed(self._layers.run(x, None, positions, self.count, seen), "norm")
        states = states[count - bool(sizes["shift"]) :]
        if sizes["skip_places"] and self._last is not None:
            states[:, : weights.hidden] += self._skipped(count - 1, len(states))
        return states

    def best(self, states: Floats, position: int, count: int) -> tuple[Longs, Floats]:
        """The best `count` tokens and their log-probabilities; row i guesses `position + i`."""
        return self._vocabulary.best(states, position, count)

    def _skipped(self, first: int, count: int) -> Floats:
        """See `decoding.heads.modules.last_state`: [count, hidden] for positions from `first` on."""
        assert self._last is not None
        arrays, places, last = self._weights.arrays, self._weights.sizes["skip_places"], self._last
        inner = silu(self._space.linear(self._weights.matrix("skip_down"), last)[0])
        inner = inner[: places * arrays["skip_up"].shape[2]].reshape(places, -1)
        # Not by numpy's BLAS, whose threads keep a processor busy for 100 ms after each product.
        corrections: Floats = np.einsum("pwr,pr->pw", arrays["skip_up"], inner)
        wanted = np.minimum(np.arange(first, first + count), places - 1)
        out: Floats = arrays["skip_gain"][wanted] * last[:, : self._weights.hidden] + corrections[wanted]
        return out


class KernelPaths(KernelBlock):
    """One text's Domino head."""

    def __init__(self, weights: HeadWeights, context: Context, frequent: Sequence[int], prompt: Sequence[int]) -> None:
        super().__init__(weights, context, frequent, prompt)
        factors, ids = weights.arrays.get("right_factor"), self._vocabulary.ids
        if factors is None:
            rows = padded_rows(np.asarray(context.lm_head)[ids])
            factors, ids = self._space.linear(weights.matrix("to_factor"), rows), np.arange(len(ids))
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
