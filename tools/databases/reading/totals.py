"""Finds the row of totals that people write below a table: it is called so, and one of its numbers adds up those above it.

Read as a row like any other it would double every sum. Both signs are needed: a company may be called Total.
"""

import re
from collections.abc import Mapping, Sequence
from math import fsum, isclose
from typing import Any

import duckdb

from tools.databases.duckdb.duckdb_schema import quoted
from tools.databases.reading.written_values import Finding, NumberForm

_CALLED = re.compile(
    r"(?:(?:grand|sub|overall)[ -]?)?totals?|sums?|gesamt(?:summe)?|summe|insgesamt|somme|totale|total g[ée]n[ée]ral|suma",
    re.IGNORECASE,
)
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
_FEWEST = 2  # rows above: one number adds up nothing
_HALF_A_CENT = 0.005  # by which each row may be rounded


def is_total(rows: Sequence[Sequence[Any]]) -> bool:
    """Whether the last row is one of totals; a row's cells are numbers, texts, or None.

    >>> is_total([["pen", 2], ["ink", 3], ["Total", 5]]), is_total([["pen", 2], ["ink", 3], ["Total", 7]])
    (True, False)
    """
    if len(rows) <= _FEWEST or not _is_called_total(rows[-1]):
        return False
    columns = (
        [cell for cell in column if _is_number(cell)] for column in zip(*rows, strict=False) if _is_number(column[-1])
    )
    return any(_adds_up(fsum(above), len(above), last) for *above, last in columns)


def cut_total(connection: duckdb.DuckDBPyConnection, table: str) -> dict[str, str]:
    """Take the last row out of a table if it is called total, and return its cells that are given, as text, by column; empty if
    it is not. Raises duckdb.Error."""
    names = [each[0] for each in connection.execute(f"DESCRIBE {quoted(table)}").fetchall()]
    texts = ", ".join(f"CAST({quoted(name)} AS VARCHAR)" for name in names)
    last = connection.execute(f"SELECT rowid, {texts} FROM {quoted(table)} ORDER BY rowid DESC LIMIT 1").fetchone()
    if last is None or not _is_called_total(last[1:]):
        return {}
    connection.execute(f"DELETE FROM {quoted(table)} WHERE rowid = {last[0]}")
    return {name: cell for name, cell in zip(names, last[1:], strict=True) if cell}


def adds_up_table(
    connection: duckdb.DuckDBPyConnection, table: str, found: Sequence[Finding], total: Mapping[str, str]
) -> bool:
    """Whether a row that was cut adds up a column of numbers of the table that is left. Raises duckdb.Error."""
    decimals = {each.column: each.form.decimal for each in found if isinstance(each.form, NumberForm)}
    described = connection.execute(f"DESCRIBE {quoted(table)}").fetchall()
    for name in (name for name, type_, *_ in described if type_.startswith(_NUMBERS) and name in total):
        last = _number(total[name], decimals.get(name, "."))
        above = connection.execute(f"SELECT sum({quoted(name)}), count({quoted(name)}) FROM {quoted(table)}").fetchone()
        if (
            last is not None
            and above is not None
            and above[0] is not None
            and _adds_up(float(above[0]), above[1], last)
        ):
            return True
    return False


def _adds_up(above: float, count: int, last: float) -> bool:
    return count >= _FEWEST and isclose(above, last, rel_tol=1e-9, abs_tol=_HALF_A_CENT * count)


def _is_called_total(cells: Sequence[object]) -> bool:
    first = next((cell for cell in cells if cell is not None and str(cell).strip()), "")
    return isinstance(first, str) and _CALLED.fullmatch(first.strip().rstrip(":").strip()) is not None


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _number(text: str, decimal: str) -> float | None:
    """The number that a cell holds, whatever stands around its digits."""
    digits = re.sub(rf"[^\d{re.escape(decimal)}-]", "", text.replace("−", "-")).replace(decimal, ".")
    try:
        return float(digits)
    except ValueError:
        return None
