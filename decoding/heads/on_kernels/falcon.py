"""Falcon's drafter on our kernels: glances through an LSTM and attention, behind the pairs of committed tokens."""

from collections.abc import Sequence

import numpy as np

from decoding.engine.method import Context
from decoding.engine.sampling.numpy_choice import Floats
from decoding.engine.target import Array
from decoding.heads.on_kernels.layers import ROWS, HeadLayers, Seen
from decoding.heads.on_kernels.tree_rows import TreeRows
from decoding.heads.on_kernels.vocabulary import KernelVocabulary
from decoding.heads.on_kernels.weights import HeadWeights, Placed, Workspace, padded_rows
from decoding.targets.int8.buffers import Longs, address
from decoding.targets.int8.compiled import compiled
from kernels.cpu.heads.linear import linear_scratch
from kernels.cpu.heads.recurrent import Lstm


class KernelFalcon:
    """One text's drafter. See `decoding.methods.drafting.head_runtimes.FalconRuntime`."""

    def __init__(self, weights: HeadWeights, context: Context, frequent: Sequence[int], prompt: Sequence[int]) -> None:
        self._weights, self._space, sizes = weights, Workspace(), weights.sizes
        self._embedding = np.asarray(context.embedding)
        self._vocabulary = KernelVocabulary.for_prompt(context, frequent, prompt, self._space)
        norms = [f"layers.{index}.input_norm" if index else None for index in range(sizes["layers"])]
        self._layers = HeadLayers(weights, self._space, norms)
        names = [f"lstm_{kind}.{index}" for index in (0, 1) for kind in ("inputs", "recurrent")]
        self._lstm = Placed(Lstm(*(weights.matrix(name).record for name in names)))
        self._run_lstm = compiled("heads.recurrent:lstm_windows")
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
