"""The sampler's choice for many tokens at once, with counter-based noise.

The noise is Philox4x32-10 (Salmon et al., SC 2011) and Gumbel noise made from it. A noise value is a pure function of (seed,
position, token): there is no generator state, so the text does not depend on the order in which positions are visited. The
reference is in plain torch; its arithmetic is on 32-bit words held in int64, because torch has no uint32 product.

The choice is argmax of logits, or of logits / temperature + noise, in two launches. The first reads every logit once and bounds
each tile's best from above, with noise in fp32. The second computes the noise as the reference does, in fp64, for the few tiles
that could hold a row's best, so the tokens are exactly the same.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.philox import gumbel
from kernels.gpu.ragged import on_triton, padded

_TILE = 1024  # tokens
_SLACK = tl.constexpr(1e-3)  # above the rounding of the fp32 bound and of logit + noise


def choose(
    logits: Tensor, temperature: Tensor, seed: Tensor, position: Tensor, allowed: Tensor | None = None
) -> Tensor:
    """Token ids [rows], int64, from logits [rows, vocab], contiguous.

    temperature [rows], fp32: 0 takes the first of the largest logits. seed, position [rows], int64: the noise's key, and the
    token's position in the text. allowed [rows, vocab], bool: other tokens are never chosen; each row must allow at least one.
    """
    if not on_triton(logits):
        return choose_reference(logits, temperature, seed, position, allowed)
    rows, vocab = logits.shape
    tiles = triton.cdiv(vocab, _TILE)
    bounds = torch.empty(rows, tiles, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(rows, tiles, dtype=torch.long, device=logits.device)
    chosen = torch.empty(rows, dtype=torch.long, device=logits.device)
    given = logits if allowed is None else allowed.view(torch.uint8)
    common = logits, given, temperature, seed, position, bounds, tokens
    sizes = {"VOCAB": vocab, "TILE": _TILE, "MASKED": allowed is not None}
    _bound[(tiles, rows)](*common, **sizes)
    _decide[(rows,)](*common, chosen, TILES=tiles, BLOCK=padded(tiles), **sizes)
    return chosen


def choose_reference(
    logits: Tensor, temperature: Tensor, seed: Tensor, position: Tensor, allowed: Tensor | None = None
) -> Tensor:
    """The same choice row by row, with noise for the whole vocabulary."""
    logits = logits.float() if allowed is None else logits.float().masked_fill(~allowed, float("-inf"))
    ids = torch.arange(logits.shape[1], device=logits.device)
    keys = zip(logits, temperature, seed.tolist(), position.tolist(), strict=True)
    return torch.stack([(row / heat + gumbel(key, at, ids) if heat else row).argmax() for row, heat, key, at in keys])


@triton.jit
def _scaled(logits_ptr, allowed_ptr, heat, row, token, VOCAB: tl.constexpr, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Logits of a tile divided by the temperature, with IEEE division, so that they equal the reference's."""
    inside = token < VOCAB
    if MASKED:
        inside = inside & (tl.load(allowed_ptr + row * VOCAB + token, mask=inside, other=0) != 0)
    logits = tl.load(logits_ptr + row * VOCAB + token, mask=inside, other=float("-inf")).to(tl.float32)
    return tl.div_rn(logits, tl.where(heat > 0, heat, 1.0) + tl.zeros_like(logits))


@triton.jit
def _words(seed, position, token):  # type: ignore[no-untyped-def]
    """The top 24 bits of Philox4x32-10's first word: counter (token, position), key seed."""
    zero = tl.zeros_like(token).to(tl.uint32)
    first, _, _, _ = tl.philox(seed, token.to(tl.uint32), zero + position.to(tl.uint32), zero, zero)
    return first >> 8


@triton.jit
def _bound(  # type: ignore[no-untyped-def]
    logits_ptr,
    allowed_ptr,
    heat_ptr,
    seed_ptr,
    position_ptr,
    bounds_ptr,
    tokens_ptr,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """One program per tile of a row. -log(-log u) <= -log(1 - u), and 1 - u is exact in fp32 if it is small."""
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    token = tile * TILE + tl.arange(0, TILE)
    heat = tl.load(heat_ptr + row)
    scores = _scaled(logits_ptr, allowed_ptr, heat, row, token, VOCAB, MASKED)
    if heat > 0:
        words = _words(tl.load(seed_ptr + row), tl.load(position_ptr + row), token)
        left = (33554431 - 2 * words.to(tl.int32)).to(tl.float32) * (1.0 / 33554432)  # (2^25 - 1 - 2 w) / 2^25
        scores -= tl.log(left)
    best, where = tl.max(scores, 0, return_indices=True)
    at = row * tl.num_programs(0) + tile
    tl.store(bounds_ptr + at, best)
    tl.store(tokens_ptr + at, (tile * TILE + where).to(tl.int64))


@triton.jit
def _decide(  # type: ignore[no-untyped-def]
    logits_ptr,
    allowed_ptr,
    heat_ptr,
    seed_ptr,
    position_ptr,
    bounds_ptr,
    tokens_ptr,
    chosen_ptr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """One program per row. Tiles are examined from the best bound down, until no other can hold the best: one or two of 149."""
    row = tl.program_id(0).to(tl.int64)
    tiles = tl.arange(0, BLOCK)
    bounds = tl.load(bounds_ptr + row * TILES + tiles, mask=tiles < TILES, other=float("-inf"))
    heat = tl.load(heat_ptr + row)
    chosen = tl.load(tokens_ptr + row * TILES + tl.argmax(bounds, 0))
    if heat > 0:
        seed, position = tl.load(seed_ptr + row), tl.load(position_ptr + row)
        best = float("-inf")
        highest = tl.max(bounds, 0)
        while (highest >= best - _SLACK) & (highest > float("-inf")):
            tile = tl.argmax(bounds, 0)
            token = tile * TILE + tl.arange(0, TILE)
            uniform = (_words(seed, position, token).to(tl.float64) + 0.5) * (1.0 / 16777216)
            noise = -tl.log(-tl.log(uniform))
            scores = _scaled(logits_ptr, allowed_ptr, heat, row, token, VOCAB, MASKED) + noise.to(tl.float32)
            value, where = tl.max(scores, 0, return_indices=True)
            found = (tile * TILE + where).to(tl.int64)
            better = (value > best) | ((value == best) & (found < chosen))
            chosen = tl.where(better, found, chosen)
            best = tl.maximum(best, value)
            bounds = tl.where(tiles == tile, float("-inf"), bounds)
            highest = tl.max(bounds, 0)
    tl.store(chosen_ptr + row, chosen)
