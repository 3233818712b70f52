"""What the methods with a block head share: the context's keys and values, the draft vocabulary, one pass per round.

They differ in how the pass's guesses become a draft: `decoding.methods.blocks.{dflash, ddtree, jetspec, domino,
path_tree}`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from decoding.engine.constraint_cursor import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.heads.head import Head, HeadUnavailable, find_head, to_target
from decoding.heads.modules.block import BlockHead
from decoding.heads.modules.layer import KeysValues
from decoding.heads.tensor_context import TensorContext
from decoding.methods.drafting.committed_states import committed_hidden
from decoding.methods.drafting.draft_vocabulary import DraftVocabulary
from decoding.methods.drafting.trees import Level
from decoding.targets.cache.tensor_table import TensorTable


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


class BlockMethod(Method):
    """Drafts for one sequence with a block head.

    head: a folder, or "auto" for the shipped one. block_size: 0 takes the head's own. A head that is not causal, and so
    guesses its block as a whole, was trained on blocks of that size only.
    """

    kind: ClassVar[str]
    head_type: ClassVar[type[BlockHead]] = BlockHead
    _head: BlockHead

    def __init__(self, head: Head | str = "auto", block_size: int = 0) -> None:
        found = find_head(self.kind, head)
        if not isinstance(found, self.head_type):
            raise HeadUnavailable(f"{self.kind} cannot draft with a head of kind {found.config.kind}")
        if block_size < 0 or block_size == 1:
            raise ValueError(f"block_size must be 0 (the head's own) or 2 and more, not {block_size}")
        self._head = found
        self._masks = (block_size or found.size("block_size")) - 1
        self.taps = found.config.taps

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        tensors = TensorContext.of(context)
        to_target(self._head, tensors)
        self._embedding = tensors.embedding
        self._vocabulary = DraftVocabulary.for_prompt(tensors, self._head.config.frequent, prompt)
        self._context = BlockContext(self._head)
        self._cursor = context.cursor
        if hidden is not None:
            self._context.append(torch.as_tensor(hidden))

    @torch.inference_mode()
    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        if room < 1:
            return Draft()
        count, device = self._context.count, self._embedding.device
        known, position = (torch.tensor([each], device=device) for each in (tokens[count:], count))
        context = self._context
        states = self._head(known, position, self._masks, self._embedding, context.layers(), last=context.last)
        return self.draft(states[0, :room], tokens, self._cursor())

    @abstractmethod
    def draft(self, states: Tensor, tokens: Sequence[int], cursor: ConstraintCursor | None) -> Draft:
        """A draft from the states [depth, hidden] of the positions after `tokens`; `cursor`: the constraint's after them."""

    @torch.inference_mode()
    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self._context.append(torch.as_tensor(committed_hidden(draft, scores, verdict)))

    def levels(self, states: Tensor, tokens: Sequence[int], count: int) -> list[Level]:
        """The best `count` guesses for each position, independent of the other positions."""
        positions = torch.arange(len(tokens), len(tokens) + len(states), device=states.device)
        ranked = self._vocabulary.ranked(self._vocabulary.logits(states), positions)
        return self._vocabulary.levels(ranked, count)
