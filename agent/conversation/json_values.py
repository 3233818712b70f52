"""Converts cell values to JSON values, for records that leave the program."""

import math
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any


def plain_rows(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """The rows with cells that are None, Booleans, numbers or text."""
    return [[plain_value(cell) for cell in row] for row in rows]


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
