"""Hidden states of a shared beginning are read where they are, and nobody writes into another's rows."""

import numpy as np
import pytest

from decoding.targets.kv_cache import StateTable, TokenTable

PLANES, WIDTH = 2, 3


def empty() -> TokenTable[np.ndarray]:  # type: ignore[type-arg]
    return TokenTable(PLANES, (WIDTH,), lambda shape: np.full(shape, np.nan, np.float32))


def rows(*values: int) -> np.ndarray:  # type: ignore[type-arg]
    """[planes, rows, width]: each row holds its value, in the second plane its negative."""
    one = np.repeat(np.array(values, np.float32)[:, None], WIDTH, 1)
    return np.stack([one, -one])


def write(table: StateTable, first: int, *values: int) -> None:  # type: ignore[type-arg]
    table.reserve(first + len(values), first)
    for plane, states in enumerate(rows(*values)):
        table.write(plane, first, states)


@pytest.fixture
def whole() -> StateTable:  # type: ignore[type-arg]
    table: StateTable[np.ndarray] = StateTable(empty())  # type: ignore[type-arg]
    write(table, 0, 1, 2, 3, 4)
    return table


def test_a_beginning_is_shared(whole: StateTable) -> None:  # type: ignore[type-arg]
    one, other = (StateTable(empty(), whole.rows(3)) for _ in range(2))
    assert np.shares_memory(one.rows(3), whole.rows(4))
    write(one, 3, 8, 9)
    write(other, 3, 6)
    np.testing.assert_array_equal(whole.rows(4), rows(1, 2, 3, 4))
    np.testing.assert_array_equal(one.rows(5), rows(1, 2, 3, 8, 9))
    np.testing.assert_array_equal(other.rows(4), rows(1, 2, 3, 6))
    np.testing.assert_array_equal(one.rows(2), rows(1, 2))


def test_a_beginning_in_two_places_is_joined(whole: StateTable) -> None:  # type: ignore[type-arg]
    one = StateTable(empty(), whole.rows(2))
    write(one, 2, 7, 8)
    last = StateTable(empty(), one.rows(3))
    write(last, 3, 9)
    np.testing.assert_array_equal(last.rows(4), rows(1, 2, 7, 9))
    assert one.nbytes > whole.rows(2).nbytes


def test_own_rows_grow_and_move(whole: StateTable) -> None:  # type: ignore[type-arg]
    one = StateTable(empty(), whole.rows(4))
    write(one, 4, *range(10, 300))  # more than there was room for
    one.compact(6, [1, 3])
    np.testing.assert_array_equal(one.rows(8), rows(1, 2, 3, 4, 10, 11, 13, 15))
    np.testing.assert_array_equal(one.copied(6, 8), rows(13, 15).swapaxes(0, 1))


def test_rows_of_one_forward_begin_where_the_sequence_stands() -> None:
    table: StateTable[np.ndarray] = StateTable(empty(), first=5)  # type: ignore[type-arg]
    write(table, 5, 1, 2)
    np.testing.assert_array_equal(table.copied(6, 7), rows(2).swapaxes(0, 1))
