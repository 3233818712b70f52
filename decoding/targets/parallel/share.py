"""How one process of several builds its part of a model: what it cuts, and where it adds up with the others."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from decoding.errors import UnsupportedModel
from decoding.targets.fast_ops import Projection
from decoding.targets.int8.quantize import Rounded
from decoding.targets.llama_model import Packer
from decoding.targets.parallel.group import Group
from decoding.targets.parallel.split import Split


@dataclass(frozen=True, slots=True)
class GroupShare:
    """A `decoding.targets.llama_model.Share` among the processes of a group."""

    split: Split
    group: Group

    @property
    def head_rows(self) -> slice:
        return self.split.head_rows

    def summed(self, pack: Packer) -> Packer:
        def packed(weight: Tensor, bias: Tensor | None = None) -> Projection:
            return _then(pack(weight, bias), self.group.add_up)

        return packed

    def head(self, pack: Packer, rows: Tensor | Rounded) -> Projection:
        if isinstance(rows, Rounded):
            raise UnsupportedModel("int8 weights are computed by one process")
        missing, vocab = self.split.head_size - len(rows), self.split.config.vocab_size
        part = pack(functional.pad(rows, (0, 0, 0, missing)))
        return _then(part, lambda x: self.group.joined(x)[:, :vocab])


def _then(first: Projection, second: Callable[[Tensor], Tensor]) -> Projection:
    return lambda x: second(first(x))
