"""EAGLE-3, Falcon, Medusa and small language models on our kernels.

Medusa's heads on our kernels.

A drafter that is a small language model, as a second `CpuModel`.

EAGLE-3's drafter on our kernels: pairs of committed tokens, and behind them those of the round's tree.

Falcon's drafter on our kernels: glances through an LSTM and attention, behind the pairs of committed tokens.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_stored, weight_files
from decoding.engine.method import Context
from decoding.engine.sampler import Floats
from decoding.engine.target import Array
from decoding.heads.kinds import draft_ids
from decoding.heads.modules.drafters import SmallLm
from decoding.heads.on_kernels.layers import ROWS, HeadLayers, Seen, TreeRows, taken_rows
from decoding.heads.on_kernels.weights import (
    HeadWeights,
    KernelVocabulary,
    PackedRows,
    Placed,
    Workspace,
    padded_rows,
    silu,
)
from decoding.targets.int8.buffers import Keys, Longs, Part, address
from decoding.targets.int8.compiled import compiled
from decoding.targets.int8.cpu_target import CpuModel
from decoding.targets.int8.packed_model import kept_packed
from decoding.targets.int8.packing import packed_layers, packed_model
from kernels.cpu.head_linear import Lstm, linear_scratch


class KernelMedusa:
    """One text's Medusa heads. See `decoding.methods.head_runtimes.MedusaRuntime`."""

    def __init__(self, weights: HeadWeights, context: Context, frequent: Sequence[int], prompt: Sequence[int]) -> None:
        self._weights, self._space = weights, Workspace()
        ids = draft_ids(context, frequent, prompt)
        if weights.sizes["own_lm_head"]:
            own = [
                PackedRows(weights.arrays[f"lm_heads.{index}"], np.array(ids))
                for index in range(weights.sizes["heads"])
            ]
            self._vocabularies = [KernelVocabulary(context, ids, self._space, each) for each in own]
        else:
            self._vocabularies = [KernelVocabulary.for_prompt(context, frequent, prompt, self._space)]

    def best(self, state: Array, heads: range, position: int, count: int) -> tuple[Longs, Floats]:
        """The best `count` tokens of some heads after a state [hidden]; the first of them guesses `position`."""
        given = padded_rows(state[None])
        states = np.concatenate([self._state(given, index) for index in heads])
        if not self._weights.sizes["own_lm_head"]:
            return self._vocabularies[0].best(states, position, count)
        each = zip(heads, states, strict=True)
        found = [self._vocabularies[index].best(row[None], position + i, count) for i, (index, row) in enumerate(each)]
        tokens, scores = zip(*found, strict=True)
        return np.concatenate(tokens), np.concatenate(scores)

    def _state(self, x: Floats, index: int) -> Floats:
        """[1, width]: a head's residual block, applied `layers` times."""
        matrix = self._weights.matrix(f"blocks.{index}")
        for _ in range(self._weights.sizes["layers"]):
            x = x + silu(self._space.linear(matrix, x))
        return x


_ROWS = 512  # that are fed at once, at most
_NOTHING = Keys((), (), ())
_MODELS: WeakKeyDictionary[SmallLm, tuple[Array, CpuModel]] = WeakKeyDictionary()  # with the embedding below


class KernelReader:
    """One text's drafter. See `decoding.methods.head_runtimes.Reader`."""

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


class KernelEagle3:
    """One text's drafter. See `decoding.methods.head_runtimes.Eagle3Runtime`."""

    def __init__(self, weights: HeadWeights, context: Context, frequent: Sequence[int], prompt: Sequence[int]) -> None:
        self._weights, self._space = weights, Workspace()
        self._embedding = np.asarray(context.embedding)
        own = weights.arrays.get("lm_head")
        if own is None:
            self._vocabulary = KernelVocabulary.for_prompt(context, frequent, prompt, self._space)
        else:
            ids = sorted(frequent) or range(len(own))
            self._vocabulary = KernelVocabulary(context, ids, self._space, PackedRows(own, np.arange(len(own))))
        self._layers = HeadLayers(weights, self._space, [None])
        self._features = np.empty((0, weights.width), np.float32)  # of tokens that have no pair yet
        self._state, self._tree = self._features, TreeRows()
        self.pairs = 0

    def read(self, hidden: Array) -> None:
        """Take in the states [new, taps, hidden] of the next tokens."""
        states = padded_rows(hidden)
        for first in range(0, len(states), ROWS):
            fused = self._space.linear(self._weights.matrix("fc"), states[first : first + ROWS])
            self._features = np.concatenate([self._features, fused])

    def pair(self, tokens: Sequence[int]) -> None:
        """Feed each new feature, paired with the token after it, once."""
        for first in range(0, len(self._features), ROWS):
            some = self._features[first : first + ROWS]
            start = self.pairs + 1  # position of the first token that is fed
            positions = np.arange(start, start + len(some))
            fed = tokens[start : start + len(some)]
            self._state = self._fed(fed, some, positions, self.pairs, Seen.chain(len(some)))[-1:].copy()
            self.pairs += len(some)
        self._features = self._features[:0]

    def root(self) -> Floats:
        """A new tree, and the state [1, width] at its root."""
        self._tree = TreeRows()
        return self._state

    def grow(self, tokens: Sequence[int], states: Floats, parents: Sequence[int], position: int) -> Floats:
        """The states of drafted tokens at `position`; parents: each one's in `states`, the last that were computed."""
        seen = self._tree.grow(parents)
        return self._fed(tokens, states[list(parents)], np.full(len(tokens), position), self.pairs, seen)

    def best(self, states: Floats, position: int, count: int) -> tuple[Longs, Floats]:
        """The best `count` tokens for `position` after each state, and their log-probabilities."""
        return self._vocabulary.best(self._weights.normed(states, "norm"), position, count, step=0)

    def _fed(self, tokens: Sequence[int], features: Floats, positions: Longs, before: int, seen: Seen) -> Floats:
        """The states of pairs."""
        weights, embedded = self._weights, padded_rows(self._embedding[list(tokens)])
        normed = weights.normed(features, "feature_norm")
        pairs = np.stack([weights.normed(embedded, "token_norm"), normed], 1)
        x = normed.copy() if weights.sizes["norm_before_residual"] else features.copy()
        return self._layers.run(x, pairs, positions, before, seen)


class KernelFalcon:
    """One text's drafter. See `decoding.methods.head_runtimes.FalconRuntime`."""

    def __init__(self, weights: HeadWeights, context: Context, frequent: Sequence[int], prompt: Sequence[int]) -> None:
        self._weights, self._space, sizes = weights, Workspace(), weights.sizes
        self._embedding = np.asarray(context.embedding)
        self._vocabulary = KernelVocabulary.for_prompt(context, frequent, prompt, self._space)
        norms = [f"layers.{index}.input_norm" if index else None for index in range(sizes["layers"])]
        self._layers = HeadLayers(weights, self._space, norms)
        names = [f"lstm_{kind}.{index}" for index in (0, 1) for kind in ("inputs", "recurrent")]
        self._lstm = Placed(Lstm(*(weights.matrix(name).record for name in names)))
        self._run_lstm = compiled("head_linear:lstm_windows")
        self._features = np.empty((0, weights.width), np.float32)  # of tokens that have no pair yet
        before = sizes["memory"] + sizes["k"] - 1
        self._line = np.zeros((before, 2, weights.width), np.float32)  # a text is preceded by zeros
        self.pairs = 0

    def read(self, features: Array) -> None:
        """Take in the features [new, hidden] of the next tokens."""
        self._features = np.concatenate([self._features, padded_rows(features)])

    def pair(self, tokens: Sequence[int]) -> None:
        """Feed each new feature, paired with the token after it, once."""
        k = self._weights.sizes["k"]
        for start in range(0, len(self._features), ROWS):
            some = self._features[start : start + ROWS]
            first, count = self.pairs + 1, len(some)
            line = np.concatenate([self._line, self._pairs(tokens[first : first + count], some)])
            positions = np.arange(first, first + count)
            self._layers.run(self._read(line[None, k:]), None, positions, self.pairs, Seen.chain(count))
            self._line, self.pairs = line[count:], self.pairs + count
        self._features = self._features[:0]

    def root(self) -> Floats:
        """A new tree, and the line [1, ...] of pairs at its root: the last k and as many before them as the LSTM reads."""
        k = self._weights.sizes["k"]
        self._tree = TreeRows(k, hidden=k)  # behind the last pairs, which are fed anew
        return self._line[None]

    def glance(self, line: Floats, parents: Sequence[int], first: int) -> Floats:
        """Features [glances, k, width] of the positions after each line's last k pairs, which are at `first` and after.

        parents: indices in the previous level.
        """
        k = self._weights.sizes["k"]
        positions = np.tile(np.arange(first, first + k), len(line))
        seen = self._tree.grow(parents)
        return self._layers.run(self._read(line), None, positions, self.pairs - k, seen).reshape(len(line), k, -1)

    def following(self, line: Floats, features: Floats, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Floats:
        """The lines of paths that go on: from the lines `rows`, with the `tokens` [paths, k] guessed from their features."""
        k, flat = self._weights.sizes["k"], [token for path in tokens for token in path]
        new = self._pairs(flat, features[list(rows)].reshape(len(flat), -1))
        return np.concatenate([line[list(rows)][:, k:], new.reshape(len(rows), k, *new.shape[1:])], 1)

    def best(self, features: Floats, position: int, count: int) -> tuple[Longs, Floats]:
        """The best `count` tokens from features [k, width]; row i guesses `position + i`."""
        return self._vocabulary.best(features, position, count)

    def _pairs(self, tokens: Sequence[int], features: Floats) -> Floats:
        """[pairs, 2, width] from tokens and the features of the tokens before them."""
        return np.stack([padded_rows(self._embedding[list(tokens)]), features], 1)

    def _read(self, lines: Floats) -> Floats:
        """The LSTM's output [lines * windows, width] after every window of `memory` pairs of lines [lines, pairs, 2, width]."""
        memory, (count, length) = self._weights.sizes["memory"], lines.shape[:2]
        windows, inner = count * (length - memory + 1), self._lstm.record.recurrent.inputs
        gates = self._space.linear(self._weights.matrix("lstm_inputs.0"), lines.reshape(count * length, -1))
        out = np.empty((windows, inner), np.float32)
        room = 4 * windows * 11 * inner + linear_scratch(windows, inner)
        self._run_lstm(self._lstm.at, address(gates), count, length, memory, address(out), self._space.scratch(room))
        if "out.weight" in self._weights.arrays:
            return self._space.linear(self._weights.matrix("out"), out)
        return out
