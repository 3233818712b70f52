"""A head's weights as the kernels read them, the calls that use them, and the draft vocabulary, packed for each text.

`packing` says what the arrays hold, `decoding.heads.kinds` which tokens may be drafted, and `on_torch.context` why noise
belongs to guesses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from weakref import ref

import numpy as np

from decoding.checkpoints.model_config import Rope
from decoding.engine.method import Context
from decoding.engine.sampler import Floats
from decoding.engine.target import Array
from decoding.heads.kinds import draft_ids
from decoding.targets.int8.buffers import Angles, Longs, address
from decoding.targets.int8.compiled import compiled
from decoding.targets.int8.packed_model import Arrays, padded
from kernels.cpu.draft_tokens import Vocabulary
from kernels.cpu.head_layer import Layer
from kernels.cpu.head_linear import Matrix, linear_scratch
from kernels.cpu.job import PAGE, aligned, table_of

Record = TypeVar("Record", bound=tuple[Any, ...])


class Placed(Generic[Record]):
    """A record of sizes and addresses, and the address of its numbers, which kernels take."""

    def __init__(self, record: Record) -> None:
        self.record, self._table = record, table_of(record)
        self.at = address(self._table)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class HeadWeights:
    """The arrays of a head with the sizes of its kind. Matrices are called as in `packing`; the rest is fp32."""

    hidden: int  # the target's width
    sizes: Mapping[str, Any]
    arrays: Arrays
    angles: Angles | None  # of a head's rotary positions, shared by all texts
    _matrices: dict[tuple[str, str | None], Placed[Matrix]] = field(default_factory=dict)
    _layers: dict[tuple[int, str | None], Placed[Layer]] = field(default_factory=dict)

    @classmethod
    def of(cls, hidden: int, sizes: Mapping[str, Any], arrays: Arrays) -> "HeadWeights":
        angles = None
        if "rope_theta" in sizes:
            dim = sizes["head_dim"]
            angles = Angles(Rope.of(sizes).frequencies(dim), padded(dim))
        return cls(hidden, sizes, arrays, angles)

    @property
    def width(self) -> int:
        """The target's width, padded."""
        return padded(self.hidden)

    def matrix(self, name: str, norm: str | None = None) -> Placed[Matrix]:
        """A matrix, and the norm of its inputs in front of it."""
        if (name, norm) not in self._matrices:
            self._matrices[name, norm] = Placed(self._matrix(name, norm))
        return self._matrices[name, norm]

    def layer(self, index: int, norm: str | None) -> Placed[Layer]:
        """A decoder layer, and the norm in front of its queries, keys and values."""
        if (index, norm) not in self._layers:
            self._layers[index, norm] = Placed(self._layer(index, norm))
        return self._layers[index, norm]

    def normed(self, x: Floats, norm: str) -> Floats:
        """The RMS norm of rows [..., width]."""
        factor = np.sqrt(np.square(x).sum(-1, keepdims=True) / np.float32(self.hidden) + np.float32(self.sizes["eps"]))
        out: Floats = x / factor * self.arrays[norm]
        return out

    def _matrix(self, name: str, norm: str | None) -> Matrix:
        weight, more = self.arrays[f"{name}.weight"], self.arrays
        parts, groups, steps, *_ = weight.shape
        return Matrix(
            weight=address(weight),
            scales=address(more[f"{name}.scales"]),
            offsets=address(more[f"{name}.offsets"]),
            biases=address(more[f"{name}.biases"]) if f"{name}.biases" in more else 0,
            inputs=4 * steps,
            outputs=16 * groups,
            parts=parts,
            turns=int(more[f"{name}.turns"]),
            norm=address(more[norm]) if norm else 0,
            size=self.hidden,
            eps=self.sizes.get("eps", 0.0),
        )

    def _layer(self, index: int, norm: str | None) -> Layer:
        name, dim, kv_heads = f"layers.{index}", self.sizes["head_dim"], self.sizes["kv_heads"]
        norms = self.arrays.get(f"{name}.qk_norms")
        return Layer(
            qkv=self._matrix(f"{name}.qkv", norm),
            output=self._matrix(f"{name}.output", None),
            gates=self._matrix(f"{name}.gates", f"{name}.post_norm"),
            down=self._matrix(f"{name}.down", None),
            heads=self.sizes["heads"],
            kv_heads=kv_heads,
            dim=padded(dim),
            true_dim=dim,
            qk_norms=0 if norms is None else address(norms),
            eps=self.sizes["eps"],
            plane=8 * index * kv_heads * PAGE * padded(dim),
        )


class Workspace:
    """Memory that kernels use while they run; one thread at a time."""

    def __init__(self) -> None:
        self._scratch = np.empty(0, np.uint8)
        self._linear = compiled("head_linear:linear_of")

    def scratch(self, size_bytes: int) -> int:
        """Address of so much memory, until the next call."""
        if size_bytes > len(self._scratch):
            self._scratch = aligned(2 * size_bytes, np.uint8)
        return address(self._scratch)

    def linear(self, placed: Placed[Matrix], x: Floats) -> Floats:
        """[rows, outputs] of x [rows, parts * inputs], which lies in one piece."""
        rows, matrix = len(x), placed.record
        out = np.empty((rows, matrix.outputs), np.float32)
        scratch = self.scratch(linear_scratch(rows, matrix.inputs))
        self._linear(
            placed.at,
            0,
            matrix.outputs,
            address(x),
            4 * matrix.inputs * matrix.parts,
            rows,
            address(out),
            4 * matrix.outputs,
            False,
            scratch,
        )
        return out


def padded_rows(rows: Array) -> Floats:
    """Rows [..., columns] with zeros behind, up to a multiple of 64; the rows themselves where there is nothing to pad."""
    columns = rows.shape[-1]
    if columns == padded(columns):
        return np.ascontiguousarray(rows, np.float32)
    out = np.zeros((*rows.shape[:-1], padded(columns)), np.float32)
    out[..., :columns] = np.asarray(rows)
    return out


def silu(x: Floats) -> Floats:
    """x / (1 + e^-x)."""
    with np.errstate(over="ignore"):
        out: Floats = x / (1 + np.exp(-x))
    return out


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
        compiled("head_linear:pack_rows")(
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
        self._best, self._ranked = compiled("draft_tokens:best"), compiled("draft_tokens:ranked")

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
