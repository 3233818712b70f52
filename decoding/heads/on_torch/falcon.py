"""Falcon's drafter on torch's operators."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from decoding.engine.target import Array
from decoding.heads.modules.falcon import FalconHead, pairs_of, windows_of
from decoding.heads.on_torch.branches import Branches, joined, no_rows
from decoding.heads.on_torch.tensor_context import TensorContext
from decoding.heads.on_torch.vocabulary import DraftVocabulary
from kernels.transfer import sent


class TorchFalcon:
    """One text's drafter. See `decoding.methods.drafting.head_runtimes.FalconRuntime`."""

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
