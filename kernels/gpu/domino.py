"""Domino's correction loop (arXiv 2605.29707): a chain of guesses, each corrected by those before it.

The correction's first factor is split: its part from the states is computed beforehand for all positions, and its part from the
encoder is computed with the encoder's own recurrent product. The encoder's input is a row gathered from a table. Corrected
logits never reach memory: each tile of the vocabulary stores only its best.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.ragged import on_triton, padded

_TILE = 64  # tokens
_UNITS = 128  # of the encoder, in a program


@dataclass(frozen=True, slots=True)
class Correction:
    """A Domino head's weights, prepared for all tokens of a vocabulary."""

    inputs: Tensor  # [vocab, 3 * gru]: embeddings times the encoder's input weights (gates r, z, n as in torch)
    recurrent: Tensor  # [rank + 3 * gru, gru]: for the correction's first factor, and for the encoder's gates
    outputs: Tensor  # [vocab, rank]: the second factor

    @property
    def rank(self) -> int:
        return self.outputs.shape[1]


def correct_chain(base: Tensor, ids: Tensor, places: Tensor, start: Tensor, correction: Correction) -> Tensor:
    """The best guesses [depth], one after another: token ids, int64.

    base [depth, size], fp32: logits before the correction, which the first position does not get; -inf forbids a token.
    ids [size], int64: the tokens that may be drafted, in the order of base. places [depth, rank]: the
    states' part of the correction at each position. start [gru]: the encoder's state after the last known token.
    """
    if not on_triton(base):
        return correct_chain_reference(base, ids, places, start, correction)
    (depth, size), rank = base.shape, correction.rank
    tiles = triton.cdiv(size, _TILE)
    chosen = torch.empty(depth, dtype=torch.long, device=base.device)
    best = torch.empty(tiles, dtype=torch.float32, device=base.device)
    best_at = torch.empty(tiles, dtype=torch.int32, device=base.device)
    state, partial = start, (best, best_at, tiles)
    for index in range(depth):
        mixed = torch.mv(correction.recurrent, state)
        _tile_best[(tiles,)](
            base[index],
            ids,
            places[index],
            mixed,
            correction.outputs,
            *partial[:2],
            SIZE=size,
            RANK=rank,
            BLOCK_RANK=padded(rank),
            TILE=_TILE,
            CORRECTED=index > 0,
        )
        following = torch.empty_like(state)
        _choose_and_read[(triton.cdiv(len(state), _UNITS),)](
            *partial[:2],
            ids,
            correction.inputs,
            mixed,
            state,
            following,
            chosen[index:],
            TILES=tiles,
            BLOCK_TILES=padded(tiles),
            RANK=rank,
            GRU=len(state),
            UNITS=_UNITS,
        )
        state = following
    return chosen


def correct_chain_reference(base: Tensor, ids: Tensor, places: Tensor, start: Tensor, correction: Correction) -> Tensor:
    """The same, operator by operator, with the corrected logits in memory."""
    chosen, state, rank = [], start, correction.rank
    for index, logits in enumerate(base):
        mixed = correction.recurrent @ state
        if index:
            logits = logits + correction.outputs[ids] @ torch.nn.functional.silu(places[index] + mixed[:rank])
        chosen.append(ids[logits.argmax()])
        reset_in, update_in, new_in = correction.inputs[chosen[-1]].chunk(3)
        reset, update, new = mixed[rank:].chunk(3)
        candidate = torch.tanh(new_in + torch.sigmoid(reset_in + reset) * new)
        state = candidate + torch.sigmoid(update_in + update) * (state - candidate)
    return torch.stack(chosen)


@triton.jit
def _tile_best(  # type: ignore[no-untyped-def]
    base_ptr,
    ids_ptr,
    place_ptr,
    mixed_ptr,
    outputs_ptr,
    best_ptr,
    best_at_ptr,
    SIZE: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    TILE: tl.constexpr,
    CORRECTED: tl.constexpr,
):
    """One program per tile of the vocabulary: finds the best of its corrected logits."""
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    scores = tl.load(base_ptr + token, mask=token < SIZE, other=float("-inf"))
    if CORRECTED:
        column = tl.arange(0, BLOCK_RANK)
        inside = column < RANK
        factor = tl.load(place_ptr + column, mask=inside, other=0.0).to(tl.float32)
        factor += tl.load(mixed_ptr + column, mask=inside, other=0.0)
        factor = factor * tl.sigmoid(factor)
        row = tl.load(ids_ptr + token, mask=token < SIZE, other=0)
        at = row[:, None] * RANK + column[None, :]
        outputs = tl.load(outputs_ptr + at, mask=(token < SIZE)[:, None] & inside[None, :], other=0.0)
        scores += tl.sum(outputs.to(tl.float32) * factor[None, :], 1)
    best, where = tl.max(scores, 0, return_indices=True)
    tl.store(best_ptr + tl.program_id(0), best)
    tl.store(best_at_ptr + tl.program_id(0), tl.program_id(0) * TILE + where)


@triton.jit
def _choose_and_read(  # type: ignore[no-untyped-def]
    best_ptr,
    best_at_ptr,
    ids_ptr,
    inputs_ptr,
    mixed_ptr,
    state_ptr,
    following_ptr,
    chosen_ptr,
    TILES: tl.constexpr,
    BLOCK_TILES: tl.constexpr,
    RANK: tl.constexpr,
    GRU: tl.constexpr,
    UNITS: tl.constexpr,
):
    """One program per block of encoder units: finds the best of all tiles, and updates its units with that token."""
    tiles = tl.arange(0, BLOCK_TILES)
    best = tl.load(best_ptr + tiles, mask=tiles < TILES, other=float("-inf"))
    token = tl.load(ids_ptr + tl.load(best_at_ptr + tl.argmax(best, 0)))
    tl.store(chosen_ptr, token)
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    inside = unit < GRU
    read = inputs_ptr + token * (3 * GRU) + unit
    kept = mixed_ptr + RANK + unit
    reset = tl.sigmoid(_sum(read, kept, inside))
    update = tl.sigmoid(_sum(read + GRU, kept + GRU, inside))
    new = tl.load(kept + 2 * GRU, mask=inside, other=0.0).to(tl.float32)
    candidate = tl.load(read + 2 * GRU, mask=inside, other=0.0).to(tl.float32) + reset * new
    candidate = 2 * tl.sigmoid(2 * candidate) - 1  # tanh
    state = tl.load(state_ptr + unit, mask=inside, other=0.0).to(tl.float32)
    following = candidate + update * (state - candidate)
    tl.store(following_ptr + unit, following.to(following_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _sum(a_ptr, b_ptr, inside):  # type: ignore[no-untyped-def]
    return tl.load(a_ptr, mask=inside, other=0.0).to(tl.float32) + tl.load(b_ptr, mask=inside, other=0.0)
