"""The border between the engine and heads on torch's operators: what the target has as numpy arrays becomes tensors."""

from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from decoding.engine.method import Context
from decoding.engine.target import Array

_TENSORS: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # by the array's id: a tensor keeps its array


@dataclass(frozen=True, slots=True)
class TensorContext(Context):
    """A context for heads on torch's operators."""

    embedding: Tensor  # the target's [vocab, hidden]
    lm_head: Tensor  # the target's [vocab, hidden]

    @classmethod
    def of(cls, context: Context) -> "TensorContext":
        """The context, its arrays as tensors over the same memory. An array has one tensor as long as that is used."""
        return cls(
            context.sampler,
            _tensor(context.embedding),
            _tensor(context.lm_head),
            context.recall,
            context.identity,
            context.cursor,
        )


def _tensor(array: Array) -> Tensor:
    found = array if isinstance(array, Tensor) else _TENSORS.get(id(array))
    if found is None:
        found = _TENSORS[id(array)] = torch.as_tensor(array)
    return found
