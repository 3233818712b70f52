"""What a forward is told: sizes and addresses of a model, and of the rows and buffers of one forward; and arrays for it.

Like `team` and `processor` this imports no numba: what is compiled already is called without it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

BLOCK = 64  # outputs: what a weight's rows are padded to
PAGE = 64  # positions whose keys and values lie together
CHUNK = 256  # tokens that the LM head looks at together
MATRICES = 4  # of a layer: qkv, attention's output, gate and up, down
PHASES = 10  # of a layer, at most
GROUP_ROWS = 32  # whose sums are rescaled while they are in the first cache: two rows of matrix tiles
OUTPUTS = GROUP_ROWS // 2  # heads of queries that attention takes at a time, each of them two rows of bytes
GROUP, STEP = 16, 4  # outputs and inputs of 64 bytes of a packed weight
MOST_FOLLOWERS = 64  # a token with more different ones in a text says little of what comes, and takes long to count
STREAM, SQUARES, INNER = range(
    3
)  # what `Job.peaks` holds of each block: largest numbers, sums of squares, largest numbers
# Bytes of a line of the cache, at which the kernels' arrays begin. numpy's own begin 16 bytes after one, so that every
# vector of 64 bytes would lie across two lines, and so would every row of a matrix tile.
LINE = 64


class Model(NamedTuple):
    """Sizes, padded to whole blocks, and addresses."""

    layers: int
    heads: int
    kv_heads: int
    dim: int  # of a head, padded: a multiple of 64
    true_dim: int
    hidden: int  # a multiple of 64
    true_hidden: int
    inner: int  # a multiple of 64
    vocab: int
    matrices: int  # address of each packed matrix: [4 layers + 1], the LM head last
    scales: int  # address of each matrix's fp32 [outputs]
    offsets: int  # of its int32 [outputs]
    biases: int  # of its fp32 [outputs], or 0
    qk_norms: int  # fp32 [layers, 2, dim], or 0
    mask_rank: int  # components of what is added at mask tokens, a multiple of 64; 0: nothing is
    mask_layers: int  # what each layer adds at them: see `mask_layer_bytes`
    turn: int  # fp32 [turned, a multiple of 64]: turns so many numbers of the stream back, for taps
    turned: int
    eps: float  # of the norms


class TextTable(NamedTuple):
    """A text, and the tokens that masks are asked about (`heads.text_guesses`). Counts, and addresses."""

    ids: int  # int64 [size], ascending
    size: int
    places: int  # int64 [size]: of each among the scores of pairs; `common` for tokens that have none
    common: int  # how many tokens have scores of pairs
    text: int  # int32
    weights: int  # fp32 [9]: of what follows what in the text; 0: it has no score


class Job(NamedTuple):
    """One forward: rows of several sequences, and buffers. All int64; addresses but for the counts."""

    layers: int  # 0: the LM head alone, of rows that are quantized already
    rows: int
    x: int  # fp32 [rows, hidden]: embeddings, rotated; the last layer's output in the end
    cos: int  # fp32 [rows, dim / 2]
    sin: int
    slots: int  # int32 [rows]: where a row's keys and values go in its sequence
    pages: int  # int64 [rows]: address of its sequence's list of pages
    masks: int  # uint8 [rows]: whether a row is a mask token's; or 0 where none is
    tiles: int  # int32 [tiles, 3]: part, first row, row after the last
    tile_count: int
    one_part: int  # 1 where all tiles are of one sequence
    parts: int  # int64 [parts, 6]: first row, pages, before, own rows (0: a chain), their stride in bytes, their counts
    tap_count: int
    tap_planes: int  # int32 [layers + 1]: plane of `taps`, or -1
    taps: int  # fp32 [planes, rows, hidden + 64]: the last numbers of a row are nothing
    head_rows: int  # int32 [heads]
    head_count: int
    asked: int  # the first of them, which go through the LM head; the others are quantized for a later call
    head_bytes: int  # uint8 [heads, hidden]
    head_scales: int  # fp32 [heads]
    heats: int  # fp32 [heads]; then seeds and positions, int64
    seeds: int
    positions: int
    threads: int  # that have room in the two tables below, which begin with -inf and 0
    best: int  # fp32 [threads, heads]
    tokens: int  # int64 [threads, heads]; those of the first thread are the choice in the end
    logits: int  # fp32 [heads, vocab] instead of a choice, or 0
    bytes: int  # uint8 [rows, byte_stride]
    byte_stride: int
    peaks: int  # fp32 [3, blocks, rows, a multiple of 16]: of the stream's rows, and of what attention or gates give
    peak_blocks: int
    steps: int  # fp32 [threads, 2, rows, a multiple of 16]: see `row_steps`
    queries: int  # fp32 [rows, heads, dim]
    mixed: int  # fp32 [rows, heads, dim]
    inner: int  # fp32 [rows, inner]
    scratch: int  # of each thread
    scratch_stride: int
    score_stride: int  # bytes of a row of scores
    spreads: (
        int  # fp32 [asked, 2 chunks] of those without temperature: largest logits, sums of exp(logit - largest); or 0
    )


def pack(weight: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """[outputs, inputs], multiples of 64 and 4, as the kernels read it: [outputs / 16, inputs / 4, 16, 4]."""
    outputs, inputs = weight.shape
    split = weight.reshape(outputs // GROUP, GROUP, inputs // STEP, STEP)
    return np.ascontiguousarray(split.transpose(0, 2, 1, 3))


def plane_bytes(dim: int) -> int:
    """What a page has of one layer and head: keys and values in eight bits, and three numbers of each position."""
    return 2 * PAGE * dim + 12 * PAGE


def mask_layer_bytes(rank: int, hidden: int) -> int:
    """Of a layer's two packed weights, [rank, hidden] and [hidden, rank], and a scale and an offset for each output."""
    return 2 * rank * hidden + 8 * (rank + hidden)


def ahead_room(rank: int, hidden: int) -> int:
    """Bytes that `ahead.ahead_rows` needs besides its rows."""
    return 4 * hidden + 12 * (hidden + rank) + LINE


def text_guesses_room(size: int) -> int:
    """Bytes that `heads.text_guesses.best_in_text` needs for logits of so many tokens."""
    return 8 * lanes_of(size) + 12 * MOST_FOLLOWERS


def weight_stride(positions: int) -> int:
    """Of bytes for the positions of whole pages; no multiple of 4 kB, or rows would share places in the cache."""
    return (positions + PAGE - 1) // PAGE * PAGE + LINE


def attention_room(dim: int, positions: int) -> int:
    """Bytes that attention takes besides the scores. dim: of a padded head."""
    return (OUTPUTS + 1) * (8 * max(dim, PAGE) + 2 * dim + 2 * weight_stride(positions))  # a row more: of ones


def table_of(record: tuple[Any, ...]) -> npt.NDArray[np.int64]:
    """The numbers of a record of sizes and addresses, one after the other, for the function that reads it in a kernel.

    A float becomes the bits of an fp32.
    """
    numbers: list[int] = []
    for value in record:
        if isinstance(value, tuple):
            numbers += table_of(value).tolist()
        else:
            numbers.append(int(np.float32(value).view(np.int32)) if isinstance(value, float) else int(value))
    return np.array(numbers, np.int64)


def lanes_of(rows: int) -> int:
    """Numbers of so many rows side by side, in whole vectors."""
    return (rows + GROUP - 1) // GROUP * GROUP


def aligned(shape: int | Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Like `np.empty`."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    room = np.empty(size + LINE, np.uint8)
    first = -room.__array_interface__["data"][0] % LINE
    return room[first : first + size].view(kind).reshape(shape)


def aligned_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Like `array.copy()`."""
    copy = aligned(array.shape, array.dtype)
    copy[...] = array
    return copy
