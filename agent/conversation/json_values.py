"""Converts cell values to JSON values, for records that leave the program."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any


def plain_rows(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """The rows with cells that are None, Booleans, numbers or text."""
    return [[plain_value(cell) for cell in row] for row in rows]


def exact_value(value: Any) -> Any:
    """The value as JSON can say it exactly: numbers as numbers, what is not finite as null, times in ISO's form, bytes in
    hexadecimal digits; lists and dicts item by item.

    >>> exact_value([Decimal("1.50"), float("nan"), b"ab"])
    [1.5, None, '6162']
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return _exact_decimal(value)
    if isinstance(value, Mapping):
        return {str(key): exact_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [exact_value(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return plain_value(value)


def _exact_decimal(value: Decimal) -> int | float | str | None:
    """A number where JSON's readers get the same one, otherwise its digits as text."""
    if not value.is_finite():
        return None
    if value == value.to_integral_value():
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else str(value)


def plain_value(cell: Any) -> Any:
    """Numbers stay numbers where JSON can hold them; everything else becomes text."""
    if isinstance(cell, float | Decimal):
        value = float(cell)
        return value if math.isfinite(value) else None
    if cell is None or isinstance(cell, bool | str):
        return cell
    if isinstance(cell, int):
        return cell if abs(cell) < 2**53 else str(cell)  # larger integers are inexact in JavaScript
    if isinstance(cell, date | datetime | time):
        return cell.isoformat(" ") if isinstance(cell, datetime) else cell.isoformat()
    if isinstance(cell, bytes | bytearray):
        return f"({len(cell):,} bytes)"
    return str(cell)
