"""A drafter that is a small language model, on torch's operators."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.heads.modules.small_lm import SmallLm
from decoding.heads.on_torch.tensor_context import TensorContext
from decoding.heads.on_torch.vocabulary import DraftVocabulary
from decoding.targets.fast_model import FastModel
from decoding.targets.llama_model import LlamaModel
from kernels.available import runs_kernels
from kernels.ragged import SequenceRows


class TorchReader:
    """One text's drafter. See `decoding.methods.drafting.head_runtimes.Reader`."""

    @torch.inference_mode()
    def __init__(self, source: SmallLm | Path, context: TensorContext, prompt: Sequence[int]) -> None:
        like = context.embedding
        if isinstance(source, SmallLm):
            self._model, frequent, lm_head = _small_model(source, like), source.config.frequent, context.lm_head
        else:
            self._model = _other_model(source, like.dtype, like.device)
            frequent, lm_head = (), self._model.lm_head[: len(context.lm_head)]
        ranking = TensorContext(context.sampler, like, lm_head, context.recall)
        self._vocabulary = DraftVocabulary.for_prompt(ranking, frequent, prompt)
        self._table = self._model.new_table()
        self.kept = 0  # tokens of the text that were read
        self._rows = 0

    @property
    def vocab_size(self) -> int:
        return self._model.config.vocab_size

    @torch.inference_mode()
    def read(self, tokens: Sequence[int], keep: bool) -> Tensor:
        start = self.kept if keep else self._rows
        end = start + len(tokens)
        self._table.reserve(end, start)
        rows = SequenceRows(self._table.data, start, tokens, range(start, end))
        _, hidden = self._model.forward([rows], (self._model.config.layers,), ())
        assert hidden is not None
        self._rows = end
        self.kept = end if keep else self.kept
        return hidden[0, len(tokens) - 1 : len(tokens)].clone()  # a graph fills rows up, and overwrites them

    @torch.inference_mode()
    def best(self, state: Tensor, position: int, count: int) -> tuple[Tensor, Tensor]:
        return self._vocabulary.guesses(state, position, count)


@lru_cache(maxsize=2)
def _small_model(head: SmallLm, embedding: Tensor) -> LlamaModel:
    return _model_type(embedding.device)(
        head.model_config(), head.weights(embedding), embedding.dtype, embedding.device
    )


@lru_cache(maxsize=2)
def _other_model(folder: Path, dtype: torch.dtype, device: torch.device) -> LlamaModel:
    """Raises ModelUnavailable, UnsupportedModel."""
    return _model_type(device)(load_config(folder), read_weights(folder), dtype, device)


def _model_type(device: torch.device) -> type[LlamaModel]:
    """On a GPU the forward with captured graphs: a drafter's steps are so short that their launches alone take longer."""
    if not runs_kernels(device):
        return FastModel
    from decoding.targets.cuda.cuda_model import CudaModel

    return CudaModel
