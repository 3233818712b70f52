"""Measures how long a target's forward takes on this machine, by context and draft size.

Measure the embedded model at 400 tokens of context:

    python -c "from decoding.serving.load import load_text_decoder as load; \\
    from decoding.timing.forward_timing import time_forward; \\
    print(time_forward(load().target, [400], [0, 7, 15, 31, 63]))"
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter

from decoding.engine.draft import Draft
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import AnyTarget, TargetSequence, Work

_SEED = 0
_SETTLING = (
    2  # forwards before each measured one: a row after one of many rows takes an eighth longer than after its like
)


def time_forward(
    target: AnyTarget, contexts: Sequence[int], nodes: Sequence[int], repeats: int = 15
) -> dict[tuple[int, int], float]:
    """Median milliseconds of a `score` for each (context, nodes): `context` cached tokens, one pending, a chain of `nodes`.

    The target's greedy choices are included, the commit is not. All sizes are measured in turn, `repeats` times, each after
    forwards of its own size as in decoding, so that a slow moment of the machine affects them equally. Raises ValueError
    if a size exceeds the target's length.
    """
    measured: dict[tuple[int, int], list[float]] = {(context, count): [] for context in contexts for count in nodes}
    for context in contexts:
        with _prepared(target, context, max(nodes, default=0)) as (sequence, drafts):
            for _ in range(1 + repeats):
                for count in nodes:
                    times = [_score_ms(target, sequence, drafts[:count]) for _ in range(_SETTLING + 1)]
                    measured[context, count].append(times[-1])
    return {size: median(times[1:]) for size, times in measured.items()}  # the first of each warms up


def time_side_by_side(
    targets: Mapping[str, AnyTarget], context: int, nodes: Sequence[int], repeats: int = 15
) -> dict[tuple[str, int], float]:
    """Least milliseconds of a `score` for each (target, nodes), as in `time_forward`: minima disregard other work.

    The targets take turns, so that a slow moment of the machine hits all alike. All of them run on the caller's thread.
    """
    least: dict[tuple[str, int], float] = {}
    with ExitStack() as opened:
        ready = {name: opened.enter_context(_prepared(each, context, max(nodes))) for name, each in targets.items()}
        for count in (count for count in nodes for _ in range(1 + repeats)):
            for name, (sequence, drafts) in ready.items():
                ms = _score_ms(targets[name], sequence, drafts[:count])
                least[name, count] = min(ms, least.get((name, count), ms))
    return least


@contextmanager
def _prepared(target: AnyTarget, context: int, nodes: int) -> Iterator[tuple[TargetSequence, list[int]]]:
    """A sequence with `context` random tokens cached, and random tokens for drafts."""
    if not 0 < context <= target.max_length - 1 - nodes:
        raise ValueError(
            f"a context of {context} and {nodes} nodes do not fit: the model takes {target.max_length} tokens"
        )
    draw = random.Random(_SEED)
    tokens = draw.choices(range(target.vocab_size), k=context)
    sequence = target.open(tokens, Sampler())
    try:
        if pending := tokens[sequence.cached :]:
            target.score([Work(sequence, pending, Draft())])
            target.commit(sequence, [])
        yield sequence, draw.choices(range(target.vocab_size), k=nodes)
    finally:
        target.close(sequence)


def _score_ms(target: AnyTarget, sequence: TargetSequence, chain: Sequence[int]) -> float:
    start = perf_counter()
    target.score([Work(sequence, [0], Draft.chain(chain))])
    return 1e3 * (perf_counter() - start)
