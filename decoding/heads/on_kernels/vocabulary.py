"""The draft vocabulary on our kernels: the LM head's rows for its tokens in eight bits, packed for each text.

`decoding.heads.on_torch.vocabulary` says which tokens those are, and why noise belongs to guesses.
"""

from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np

from decoding.engine.method import Context
from decoding.engine.sampling.numpy_choice import Floats
from decoding.engine.target import Array
from decoding.heads.draft_tokens import draft_ids
from decoding.heads.on_kernels.weights import Placed, Workspace
from decoding.targets.int8.buffers import Longs, address
from decoding.targets.int8.compiled import compiled
from decoding.targets.int8.packed_model import padded
from kernels.cpu.heads.draft_tokens import Vocabulary
from kernels.cpu.heads.linear import Matrix, linear_scratch
from kernels.cpu.job import aligned


class PackedRows:
    """Some rows of an fp32 matrix [.., columns] in eight bits; ids: int64."""

    def __init__(self, rows: Array, ids: Longs) -> None:
        columns = padded(rows.shape[1])
        source, wanted = np.asarray(rows), np.full(padded(len(ids)), -1, np.int64)
        if columns == rows.shape[1]:
            wanted[: len(ids)] = ids
        else:  # zeros behind
            source, wanted[: len(ids)] = np.zeros((len(ids), columns), np.float32), np.arange(len(ids))
            source[:, : rows.shape[1]] = rows[ids]
        count = len(wanted)
        self._weight = aligned((count // 16, columns // 4, 16, 4), np.int8)
        self._scales, self._offsets = np.empty(count, np.float32), np.empty(count, np.int32)
        scratch = np.empty(columns, np.uint8)
        compiled("heads.linear:pack_rows")(
            address(source),
            columns,
            address(wanted),
            count,
            address(self._weight),
            address(self._scales),
            address(self._offsets),
            address(scratch),
        )
        self.matrix = Matrix(
            weight=address(self._weight),
            scales=address(self._scales),
            offsets=address(self._offsets),
            biases=0,
            inputs=columns,
            outputs=count,
            parts=1,
            turns=0,
            norm=0,
            size=columns,
            eps=0.0,
        )


class KernelVocabulary:
    """Token ids, ascending, and rows for them. rows: others than those of the target's LM head."""

    def __init__(self, context: Context, ids: Sequence[int], space: Workspace, rows: PackedRows | None = None) -> None:
        sampler = context.sampler
        self.ids, self._space = np.array(ids, np.int64), space
        self._rows = rows or PackedRows(context.lm_head, self.ids)
        signed = (sampler.seed + (1 << 63)) % (1 << 64) - (1 << 63)  # the same 64 bits
        temperature, size = float(sampler.temperature), len(self.ids)
        self.placed = Placed(Vocabulary(self._rows.matrix, address(self.ids), size, temperature, signed))
        self._best, self._ranked = compiled("heads.draft_tokens:best"), compiled("heads.draft_tokens:ranked")

    @classmethod
    def for_prompt(
        cls, context: Context, frequent: Sequence[int], prompt: Sequence[int], space: Workspace
    ) -> "KernelVocabulary":
        """The frequent tokens, the prompt's and the recall's; the whole vocabulary if `frequent` is empty."""
        ids = draft_ids(context, frequent, prompt)
        return cls(context, ids, space, None if frequent else _whole(context.lm_head))

    def best(self, states: Floats, position: int, count: int, step: int = 1) -> tuple[Longs, Floats]:
        """The best `count` tokens [rows, count] and their log-probabilities for states [rows, width].

        Row i guesses `position + i * step`.
        """
        count, rows, matrix = min(count, len(self.ids)), len(states), self._rows.matrix
        tokens, scores = np.empty((rows, count), np.int64), np.empty((rows, count), np.float32)
        states = np.ascontiguousarray(states)
        logits = np.empty((rows + 1, matrix.outputs), np.float32)
        self._best(
            self.placed.at,
            address(states),
            4 * matrix.inputs,
            rows,
            position,
            step,
            count,
            address(tokens),
            address(scores),
            address(logits),
            self._space.scratch(linear_scratch(rows, matrix.inputs)),
        )
        return tokens, scores

    def ranked(self, states: Floats, position: int) -> Floats:
        """Logits [rows, padded size] over the temperature, with noise; row i guesses `position + i`."""
        rows, matrix = len(states), self._rows.matrix
        logits, states = np.empty((rows, matrix.outputs), np.float32), np.ascontiguousarray(states)
        scratch = self._space.scratch(linear_scratch(rows, matrix.inputs))
        self._ranked(self.placed.at, address(states), 4 * matrix.inputs, rows, position, 1, address(logits), scratch)
        return logits


_WHOLE: dict[int, tuple[ref[Any], PackedRows]] = {}  # of the last LM head that was packed as a whole, by its id


def _whole(lm_head: Array) -> PackedRows:
    """All rows, packed once."""
    known, packed = _WHOLE.get(id(lm_head), (None, None))
    if known is None or packed is None or known() is not lm_head:
        packed = PackedRows(lm_head, np.arange(len(lm_head)))
        _WHOLE.clear()
        _WHOLE[id(lm_head)] = ref(lm_head), packed
    return packed
