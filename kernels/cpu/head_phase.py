"""The last phase of a forward: the LM head over the rows that are asked for."""

from kernels.cpu.emit import get, get_long, kernel, put, put_long
from kernels.cpu.int8_products import products
from kernels.cpu.job import BLOCK, CHUNK, GROUP_ROWS, MATRICES
from kernels.cpu.lm_head import choose
from kernels.cpu.product_phases import rescaled
from kernels.cpu.threads import claim, finish, wait


@kernel
def head_products(sync, phase, model, job, thread, scratch):  # type: ignore[no-untyped-def]
    """Logits of some tokens for all rows at a time: written where they are asked for, else only the best is kept."""
    best, tokens = job.best + 4 * thread * job.head_count, job.tokens + 8 * thread * job.head_count
    pieces = (model.vocab + CHUNK - 1) // CHUNK if job.asked else 0
    piece = claim(sync, phase)
    while piece < pieces:
        _head_chunk(model, job, piece * CHUNK, best, tokens, scratch)
        piece = finish(sync, phase)
    wait(sync, phase, pieces)


@kernel
def _head_chunk(model, job, first, best, tokens, scratch):  # type: ignore[no-untyped-def]
    count, matrix = min(CHUNK, model.vocab - first), MATRICES * model.layers
    outputs = (count + BLOCK - 1) // BLOCK * BLOCK
    weight, sums, out = (
        get_long(model.matrices, matrix) + first * model.hidden,
        scratch,
        scratch + 4 * GROUP_ROWS * CHUNK,
    )
    for start in range(0, job.asked, GROUP_ROWS):
        rows, x = min(GROUP_ROWS, job.asked - start), job.head_bytes + start * model.hidden
        products(x, model.hidden, rows, weight, model.hidden // 4, outputs, sums, 4 * outputs)
        for head in range(start, start + rows):
            mine, scale = sums + 4 * (head - start) * outputs, get(job.head_scales, head)
            if job.logits:
                logits = job.logits + 4 * (head * model.vocab + first)
                rescaled(model, matrix, first, count, mine, scale, logits)
            else:
                rescaled(model, matrix, first, count, mine, scale, out)
                heat, seed = get(job.heats, head), get_long(job.seeds, head)
                choose(out, count, first, heat, seed, get_long(job.positions, head), best, tokens, head)


@kernel
def elect(job):  # type: ignore[no-untyped-def]
    """The best of the threads' best, of equals the first token."""
    for head in range(job.asked):
        for other in range(1, job.threads):
            place = other * job.head_count + head
            score, token, known = get(job.best, place), get_long(job.tokens, place), get(job.best, head)
            if score > known or (score == known and token < get_long(job.tokens, head)):
                put(job.best, head, score)
                put_long(job.tokens, head, token)
