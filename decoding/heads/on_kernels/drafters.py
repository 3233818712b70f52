"""EAGLE-3, Falcon, Medusa and small language models on our kernels; the last are a second `CpuModel`."""

from collections.abc import Sequence
from dataclasses import dataclass
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
from decoding.heads.on_kernels.layers import ROWS, Fed, HeadLayers, Seen, TreeRows, taken_rows
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

_Guesses = tuple[Longs, Floats]


class KernelMedusa:
    """One text's Medusa heads. See `decoding.methods.head_runtimes.MedusaRuntime`."""

    def __init__(self, weights: HeadWeights, context: Context, frequent: Sequence[int], prompt: Sequence[int]) -> None:
        self.head = self._weights = weights
        self._space = Workspace()
        ids = draft_ids(context, frequent, prompt)
        if weights.sizes["own_lm_head"]:
            own = [
                PackedRows(weights.arrays[f"lm_heads.{index}"], np.array(ids))
                for index in range(weights.sizes["heads"])
            ]
            self._vocabularies = [KernelVocabulary(context, ids, self._space, each) for each in own]
        else:
            self._vocabularies = [KernelVocabulary.for_prompt(context, frequent, prompt, self._space)]

    def best_of(self, asked: "Sequence[tuple[KernelMedusa, Array, range, int, int]]") -> list[_Guesses]:
        given, states = (
            padded_rows(np.stack([np.asarray(state) for _, state, *_ in asked])),
            [list[Floats]() for _ in asked],
        )
        for index in range(self._weights.sizes["heads"]):
            wanting = [place for place, (_, _, heads, _, _) in enumerate(asked) if index in heads]
            for place, row in zip(wanting, self._states(given[wanting], index) if wanting else (), strict=True):
                states[place].append(row)
        return [
            text._best(np.stack(own), heads, position, count)
            for own, (text, _, heads, position, count) in zip(states, asked, strict=True)
        ]

    def _best(self, states: Floats, heads: range, position: int, count: int) -> _Guesses:
        if not self._weights.sizes["own_lm_head"]:
            return self._vocabularies[0].best(states, position, count)
        each = zip(heads, states, strict=True)
        found = [self._vocabularies[index].best(row[None], position + i, count) for i, (index, row) in enumerate(each)]
        tokens, scores = zip(*found, strict=True)
        return np.concatenate(tokens), np.concatenate(scores)

    def _states(self, x: Floats, index: int) -> Floats:
        """[texts, width]: a head's residual block, applied `layers` times."""
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
            self.head, frequent = _small_model(source, context.embedding), source.config.frequent
            self._vocabulary = KernelVocabulary.for_prompt(context, frequent, prompt, space)
        else:
            self.head, rows = _other_model(source)
            self._vocabulary = KernelVocabulary(context, draft_ids(context, (), prompt), space, rows)
        self._kept = taken_rows(context.draft_caches, source, self.head.new_pages)
        self._pages, self._rows = self._kept.pages, self._kept.count

    @property
    def kept(self) -> int:
        return self._kept.count

    @property
    def vocab_size(self) -> int:
        return self.head.config.vocab_size

    def after(
        self, asked: "Sequence[tuple[KernelReader, Sequence[int], bool, int, int]]"
    ) -> list[tuple[Floats, _Guesses | None]]:
        parts = [text.read(tokens, keep) for text, tokens, keep, _, _ in asked]
        *_, hidden = self.head.forward(parts, _NOTHING, (self.head.config.layers,))
        assert hidden is not None
        ends = np.cumsum([len(part.tokens) for part in parts])
        states = [padded_rows(hidden[0, end - 1 : end]) for end in ends]
        return [
            (state, text._vocabulary.best(state, position, count) if count else None)
            for state, (text, _, _, position, count) in zip(states, asked, strict=True)
        ]

    def read(self, tokens: Sequence[int], keep: bool) -> Part:
        """Read all but the last `_ROWS` tokens, at most; those are the text's part in the next forward."""
        start = self.kept if keep else self._rows
        self._rows = start + len(tokens)
        self._pages.reserve(self._rows)
        last = (len(tokens) - 1) // _ROWS * _ROWS
        for first in range(0, last, _ROWS):
            self.head.forward([Part(self._pages, start + first, tokens[first : first + _ROWS], None, ())], _NOTHING, ())
        if keep:
            self._kept.count = self._rows
        return Part(self._pages, start + last, tokens[last:], None, ())


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
        self.head = self._weights = weights
        self._space = Workspace()
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

    def paired(
        self, asked: "Sequence[tuple[KernelEagle3, Sequence[int], int]]"
    ) -> list[tuple[Floats, _Guesses | None]]:
        while new := [(text, tokens) for text, tokens, _ in asked if len(text._features)]:
            pairs = [text._next(tokens) for text, tokens in new]
            for (text, _), states in zip(new, self._fed(pairs), strict=True):
                text._state = states[-1:].copy()
                text.pairs += len(states)
        for text, _, _ in asked:
            text._tree = TreeRows()
        return [text._after(text._state, text.pairs + 1, count if text.pairs else 0) for text, _, count in asked]

    def grown(
        self, asked: "Sequence[tuple[KernelEagle3, Sequence[int], Floats, Sequence[int], int, int]]"
    ) -> list[tuple[Floats, _Guesses | None]]:
        pairs = [
            _Pairs(
                tokens,
                states[list(parents)],
                [position] * len(tokens),
                text._part(len(tokens), text._tree.grow(parents)),
            )
            for text, tokens, states, parents, position, _ in asked
        ]
        return [
            text._after(states, position + 1, count)
            for states, (text, _, _, _, position, count) in zip(self._fed(pairs), asked, strict=True)
        ]

    def _after(self, states: Floats, position: int, count: int) -> tuple[Floats, _Guesses | None]:
        """The states, and the best tokens for the position after them."""
        if not count:
            return states, None
        return states, self._vocabulary.best(self._weights.normed(states, "norm"), position, count, step=0)

    def _next(self, tokens: Sequence[int]) -> "_Pairs":
        """The next new features, each with the token after it. tokens: the text."""
        some, self._features = self._features[:ROWS], self._features[ROWS:]
        start, count = self.pairs + 1, len(some)  # start: position of the first token that is fed
        part = self._part(count, Seen.chain(count))
        return _Pairs(tokens[start : start + count], some, range(start, start + count), part)

    def _part(self, rows: int, seen: Seen) -> Fed:
        return Fed(self._layers, rows, self.pairs, seen)

    def _fed(self, pairs: "Sequence[_Pairs]") -> list[Floats]:
        """The states of each text's pairs."""
        weights, features = self._weights, np.concatenate([each.features for each in pairs])
        embedded = padded_rows(self._embedding[[token for each in pairs for token in each.tokens]])
        normed = weights.normed(features, "feature_norm")
        both = np.stack([weights.normed(embedded, "token_norm"), normed], 1)
        x = normed.copy() if weights.sizes["norm_before_residual"] else features
        positions = np.array([position for each in pairs for position in each.positions])
        states = self._layers.run_together(x, both, positions, [each.part for each in pairs])
        return np.split(states, np.cumsum([each.part.rows for each in pairs])[:-1])


@dataclass(frozen=True, slots=True)
class _Pairs:
    """What one text feeds to a pass of EAGLE-3's drafter."""

    tokens: Sequence[int]
    features: Floats
    positions: Sequence[int]
    part: Fed


class KernelFalcon:
    """One text's drafter. See `decoding.methods.head_runtimes.FalconRuntime`."""

    def __init__(self, weights: HeadWeights, context: Context, frequent: Sequence[int], prompt: Sequence[int]) -> None:
        self.head = self._weights = weights
        self._space, sizes = Workspace(), weights.sizes
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
        self.pairs, self._tree = 0, TreeRows()

    def read(self, features: Array) -> None:
        """Take in the features [new, hidden] of the next tokens."""
        self._features = np.concatenate([self._features, padded_rows(features)])

    def paired(self, asked: "Sequence[tuple[KernelFalcon, Sequence[int]]]") -> list[Floats]:
        before = self._weights.sizes["memory"] - 1
        while new := [(text, tokens) for text, tokens in asked if len(text._features)]:
            lines = [text._next(tokens) for text, tokens in new]  # each with what the LSTM reads before it
            x = np.concatenate([self._read(line[None]) for line in lines])
            counts = [len(line) - before for line in lines]
            each = list(zip(counts, [text for text, _ in new], strict=True))
            fed = [Fed(text._layers, count, text.pairs, Seen.chain(count)) for count, text in each]
            positions = np.concatenate([np.arange(text.pairs + 1, text.pairs + 1 + count) for count, text in each])
            self._layers.run_together(x, None, positions, fed)
            for count, text in each:
                text.pairs += count
        k = self._weights.sizes["k"]
        for text, _ in asked:
            text._tree = TreeRows(k, hidden=k)  # behind the last pairs, which are fed anew
        return [text._line[None] for text, _ in asked]

    def glanced(
        self, asked: "Sequence[tuple[KernelFalcon, Floats, Sequence[int], int, int]]"
    ) -> list[tuple[Floats, _Guesses]]:
        k = self._weights.sizes["k"]
        fed = [
            Fed(text._layers, k * len(line), text.pairs - k, text._tree.grow(parents))
            for text, line, parents, _, _ in asked
        ]
        positions = np.concatenate([np.tile(np.arange(first, first + k), len(line)) for _, line, _, first, _ in asked])
        x = self._read(np.concatenate([line for _, line, *_ in asked]))
        rows = np.split(self._layers.run_together(x, None, positions, fed), np.cumsum([each.rows for each in fed])[:-1])
        found = []
        for features, (text, line, _, first, count) in zip(rows, asked, strict=True):
            features = features.reshape(len(line), k, -1)
            each = [text._vocabulary.best(one, first + k, count) for one in features]
            found.append(
                (features, (np.concatenate([ids for ids, _ in each]), np.concatenate([own for _, own in each])))
            )
        return found

    def _next(self, tokens: Sequence[int]) -> Floats:
        """The next new pairs and those before them that the LSTM reads, and keep the line. tokens: the text."""
        some, self._features = self._features[:ROWS], self._features[ROWS:]
        first = self.pairs + 1
        line = np.concatenate([self._line, self._pairs(tokens[first : first + len(some)], some)])
        self._line = line[len(some) :]
        return line[self._weights.sizes["k"] :]

    def following(self, line: Floats, features: Floats, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Floats:
        """The lines of paths that go on: from the lines `rows`, with the `tokens` [paths, k] guessed from their features."""
        k, flat = self._weights.sizes["k"], [token for path in tokens for token in path]
        new = self._pairs(flat, features[list(rows)].reshape(len(flat), -1))
        return np.concatenate([line[list(rows)][:, k:], new.reshape(len(rows), k, *new.shape[1:])], 1)

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
