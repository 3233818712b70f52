"""EAGLE-3, Falcon, Medusa and small language models on torch's operators."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.target import Array
from decoding.heads.modules.drafters import Eagle3Head, FalconHead, MedusaHead, SmallLm, pairs_of, windows_of
from decoding.heads.modules.layer import KeysValues, TextRows
from decoding.heads.on_torch.context import (
    Branches,
    DraftVocabulary,
    Ranking,
    TensorContext,
    best_of,
    joined,
    no_rows,
    table_graphs,
)
from decoding.targets.fast_target import FastModel
from decoding.targets.llama_model import LlamaModel, TensorTable
from kernels.available import runs_kernels
from kernels.gpu.ragged import SequenceRows, sent

_Guesses = tuple[Tensor, Tensor]


def _guessed(wanted: Sequence[Ranking], logits: Any = None) -> list[_Guesses | None]:
    """`best_of` where a text wants any."""
    found = iter(best_of([each for each in wanted if each.count and len(each.states)], logits))
    return [next(found) if each.count and len(each.states) else None for each in wanted]


class TorchMedusa:
    """One text's Medusa heads. See `decoding.methods.head_runtimes.MedusaRuntime`."""

    def __init__(self, head: MedusaHead, context: TensorContext, prompt: Sequence[int]) -> None:
        self.head = head
        self._vocabulary = DraftVocabulary.for_prompt(context, head.config.frequent, prompt)

    @torch.inference_mode()
    def best_of(self, asked: "Sequence[tuple[TorchMedusa, Array, range, int, int]]") -> list[_Guesses]:
        states, every = (
            self.head(torch.stack([torch.as_tensor(state) for _, state, *_ in asked])),
            self.head.size("heads"),
        )
        rankings = [
            Ranking(text._vocabulary, own[None], range(first - heads.start, first - heads.start + every), count)
            for own, (text, _, heads, first, count) in zip(states, asked, strict=True)
        ]
        found = best_of(rankings, lambda some, words: self.head.logits(some, words.rows, words.ids).flatten(0, 1))
        return [
            (tokens[heads.start : heads.stop], scores[heads.start : heads.stop])
            for (tokens, scores), (_, _, heads, _, _) in zip(found, asked, strict=True)
        ]


class TorchReader:
    """One text's drafter. See `decoding.methods.head_runtimes.Reader`."""

    @torch.inference_mode()
    def __init__(self, source: SmallLm | Path, context: TensorContext, prompt: Sequence[int]) -> None:
        like = context.embedding
        if isinstance(source, SmallLm):
            self.head, frequent, lm_head = _small_model(source, like), source.config.frequent, context.lm_head
        else:
            self.head = _other_model(source, like.dtype, like.device)
            frequent, lm_head = (), self.head.lm_head[: len(context.lm_head)]
        ranking = TensorContext(context.sampler, like, lm_head, context.recall)
        self._vocabulary = DraftVocabulary.for_prompt(ranking, frequent, prompt)
        self._table = self.head.new_table()
        self.kept = 0  # tokens of the text that were read
        self._rows = 0

    @property
    def vocab_size(self) -> int:
        return self.head.config.vocab_size

    @torch.inference_mode()
    def after(
        self, asked: "Sequence[tuple[TorchReader, Sequence[int], bool, int, int]]"
    ) -> list[tuple[Tensor, _Guesses | None]]:
        rows = [text._next(tokens, keep) for text, tokens, keep, _, _ in asked]
        hidden = self.head.forward(rows, (self.head.config.layers,), ()).hidden
        assert hidden is not None
        ends = sent([end - 1 for end in accumulate(map(len, rows))], hidden.device)
        states = torch.split(hidden[0].index_select(0, ends), 1)  # a graph fills rows up, and overwrites them
        wanted = [
            Ranking(text._vocabulary, state, (position,), count)
            for state, (text, _, _, position, count) in zip(states, asked, strict=True)
        ]
        return list(zip(states, _guessed(wanted), strict=True))

    def _next(self, tokens: Sequence[int], keep: bool) -> SequenceRows:
        """Room for the next tokens."""
        start = self.kept if keep else self._rows
        self._rows = start + len(tokens)
        self._table.reserve(self._rows, start)
        self.kept = self._rows if keep else self.kept
        return SequenceRows(self._table.data, start, tokens, range(start, self._rows))


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


@dataclass(frozen=True, slots=True)
class _Fed:
    """What one text feeds to an eager pass: `rows` of it, at these positions. known: by layer; visible: see `TextRows`."""

    rows: int
    positions: Sequence[int]
    known: Sequence[Sequence[KeysValues]]
    visible: Tensor


def _seen(fed: Sequence[_Fed]) -> list[TextRows]:
    """By layer, what the rows of all texts see."""
    sizes, visible = [each.rows for each in fed], [each.visible for each in fed]
    return [TextRows(sizes, known, visible) for known in zip(*(each.known for each in fed), strict=True)]


def _positions(fed: Sequence[_Fed], device: torch.device) -> Tensor:
    return sent([position for each in fed for position in each.positions], device)


def _split(own: Sequence[KeysValues], fed: Sequence[_Fed]) -> list[list[KeysValues]]:
    """Each text's keys and values, by layer."""
    sizes = [each.rows for each in fed]
    layers = [
        list(zip(torch.split(keys, sizes, 1), torch.split(values, sizes, 1), strict=True)) for keys, values in own
    ]
    return [list(each) for each in zip(*layers, strict=True)]


class TorchEagle3:
    """One text's drafter. See `decoding.methods.head_runtimes.Eagle3Runtime`."""

    def __init__(self, head: Eagle3Head, context: TensorContext, prompt: Sequence[int]) -> None:
        self.head, self._embedding, frequent = head, context.embedding, head.config.frequent
        own = head.size("own_lm_head") and frequent
        self._vocabulary = (
            DraftVocabulary(context, frequent, of_head=True)
            if own
            else DraftVocabulary.for_prompt(context, frequent, prompt)
        )
        weight, self._planes = head.fc.weight, int(head.size("kv_heads"))  # of keys
        self._rows = TensorTable(2 * self._planes, (head.size("head_dim"),), weight.dtype, weight.device)
        self._features = weight.new_empty(0, head.width)  # of tokens that have no pair yet
        self.pairs, self._state = 0, self._features
        self._graphs = table_graphs(head, context.embedding) if runs_kernels(weight.device) else None

    @torch.inference_mode()
    def read(self, hidden: Array) -> None:
        self._features = torch.cat([self._features, self.head.fused(torch.as_tensor(hidden))])

    @torch.inference_mode()
    def paired(self, asked: "Sequence[tuple[TorchEagle3, Sequence[int], int]]") -> list[tuple[Tensor, _Guesses | None]]:
        new = [(text, tokens) for text, tokens, _ in asked if len(text._features)]
        short = [each for each in new if self._graphs is not None and len(each[0]._features) <= _CAPTURED_PAIRS]
        long = [each for each in new if each not in short]
        if short and self._graphs is not None:
            rows = [text._new_rows(tokens) for text, tokens in short]
            states = self._graphs.states(rows, [text._features for text, _ in short])
            for (text, _), own in zip(short, states, strict=True):
                text._keep(own)
        if long:
            self._pair_eagerly(long)
        for text, _, _ in asked:
            text._begin()
        return self._after([(text, text._state, text.pairs + 1, count) for text, _, count in asked])

    @torch.inference_mode()
    def grown(
        self, asked: "Sequence[tuple[TorchEagle3, Sequence[int], Tensor, Sequence[int], int, int]]"
    ) -> list[tuple[Tensor, _Guesses | None]]:
        features = [states[sent(parents, states.device)] for _, _, states, parents, _, _ in asked]
        if self._graphs is not None:
            each = zip(features, asked, strict=True)
            rows = [
                text._tree.rows(tokens, own, parents, position) for own, (text, tokens, _, parents, position, _) in each
            ]
            states = self._graphs.states(rows, [text._tree.features for text, *_ in asked])
            found = [own[len(own) - len(text._tree.level) :] for own, (text, *_) in zip(states, asked, strict=True)]
        else:
            fed = [text._level(tokens, parents, position) for text, tokens, _, parents, position, _ in asked]
            found, own = self._eagerly([tokens for _, tokens, *_ in asked], features, fed)
            for (text, *_), layers in zip(asked, own, strict=True):
                text._branches.grow(layers)
        return self._after(
            [
                (text, states, position + 1, count)
                for states, (text, _, _, _, position, count) in zip(found, asked, strict=True)
            ]
        )

    def _after(self, wanted: "Sequence[tuple[TorchEagle3, Tensor, int, int]]") -> list[tuple[Tensor, _Guesses | None]]:
        """States with the best tokens for the position after them."""
        rankings = [
            Ranking(text._vocabulary, states, [position] * len(states), count)
            for text, states, position, count in wanted
        ]
        guesses = _guessed(rankings, self._logits)
        return [(states, found) for (_, states, _, _), found in zip(wanted, guesses, strict=True)]

    def _logits(self, states: Tensor, vocabulary: DraftVocabulary) -> Tensor:
        rows = vocabulary.rows if not self.head.size("own_lm_head") else states  # its own take their place
        return self.head.logits(states, rows)

    def _eagerly(
        self, tokens: Sequence[Sequence[int]], features: Sequence[Tensor], fed: Sequence[_Fed]
    ) -> tuple[list[Tensor], list[list[KeysValues]]]:
        """The states of the rows of each text, and their keys and values."""
        device = self._embedding.device
        embedded = self.head.embedded(sent([token for each in tokens for token in each], device), self._embedding)
        (seen,) = _seen(fed)
        states, own = self.head(embedded, torch.cat(list(features)), _positions(fed, device), seen)
        return list(torch.split(states, [each.rows for each in fed])), _split([own], fed)

    def _pair_eagerly(self, new: "Sequence[tuple[TorchEagle3, Sequence[int]]]") -> None:
        rows, fed = [text._new_rows(tokens) for text, tokens in new], []
        for (text, _), each in zip(new, rows, strict=True):
            count, before = len(each), text.pairs
            visible = torch.ones(count, before + count, dtype=torch.bool, device=self._embedding.device).tril(before)
            fed.append(_Fed(count, each.positions, [[text._committed()]], visible))
        states, own = self._eagerly([each.tokens for each in rows], [text._features for text, _ in new], fed)
        for (text, _), new_states, (layer,) in zip(new, states, own, strict=True):
            planes, end = text._planes, text.pairs + len(new_states)
            for part, values in zip((slice(planes), slice(planes, None)), layer, strict=True):
                text._rows.data[part, text.pairs : end] = values
            text._keep(new_states)

    def _new_rows(self, tokens: Sequence[int]) -> SequenceRows:
        """The pairs of the new features, with room for them. tokens: the text."""
        start, count = self.pairs + 1, len(self._features)  # start: position of the first token that is fed
        self._rows.reserve(self.pairs + count, self.pairs)
        fed, positions = tokens[start : start + count], range(start, start + count)
        return SequenceRows(self._rows.data, self.pairs, fed, positions)

    def _keep(self, states: Tensor) -> None:
        """The states of the new pairs, whose keys and values are in the table."""
        self._state, self.pairs, self._features = states[-1:], self.pairs + len(states), self._features[:0]

    def _begin(self) -> None:
        """A round's tree."""
        if self._graphs is None:
            self._branches = Branches([self._committed()])
        else:
            self._tree = _FedTree(self._rows, self.pairs, self._state[:0])

    def _level(self, tokens: Sequence[int], parents: Sequence[int], position: int) -> _Fed:
        visible, count = self._branches.visible(parents), len(tokens)
        return _Fed(count, [position] * count, [self._branches.known()], visible)

    def _committed(self) -> KeysValues:
        """Views of the keys and values of all pairs."""
        keys, values = torch.split(self._rows.data[:, : self.pairs], self._planes)
        return keys, values


class _FedTree:
    """A round's tree on a GPU, all of whose nodes are fed again with every level: a graph has no masks for rows of earlier
    passes, and rows hardly cost.

    features: of all nodes. level: the last level's rows; none: the root.
    """

    def __init__(self, table: TensorTable, before: int, features: Tensor) -> None:
        self._table, self._before, self.features = table, before, features
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._seen = np.zeros((0, 0), dtype=bool)
        self.level = range(0)

    def rows(self, tokens: Sequence[int], features: Tensor, parents: Sequence[int], position: int) -> SequenceRows:
        """All nodes, the next level's last. parents: in the last level."""
        first, end = len(self._tokens), len(self._tokens) + len(tokens)
        seen = np.eye(end, dtype=bool)
        seen[:first, :first] = self._seen
        if self.level:
            seen[first:, :first] = self._seen[[self.level[parent] for parent in parents]]
        self._seen, self.level, self.features = seen, range(first, end), torch.cat([self.features, features])
        self._tokens += tokens
        self._positions += [position] * len(tokens)
        self._table.reserve(self._before + end, self._before)
        return SequenceRows(self._table.data, self._before, self._tokens, self._positions, torch.from_numpy(seen))


class TorchFalcon:
    """One text's drafter. See `decoding.methods.head_runtimes.FalconRuntime`."""

    def __init__(self, head: FalconHead, context: TensorContext, prompt: Sequence[int]) -> None:
        self.head, self._embedding = head, context.embedding
        self._vocabulary = DraftVocabulary.for_prompt(context, head.config.frequent, prompt)
        width, like = head.config.hidden, next(head.parameters())
        self._features = like.new_empty(0, width)  # of tokens that have no pair yet
        self._line = like.new_zeros(head.memory + head.k - 1, 2 * width)  # a text is preceded by zeros
        self._known = [no_rows(head.size("kv_heads"), head.size("head_dim"), like) for _ in head.layers]
        self._branches = Branches(self._known, head.k)  # of the round
        self.pairs = 0

    @torch.inference_mode()
    def read(self, features: Array) -> None:
        self._features = torch.cat([self._features, torch.as_tensor(features)])

    @torch.inference_mode()
    def paired(self, asked: "Sequence[tuple[TorchFalcon, Sequence[int]]]") -> list[Tensor]:
        new = [(text, tokens) for text, tokens in asked if len(text._features)]
        if new:
            windows, fed = zip(*(text._pairs(tokens) for text, tokens in new), strict=True)
            _, own = self._run(windows, fed)
            for (text, _), layers in zip(new, own, strict=True):
                text._keep(layers)
        for text, _ in asked:
            before = text.pairs - self.head.k
            committed = [(keys[:, :before], values[:, :before]) for keys, values in text._known]
            text._branches = Branches(committed, self.head.k)
        return [text._line[None] for text, _ in asked]

    @torch.inference_mode()
    def glanced(
        self, asked: "Sequence[tuple[TorchFalcon, Tensor, Sequence[int], int, int]]"
    ) -> list[tuple[Tensor, _Guesses]]:
        k = self.head.k
        windows = [windows_of(line, self.head.memory).flatten(0, 1) for _, line, _, _, _ in asked]
        features, own = self._run(windows, [text._glance(parents, first) for text, _, parents, first, _ in asked])
        for (text, *_), layers in zip(asked, own, strict=True):
            text._branches.grow(layers)
        wanted = [
            Ranking(text._vocabulary, states, [*range(first + k, first + 2 * k)] * (len(states) // k), count)
            for states, (text, _, _, first, count) in zip(features, asked, strict=True)
        ]
        states = [each.view(len(each) // k, k, -1) for each in features]
        return list(zip(states, best_of(wanted), strict=True))

    @torch.inference_mode()
    def following(self, line: Tensor, features: Tensor, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        ids, places = sent(tokens, line.device), sent(rows, line.device)
        new = pairs_of(functional.embedding(ids, self._embedding), features[places])
        return torch.cat([line[places][:, self.head.k :], new], 1)

    def _run(self, windows: Sequence[Tensor], fed: Sequence[_Fed]) -> tuple[list[Tensor], list[list[KeysValues]]]:
        """The features of each text's rows, and their keys and values by layer."""
        x = self.head.read(torch.cat(list(windows)))
        features, own = self.head(x, _positions(fed, x.device), _seen(fed), None)
        return list(torch.split(features, [each.rows for each in fed])), _split(own, fed)

    def _pairs(self, tokens: Sequence[int]) -> tuple[Tensor, _Fed]:
        """The windows of the new pairs. tokens: the text."""
        count, device, head = len(self._features), self._embedding.device, self.head
        first = self.pairs + 1
        ids = sent(tokens[first : first + count], device)
        self._line = torch.cat([self._line, pairs_of(functional.embedding(ids, self._embedding), self._features)])
        visible = torch.ones(count, self.pairs + count, dtype=torch.bool, device=device).tril(self.pairs)
        known = [[each] for each in self._known]
        return windows_of(self._line[head.k :], head.memory), _Fed(count, range(first, first + count), known, visible)

    def _keep(self, own: Sequence[KeysValues]) -> None:
        """The keys and values of the new pairs."""
        count = len(self._features)
        self._known = [joined(before, new) for before, new in zip(self._known, own, strict=True)]
        self._line = self._line[count:]
        self._features, self.pairs = self._features[:0], self.pairs + count

    def _glance(self, parents: Sequence[int], first: int) -> _Fed:
        k, count = self.head.k, len(parents)
        visible = self._branches.visible(parents)
        known = [self._branches.known(layer) for layer in range(self.head.size("layers"))]
        return _Fed(k * count, [*range(first, first + k)] * count, known, visible)
