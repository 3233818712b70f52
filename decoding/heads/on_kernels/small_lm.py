"""A drafter that is a small language model, as a second `CpuModel`."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_stored, weight_files
from decoding.engine.method import Context
from decoding.engine.sampling.numpy_choice import Floats
from decoding.engine.target import Array
from decoding.heads.draft_tokens import draft_ids
from decoding.heads.modules.small_lm import SmallLm
from decoding.heads.on_kernels.layers import taken_rows
from decoding.heads.on_kernels.vocabulary import KernelVocabulary, PackedRows
from decoding.heads.on_kernels.weights import Workspace, padded_rows
from decoding.targets.int8.buffers import Keys, Longs, Part
from decoding.targets.int8.cpu_model import CpuModel
from decoding.targets.int8.packed_model import kept_packed
from decoding.targets.int8.packing import packed_layers, packed_model

_ROWS = 512  # that are fed at once, at most
_NOTHING = Keys((), (), ())
_MODELS: WeakKeyDictionary[SmallLm, tuple[Array, CpuModel]] = WeakKeyDictionary()  # with the embedding below


class KernelReader:
    """One text's drafter. See `decoding.methods.drafting.head_runtimes.Reader`."""

    def __init__(self, source: SmallLm | Path, context: Context, prompt: Sequence[int]) -> None:
        space = Workspace()
        if isinstance(source, SmallLm):
            self._model, frequent = _small_model(source, context.embedding), source.config.frequent
            self._vocabulary = KernelVocabulary.for_prompt(context, frequent, prompt, space)
        else:
            self._model, rows = _other_model(source)
            self._vocabulary = KernelVocabulary(context, draft_ids(context, (), prompt), space, rows)
        self._kept = taken_rows(context.draft_caches, source, self._model.new_pages)
        self._pages, self._rows = self._kept.pages, self._kept.count

    @property
    def kept(self) -> int:
        return self._kept.count

    @property
    def vocab_size(self) -> int:
        return self._model.config.vocab_size

    def read(self, tokens: Sequence[int], keep: bool) -> Floats:
        """The normed state [1, width] after `tokens`; keep: whether they are text."""
        start, layers = self.kept if keep else self._rows, self._model.config.layers
        self._rows = start + len(tokens)
        self._pages.reserve(self._rows)
        for first in range(0, len(tokens), _ROWS):
            part = Part(self._pages, start + first, tokens[first : first + _ROWS], None, ())
            *_, hidden = self._model.forward([part], _NOTHING, (layers,))
        if keep:
            self._kept.count = self._rows
        assert hidden is not None
        return padded_rows(hidden[0, -1:])

    def best(self, state: Floats, position: int, count: int) -> tuple[Longs, Floats]:
        """The best `count` tokens for `position` and their log-probabilities."""
        return self._vocabulary.best(state, position, count)


def _small_model(head: SmallLm, embedding: Array) -> CpuModel:
    """The head's layers above the target's embedding, made once. Its few rows are for one thread."""
    known, model = _MODELS.get(head, (None, None))
    if model is None or known is not embedding:
        config, layers = head.model_config(), ((f"model.{name}", tensor) for name, tensor in head.state_dict().items())
        model = CpuModel(config, packed_layers(config, layers) | {"embedding": np.asarray(embedding)}, threads=1)
        _MODELS[head] = embedding, model
    return model


@lru_cache(maxsize=2)
def _other_model(folder: Path) -> tuple[CpuModel, PackedRows]:
    """A checkpoint, and its LM head. Raises ModelUnavailable, UnsupportedModel."""
    config = load_config(folder)
    arrays = kept_packed(weight_files(folder), lambda: packed_model(config, read_stored(folder)))
    model = CpuModel(config, arrays)
    return model, PackedRows(model.lm_head, np.arange(config.vocab_size))
