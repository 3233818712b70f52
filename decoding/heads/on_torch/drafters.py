"""EAGLE-3, Falcon, Medusa and small language models on torch's operators.

Medusa's heads on torch's operators.

A drafter that is a small language model, on torch's operators.

EAGLE-3's drafter on torch's operators.

Falcon's drafter on torch's operators.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.target import Array
from decoding.heads.modules.drafters import Eagle3Head, FalconHead, MedusaHead, SmallLm, pairs_of, windows_of
from decoding.heads.modules.layer import KeysValues
from decoding.heads.on_torch.context import (
    Branches,
    DraftVocabulary,
    TableGraphs,
    TensorContext,
    joined,
    no_rows,
    table_graphs,
)
from decoding.targets.fast_target import FastModel
from decoding.targets.llama_model import LlamaModel, TensorTable
from kernels.available import runs_kernels
from kernels.gpu.ragged import SequenceRows, sent


class TorchMedusa:
    """One text's Medusa heads. See `decoding.methods.head_runtimes.MedusaRuntime`."""

    def __init__(self, head: MedusaHead, context: TensorContext, prompt: Sequence[int]) -> None:
        self._head = head
        self._vocabulary = DraftVocabulary.for_prompt(context, head.config.frequent, prompt)

    @torch.inference_mode()
    def best(self, state: Array, heads: range, position: int, count: int) -> tuple[Tensor, Tensor]:
        vocabulary = self._vocabulary
        states = self._head(torch.as_tensor(state)[None])
        logits = self._head.logits(states, vocabulary.rows, vocabulary.ids)[0, heads.start : heads.stop]
        positions = torch.arange(position, position + len(logits), device=logits.device)
        return vocabulary.best(vocabulary.ranked(logits, positions), count)


class TorchReader:
    """One text's drafter. See `decoding.methods.head_runtimes.Reader`."""

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
    from decoding.targets.cuda import CudaModel

    return CudaModel


_CAPTURED_PAIRS = 64  # more, such as a prompt's, are as fast without a graph


class TorchEagle3:
    """One text's drafter. See `decoding.methods.head_runtimes.Eagle3Runtime`."""

    def __init__(self, head: Eagle3Head, context: TensorContext, prompt: Sequence[int]) -> None:
        self._head, self._embedding, frequent = head, context.embedding, head.config.frequent
        own = head.size("own_lm_head") and frequent
        self._vocabulary = (
            DraftVocabulary(context, frequent) if own else DraftVocabulary.for_prompt(context, frequent, prompt)
        )
        weight, self._planes = head.fc.weight, int(head.size("kv_heads"))  # of keys
        self._rows = TensorTable(2 * self._planes, (head.size("head_dim"),), weight.dtype, weight.device)
        self._features = weight.new_empty(0, head.width)  # of tokens that have no pair yet
        self.pairs, self._state = 0, self._features
        self._graphs = table_graphs(head, context.embedding) if runs_kernels(weight.device) else None

    @torch.inference_mode()
    def read(self, hidden: Array) -> None:
        self._features = torch.cat([self._features, self._head.fused(torch.as_tensor(hidden))])

    @torch.inference_mode()
    def pair(self, tokens: Sequence[int]) -> None:
        count = len(self._features)
        if not count:
            return
        start = self.pairs + 1  # position of the first token that is fed
        fed, positions = tokens[start : start + count], range(start, start + count)
        self._rows.reserve(self.pairs + count, self.pairs)
        if self._graphs is not None and count <= _CAPTURED_PAIRS:
            rows = SequenceRows(self._rows.data, self.pairs, fed, positions)
            states = self._graphs.states([rows], [self._features])[0]
        else:
            states = self._paired(fed, positions)
        self._state = states[-1:]
        self._features, self.pairs = self._features[:0], self.pairs + count

    def _paired(self, tokens: Sequence[int], positions: range) -> Tensor:
        """The states of the new pairs, whose keys and values are put into the table."""
        device, count, planes = self._embedding.device, len(tokens), self._planes
        seen = torch.ones(count, self.pairs + count, dtype=torch.bool, device=device).tril(self.pairs)
        embedded = self._head.embedded(sent(tokens, device), self._embedding)
        places = positions.start + torch.arange(count, device=device)
        states: Tensor
        states, own = self._head(embedded, self._features, places, [self._committed()], seen)
        for part, new in zip((slice(planes), slice(planes, None)), own, strict=True):
            self._rows.data[part, self.pairs : self.pairs + count] = new
        return states

    def _committed(self) -> KeysValues:
        """Views of the keys and values of all pairs."""
        keys, values = torch.split(self._rows.data[:, : self.pairs], self._planes)
        return keys, values

    def root(self) -> Tensor:
        if self._graphs is None:
            self._branches = Branches([self._committed()])
        else:
            self._tree = _FedTree(self._graphs, self._rows, self.pairs, self._state[:0])
        return self._state

    @torch.inference_mode()
    def grow(self, tokens: Sequence[int], states: Tensor, parents: Sequence[int], position: int) -> Tensor:
        device = self._embedding.device
        features = states[sent(parents, device)]
        if self._graphs is not None:
            return self._tree.grow(tokens, features, parents, position)
        branches = self._branches
        embedded = self._head.embedded(sent(tokens, device), self._embedding)
        positions = torch.full((len(tokens),), position, device=device)
        visible = branches.visible(parents)
        states, own = self._head(embedded, features, positions, branches.known(), visible)
        branches.grow([own])
        return states

    @torch.inference_mode()
    def best(self, states: Tensor, position: int, count: int) -> tuple[Tensor, Tensor]:
        positions = torch.full((len(states),), position, device=states.device)
        logits = self._head.logits(states, self._vocabulary.rows)
        return self._vocabulary.best(self._vocabulary.ranked(logits, positions), count)


class _FedTree:
    """A round's tree on a GPU, all of whose nodes are fed again with every level: a graph has no masks for rows of earlier
    passes, and rows hardly cost.
    """

    def __init__(self, graphs: TableGraphs, table: TensorTable, before: int, features: Tensor) -> None:
        self._graphs, self._table, self._before, self._features = graphs, table, before, features
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._seen = np.zeros((0, 0), dtype=bool)
        self._level = range(0)  # the last level's rows; none: the root

    def grow(self, tokens: Sequence[int], features: Tensor, parents: Sequence[int], position: int) -> Tensor:
        """The states of the next level's nodes. parents: in the last level."""
        first, end = len(self._tokens), len(self._tokens) + len(tokens)
        seen = np.eye(end, dtype=bool)
        seen[:first, :first] = self._seen
        if self._level:
            seen[first:, :first] = self._seen[[self._level[parent] for parent in parents]]
        self._seen, self._level, self._features = seen, range(first, end), torch.cat([self._features, features])
        self._tokens += tokens
        self._positions += [position] * len(tokens)
        self._table.reserve(self._before + end, self._before)
        rows = SequenceRows(self._table.data, self._before, self._tokens, self._positions, torch.from_numpy(seen))
        return self._graphs.states([rows], [self._features])[0][first:]


class TorchFalcon:
    """One text's drafter. See `decoding.methods.head_runtimes.FalconRuntime`."""

    def __init__(self, head: FalconHead, context: TensorContext, prompt: Sequence[int]) -> None:
        self._head, self._embedding = head, context.embedding
        self._vocabulary = DraftVocabulary.for_prompt(context, head.config.frequent, prompt)
        width, like = head.config.hidden, next(head.parameters())
        self._features = like.new_empty(0, width)  # of tokens that have no pair yet
        self._line = like.new_zeros(head.memory + head.k - 1, 2 * width)  # a text is preceded by zeros
        self._known = [no_rows(head.size("kv_heads"), head.size("head_dim"), like) for _ in head.layers]
        self.pairs = 0

    @torch.inference_mode()
    def read(self, features: Array) -> None:
        self._features = torch.cat([self._features, torch.as_tensor(features)])

    @torch.inference_mode()
    def pair(self, tokens: Sequence[int]) -> None:
        count, head = len(self._features), self._head
        if not count:
            return
        first, device = self.pairs + 1, self._embedding.device
        ids = sent(tokens[first : first + count], device)
        self._line = torch.cat([self._line, pairs_of(functional.embedding(ids, self._embedding), self._features)])
        windows = windows_of(self._line[head.k :], head.memory)
        visible = torch.ones(count, self.pairs + count, dtype=torch.bool, device=device).tril(self.pairs)
        positions = torch.arange(first, first + count, device=device)
        _, own = head(head.read(windows), positions, [[each] for each in self._known], visible)
        self._known = [joined(before, new) for before, new in zip(self._known, own, strict=True)]
        self._line = self._line[count:]
        self._features, self.pairs = self._features[:0], self.pairs + count

    def root(self) -> Tensor:
        before = self.pairs - self._head.k
        self._branches = Branches(
            [(keys[:, :before], values[:, :before]) for keys, values in self._known], self._head.k
        )
        return self._line[None]

    @torch.inference_mode()
    def glance(self, line: Tensor, parents: Sequence[int], first: int) -> Tensor:
        k, head, branches = self._head.k, self._head, self._branches
        x = head.read(windows_of(line, head.memory).flatten(0, 1))
        positions = torch.arange(first, first + k, device=x.device).repeat(len(line))
        known = [branches.known(layer) for layer in range(head.size("layers"))]
        features, own = head(x, positions, known, branches.visible(parents))
        branches.grow(own)
        states: Tensor = features.view(len(line), k, -1)
        return states

    @torch.inference_mode()
    def following(self, line: Tensor, features: Tensor, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        ids, places = sent(tokens, line.device), sent(rows, line.device)
        new = pairs_of(functional.embedding(ids, self._embedding), features[places])
        return torch.cat([line[places][:, self._head.k :], new], 1)

    @torch.inference_mode()
    def best(self, features: Tensor, position: int, count: int) -> tuple[Tensor, Tensor]:
        return self._vocabulary.guesses(features, position, count)
