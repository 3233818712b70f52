"""Token tables of torch's operators."""

from functools import partial

import torch
from torch import Tensor

from decoding.targets.cache.kv_cache import TokenTable


class TensorTable(TokenTable[Tensor]):
    """A table in a tensor of this type on this device."""

    def __init__(self, planes: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(planes, shape, partial(torch.empty, dtype=dtype, device=device))
