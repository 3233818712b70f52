"""Heads for the tokens after a row's own, on rows that the LM head reads, when the forward is over."""

import numpy as np

from kernels.cpu.emit import get, get_byte, get_int, kernel, put, read_record
from kernels.cpu.job import Model
from kernels.cpu.quantize import quantize
from kernels.cpu.row_phases import adapted, norm_of

_MIDDLE = np.float32(128.0)


@kernel
def ahead_rows(model_table, rows, scales, heads, count, room):  # type: ignore[no-untyped-def]
    """Quantized rows [count, hidden] and their scales, in place: y becomes y + up @ silu(down @ y) and is normed.

    heads: int32 [count], a row's head among `Model.mask_layers`; below 0 the row stays what it is. Addresses.
    """
    model = read_record(model_table, Model)
    hidden, x, scratch = model.hidden, room, room + 4 * model.hidden
    for row in range(count):
        head, place, scale = get_int(heads, row), rows + row * model.hidden, get(scales, row)
        if head >= 0:
            for i in range(hidden):
                put(x, i, (np.float32(get_byte(place, i)) - _MIDDLE) * scale)
            adapted(model, head, x, scratch)
            step = quantize(x, hidden, place)
            put(scales, row, step * norm_of(model, x))
