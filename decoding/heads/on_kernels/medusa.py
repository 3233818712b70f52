"""Medusa's heads on our kernels."""

from collections.abc import Sequence

import numpy as np

from decoding.engine.method import Context
from decoding.engine.sampling.numpy_choice import Floats
from decoding.engine.target import Array
from decoding.heads.draft_tokens import draft_ids
from decoding.heads.on_kernels.vocabulary import KernelVocabulary, PackedRows
from decoding.heads.on_kernels.weights import HeadWeights, Workspace, padded_rows, silu
from decoding.targets.int8.buffers import Longs


class KernelMedusa:
    """One text's Medusa heads. See `decoding.methods.drafting.head_runtimes.MedusaRuntime`."""

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
