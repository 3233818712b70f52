"""Block heads on torch's operators: the context's keys and values, and one pass per round."""

from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.engine.target import Array
from decoding.heads.modules.block import BlockHead, TextBlock
from decoding.heads.modules.layer import KeysValues
from decoding.heads.on_torch.tensor_context import TensorContext
from decoding.heads.on_torch.vocabulary import DraftVocabulary
from decoding.targets.cache.tensor_table import TensorTable
from kernels.transfer import sent


class BlockContext:
    """Keys and values of one sequence's committed tokens in a block head; each token is appended once."""

    def __init__(self, head: BlockHead) -> None:
        self.head, weight = head, head.fc.weight
        self._shape = (head.size("layers"), 2, head.size("kv_heads"))
        planes = self._shape[0] * self._shape[1] * self._shape[2]
        self._rows = TensorTable(planes, (head.size("head_dim"),), weight.dtype, weight.device)
        self.count = 0  # tokens
        self.last = weight.new_zeros(1, len(head.config.taps), head.config.hidden)  # the newest token's tapped states

    def append(self, hidden: Tensor) -> None:
        """The next tokens' tapped states [new, taps, hidden]."""
        append_together([self], [hidden])

    def layers(self) -> list[KeysValues]:
        """Views of the keys and of the values of each layer, [kv_heads, tokens, head_dim] each."""
        return [(layer[0], layer[1]) for layer in self._table()[:, :, :, : self.count]]

    def positions(self, new: int) -> Tensor:
        """[new] of the next tokens."""
        return torch.arange(self.count, self.count + new, device=self.last.device)

    def keep(self, hidden: Tensor, layers: Sequence[KeysValues]) -> None:
        """What was computed for the next tokens."""
        end = self.count + len(hidden)
        self._rows.reserve(end, self.count)
        table = self._table()
        for index, pair in enumerate(layers):
            for part, values in enumerate(pair):
                table[index, part, :, self.count : end] = values
        self.count, self.last = end, hidden[-1:]

    def _table(self) -> Tensor:
        """[layers, 2, kv_heads, capacity, head_dim]."""
        return self._rows.data.view(*self._shape, *self._rows.data.shape[1:])


def append_together(contexts: Sequence[BlockContext], new: Sequence[Tensor]) -> None:
    """Append the next tokens' tapped states [new, taps, hidden] of each context, all of one head."""
    both = [(context, hidden) for context, hidden in zip(contexts, new, strict=True) if len(hidden)]
    if not both:
        return
    sizes, head = [len(hidden) for _, hidden in both], both[0][0].head
    positions = torch.cat([context.positions(len(hidden)) for context, hidden in both])
    layers = head.context(torch.cat([hidden for _, hidden in both]), positions)
    parts = [
        list(zip(torch.split(keys, sizes, 1), torch.split(values, sizes, 1), strict=True)) for keys, values in layers
    ]
    for (context, hidden), *own in zip(both, *parts, strict=True):
        context.keep(hidden, own)


class TorchBlock:
    """One text's block head. See `decoding.methods.drafting.head_runtimes.BlockRuntime`."""

    def __init__(self, head: BlockHead, context: TensorContext, prompt: Sequence[int]) -> None:
        self.head = self._head = head
        self._embedding = context.embedding
        self._vocabulary = DraftVocabulary.for_prompt(context, head.config.frequent, prompt)
        self._context = BlockContext(head)
        self._unread: list[Tensor] = []  # the newest states, which the next pass takes in
        self.count = 0

    def append(self, hidden: Array) -> None:
        self._unread.append(torch.as_tensor(hidden))
        self.count += len(hidden)

    def states(self, known: Sequence[int], masks: int) -> Tensor:
        return self.together([(self, known, masks)])[0]

    @torch.inference_mode()
    def together(self, blocks: "Sequence[tuple[TorchBlock, Sequence[int], int]]") -> list[Tensor]:
        texts = [text for text, _, _ in blocks]
        append_together([text._context for text in texts], [text._taken() for text in texts])
        tokens = sent([token for _, known, _ in blocks for token in known], self._embedding.device)
        each = zip(texts, torch.split(tokens, [len(known) for _, known, _ in blocks]), blocks, strict=True)
        asked = [
            TextBlock(known, masks, text._context.layers(), text._context.last) for text, known, (_, _, masks) in each
        ]
        return self._head.of_texts(asked, self._embedding)

    @torch.inference_mode()
    def best(self, states: Tensor, position: int, count: int) -> tuple[Tensor, Tensor]:
        return self._vocabulary.guesses(states, position, count)

    def _taken(self) -> Tensor:
        """The newest states [new, taps, hidden], which are no longer unread."""
        taken = torch.cat([self._context.last[:0], *self._unread])
        self._unread = []
        return taken
