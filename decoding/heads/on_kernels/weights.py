"""A head's weights as the kernels read them, and the calls that use them. `packing` says what the arrays hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from decoding.checkpoints.model_config import Rope
from decoding.engine.sampling.numpy_choice import Floats
from decoding.engine.target import Array
from decoding.targets.int8.buffers import Angles, address
from decoding.targets.int8.compiled import compiled
from decoding.targets.int8.packed_model import Arrays, padded
from kernels.cpu.heads.head_layer import Layer
from kernels.cpu.heads.linear import Matrix, linear_scratch
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
            angles = Angles(Rope(sizes["rope_theta"]).frequencies(dim), padded(dim))
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
        self._linear = compiled("heads.linear:linear_of")

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
