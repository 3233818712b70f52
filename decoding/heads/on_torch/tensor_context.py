"""The border between the engine and heads on torch's operators: what the target has as numpy arrays becomes tensors."""

from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from decoding.engine.method import Context
from decoding.engine.target import Array
from decoding.heads.head import Head, check_target

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
            context.mask_tokens,
            context.mask_pairs,
            context.runtime,
        )


def to_target(head: Head, context: TensorContext) -> Head:
    """The head, checked, on the target's device and in its type; a no-op if it is already there. Raises HeadMismatch."""
    check_target(head, context)
    embedding, first = context.embedding, next(head.parameters(), None)
    if first is not None and (first.device, first.dtype) != (embedding.device, embedding.dtype):
        with torch.no_grad():
            head.to(embedding.device, embedding.dtype)
    return head


def _tensor(array: Array) -> Tensor:
    found = array if isinstance(array, Tensor) else _TENSORS.get(id(array))
    if found is None:
        found = _TENSORS[id(array)] = torch.as_tensor(array)
    return found
