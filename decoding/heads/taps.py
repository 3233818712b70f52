"""Which hidden states of a target heads read by default: few and shared, because they are stored for training."""


def spread_taps(layers: int, count: int) -> tuple[int, ...]:
    """`count` taps, evenly spread from the 2nd layer's output to the last but one's (DFlash's choice, arXiv 2602.06036).

    There are fewer if the target has fewer layers. The three that EAGLE-3 reads are the first, the middle and the last of five.
    """
    first, last = min(2, layers), max(layers - 2, 1)
    taps = (first + round(i * (last - first) / max(count - 1, 1)) for i in range(count))
    return tuple(sorted(set(taps)))


def all_taps(layers: int) -> tuple[int, ...]:
    """The taps that are stored so that every kind of head can be trained: five layers, and the final norm's output."""
    return tuple(sorted({*spread_taps(layers, 5), *spread_taps(layers, 3), layers}))
