"""Units of work that the pieces of a matrix become: every row of every piece is one thread's, and threads get as much."""

from collections import Counter
from types import SimpleNamespace

import pytest

from kernels.cpu import phases
from kernels.cpu.threads import first_own

QKV, OTHER = 4, 5  # numbers of matrices
units_of, unit_of = phases._units_of.py_func, phases._unit_of.py_func


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("pieces", [1, 9, 15, 24])
@pytest.mark.parametrize("rows", [1, 7, 8, 17, 130])
def test_every_row_of_every_piece_is_in_one_unit(
    threads: int, pieces: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "_units_of", units_of)
    job = SimpleNamespace(rows=rows, threads=threads)
    for matrix in (QKV, OTHER):
        units, done, work = units_of(job, matrix, pieces), Counter[tuple[int, int]](), Counter[int]()
        for thread in range(threads):
            for unit in range(first_own.py_func(units, thread, threads), first_own.py_func(units, thread + 1, threads)):
                piece, begin, end = unit_of(job, matrix, pieces, unit)
                done.update((piece, row) for row in range(begin, end))
                work[thread] += end - begin
        assert done == Counter((piece, row) for piece in range(pieces) for row in range(rows))
        if matrix == OTHER and rows >= 4 * threads:
            assert max(work.values()) - min(work[thread] for thread in range(threads)) <= pieces % threads
        else:
            assert units == pieces
