"""Block heads on torch's operators: the context's keys and values, and one pass per round."""

from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.engine.target import Array
from decoding.heads.modules.block import BlockHead
from decoding.heads.modules.layer import KeysValues
from decoding.heads.on_torch.tensor_context import TensorContext
from decoding.heads.on_torch.vocabulary import DraftVocabulary
from decoding.targets.cache.tensor_table import TensorTable
from kernels.transfer import sent


class BlockContext:
    """Keys and values of one sequence's committed tokens in a block head; each token is appended once."""

    def __init__(self, head: BlockHead) -> None:
        self._head, weight = head, head.fc.weight
        self._shape = (head.size("layers"), 2, head.size("kv_heads"))
        planes = self._shape[0] * self._shape[1] * self._shape[2]
        self._rows = TensorTable(planes, (head.size("head_dim"),), weight.dtype, weight.device)
        self.count = 0  # tokens
        self.last: Tensor | None = None  # the newest token's tapped states [1, taps, hidden]

    def append(self, hidden: Tensor) -> None:
        """The next tokens' tapped states [new, taps, hidden]."""
        new = len(hidden)
        if not new:
            return
        self.last = hidden[-1:]
        self._rows.reserve(self.count + new, self.count)
        positions = torch.arange(self.count, self.count + new, device=hidden.device)
        table = self._table()
        for index, pair in enumerate(self._head.context(hidden, positions)):
            for part, values in enumerate(pair):
                table[index, part, :, self.count : self.count + new] = values
        self.count += new

    def layers(self) -> list[KeysValues]:
        """Views of the keys and of the values of each layer, [kv_heads, tokens, head_dim] each."""
        return [(layer[0], layer[1]) for layer in self._table()[:, :, :, : self.count]]

    def _table(self) -> Tensor:
        """[layers, 2, kv_heads, capacity, head_dim]."""
        return self._rows.data.view(*self._shape, *self._rows.data.shape[1:])


class TorchBlock:
    """One text's block head. See `decoding.methods.drafting.head_runtimes.BlockRuntime`."""

    def __init__(self, head: BlockHead, context: TensorContext, prompt: Sequence[int]) -> None:
        self._head, self._embedding = head, context.embedding
        self._vocabulary = DraftVocabulary.for_prompt(context, head.config.frequent, prompt)
        self._context = BlockContext(head)

    @property
    def count(self) -> int:
        return self._context.count

    @torch.inference_mode()
    def append(self, hidden: Array) -> None:
        self._context.append(torch.as_tensor(hidden))

    @torch.inference_mode()
    def states(self, known: Sequence[int], masks: int) -> Tensor:
        context, device = self._context, self._embedding.device
        tokens, position = sent(known, device)[None], torch.full((1,), context.count, device=device)
        states = self._head(tokens, position, masks, self._embedding, context.layers(), last=context.last)
        first: Tensor = states[0]
        return first

    @torch.inference_mode()
    def best(self, states: Tensor, position: int, count: int) -> tuple[Tensor, Tensor]:
        return self._vocabulary.guesses(states, position, count)
