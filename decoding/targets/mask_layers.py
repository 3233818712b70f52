"""A mask adapter on torch's operators (see `decoding.checkpoints.adapters.mask_adapter`), for decoding and for training."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.adapters.mask_adapter import MaskAdapter
from decoding.checkpoints.model_config import ModelConfig
from decoding.targets.int8.quantize import rotated


def adapted(x: Tensor, down: Tensor, up: Tensor, eps: float) -> Tensor:
    """Rows x [rows, hidden] of mask tokens as a layer gets them; down, up [rank, hidden]."""
    normed = functional.rms_norm(x, x.shape[1:], None, eps)
    return torch.addmm(x, functional.silu(functional.linear(normed, down)), up)


class MaskLayers:
    """The adapter of a model whose rows are of type `dtype`, and rotated if there is a rotation. Raises UnsupportedModel."""

    def __init__(
        self,
        adapter: MaskAdapter,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        rotation: Tensor | None,
    ) -> None:
        adapter.check_fits(config)
        self._vocab, self._eps = config.vocab_size, config.rms_norm_eps
        self._embeddings = torch.from_numpy(adapter.embeddings).to(device, dtype)
        pair = (torch.from_numpy(each).to(device, dtype) for each in (adapter.down, adapter.up))
        self._down, self._up = (each if rotation is None else rotated(each, rotation) for each in pair)

    def rows(self, tokens: Sequence[int]) -> Tensor:
        """Which rows are mask tokens'."""
        return torch.tensor([row for row, token in enumerate(tokens) if token >= self._vocab], device=self._down.device)

    def embed(self, tokens: Sequence[int], rows: Tensor, x: Tensor) -> None:
        """Put the embeddings of the mask tokens into `rows` of x, in place."""
        depths = [token - self._vocab for token in tokens if token >= self._vocab]
        x[rows] = self._embeddings[depths]

    def adapt(self, layer: int, rows: Tensor, x: Tensor) -> Tensor:
        """x with what the rows get before a layer; x itself stays what it is."""
        return x.index_copy(0, rows, adapted(x[rows], self._down[layer], self._up[layer], self._eps))
