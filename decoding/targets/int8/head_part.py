"""The LM head's rows of some tokens, taken from the packed matrix: a seventieth of the reading for 700 of 49,152 tokens."""

import numpy as np
import numpy.typing as npt

from decoding.engine.target import TokenSet
from decoding.targets.int8.buffers import address
from decoding.targets.int8.packed_model import padded
from kernels.cpu.job import Model, table_of

_GROUP, _STEP = 16, 4  # outputs and inputs of 64 packed bytes


class HeadPart:
    """A model whose LM head has these tokens' rows alone. rows, scales, offsets: of the whole LM head, as they are packed."""

    def __init__(
        self,
        model: Model,
        tokens: TokenSet,
        rows: npt.NDArray[np.int8],
        scales: npt.NDArray[np.float32],
        offsets: npt.NDArray[np.int32],
    ) -> None:
        ids, steps = tokens.ids, model.hidden // _STEP
        count = padded(len(ids))
        whole = rows.view(np.int32).reshape(-1, steps, _GROUP)
        taken = np.zeros((count, steps), np.int32)
        taken[: len(ids)] = whole[ids // _GROUP, :, ids % _GROUP]
        self._rows = np.ascontiguousarray(taken.reshape(-1, _GROUP, steps).transpose(0, 2, 1))
        self._scales, self._offsets = np.zeros(count, np.float32), np.zeros(count, np.int32)
        self._scales[: len(ids)], self._offsets[: len(ids)] = scales[ids], offsets[ids]
        places = (address(self._rows), address(self._scales), address(self._offsets), 0)  # no biases
        self._tables = np.array([[place] for place in places], np.int64)
        names = ("matrices", "scales", "offsets", "biases")
        tables = {name: address(row) for name, row in zip(names, self._tables, strict=True)}
        self.table = table_of(model._replace(layers=0, vocab=len(ids), **tables))
