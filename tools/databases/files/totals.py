"""What stands below a table and is none of its rows: totals, subtotals, averages, and footnotes.

Read as rows they would double every sum, and make text of columns of numbers and dates. A row of totals is called so and adds
up others; one without a name adds up everything above it in each of its cells. A company may be called Total: what is called
so and adds up nothing is a row, and that is said.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isclose

import duckdb

from tools.databases.duckdb_catalog import literal, quoted
from tools.databases.files.written_values import Finding, findings, tell_units

_TOTAL = (
    r"(?:(?:grand|sub|overall)[ -]?)?(?:totals?|sums?)(?:[ :(].*)?|.*[ :]totals?|(?:gesamt|zwischen)?summe(?:[ :].*)?|"
    r"gesamt(?:betrag)?|insgesamt|sous-total|somme|totale|total g[ée]n[ée]ral|suma|totaal"
)
_AVERAGE = r"(?:overall )?(?:averages?|avg\.?|mean|durchschnitt|mittelwert|moyenne|promedio|media)"
_NOTE = (
    r"(?i)(?:sources?|notes?|remarks?|quellen?|anmerkung(?:en)?|stand|as of|generated|exported|printed|created|fuente|data)"
    r"\b\s*[:(].*|[*¹²³†‡©].*"
)
_SENTENCE = r"(?:\S+\s+){5,}\S+"  # a note as well, where a table has more columns than a list of sayings
_LABELS = 6  # columns in which a row may say what it is
_MOST_TOTALS = 1000
_FEWEST = 2  # rows that are added up: one number adds up nothing
_FEWEST_UNUSUAL = 3  # by a row without a name, or by one above them
_HALF_A_CENT = 0.005  # by which each row may be rounded
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")


@dataclass(frozen=True, slots=True)
class TableRead:
    """What the columns hold; the cells of a row of totals at the end, empty without one; what is to be said of other rows."""

    found: tuple[Finding, ...]
    total: tuple[str, ...] = ()
    told: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A row that may be one of totals: its `rowid`, and what it is called; empty where it has no name."""

    row: int
    label: str
    is_average: bool = False


def make_table(
    connection: duckdb.DuckDBPyConnection, raw: str, table: str, decimal: str = ".", keeps_total: bool = False,
    known: Callable[[Collection[int]], Mapping[str, str]] = lambda left_out: {},
) -> TableRead:  # fmt: skip
    """Make `table` of `raw`, whose columns are texts: with types, and without rows of totals and footnotes. `known`: the types
    of columns that their file tells, by the numbers of rows that are left out. Raises duckdb.Error."""
    columns = [each[0] for each in connection.execute(f"DESCRIBE {quoted(raw)}").fetchall()]
    told = _drop_notes(connection, raw, columns) + _drop_names(connection, raw, columns)
    candidates = _candidates(connection, raw, columns)
    left_out = {each.row for each in candidates}
    found, types = _read(connection, raw, columns, decimal, known, left_out)
    totals = [each for each in candidates if _adds_up(connection, raw, found, types, each, left_out)]
    last = _last_row(connection, raw)
    dropped = set() if keeps_total else {each.row for each in totals}
    if dropped != left_out:
        found, types = _read(connection, raw, columns, decimal, known, dropped)
    told += _told(candidates, totals, last, keeps_total)
    total = _cells(connection, raw, columns, last) if any(each.row == last for each in totals) else ()
    expressions = {each.column: each.expression for each in found if each.expression}
    expressions |= {name: f"CAST({quoted(name)} AS {type_})" for name, type_ in types.items()}
    selected = ", ".join(f"{expressions.get(name, quoted(name))} AS {quoted(name)}" for name in columns)
    connection.execute(
        f"CREATE OR REPLACE TABLE {quoted(table)} AS SELECT {selected} FROM {_without(raw, dropped)} ORDER BY rowid"
    )
    tell_units(connection, table, found)
    return TableRead(found, total, tuple(told))


def _read(
    connection: duckdb.DuckDBPyConnection, raw: str, columns: Sequence[str], decimal: str,
    known: Callable[[Collection[int]], Mapping[str, str]], left_out: Collection[int],
) -> tuple[tuple[Finding, ...], Mapping[str, str]]:  # fmt: skip
    types = known(left_out)
    texts = [name for name in columns if name not in types]
    return findings(connection, _without(raw, left_out), texts, decimal), types


def _without(raw: str, rows: Collection[int]) -> str:
    """The table without some rows, as a source of a query."""
    listed = ", ".join(map(str, sorted(rows)))
    return f"(SELECT *, rowid FROM {quoted(raw)}{f' WHERE rowid NOT IN ({listed})' if listed else ''})"


def _candidates(connection: duckdb.DuckDBPyConnection, raw: str, columns: Sequence[str]) -> list[_Candidate]:
    label = f"coalesce({', '.join(_given(name) for name in columns[:_LABELS])})"
    shape = f"rtrim(lower({label}), ': ')"
    rows = connection.execute(
        f"SELECT rowid, {label}, regexp_full_match({shape}, {literal(_AVERAGE)}) FROM {quoted(raw)} "
        f"WHERE regexp_full_match({shape}, {literal(f'{_TOTAL}|{_AVERAGE}')}) ORDER BY rowid LIMIT {_MOST_TOTALS + 1}"
    ).fetchall()
    found = [_Candidate(*row) for row in rows] if len(rows) <= _MOST_TOTALS else []
    last = _last_row(connection, raw)
    if last is not None and all(each.row != last for each in found) and _is_unnamed(connection, raw, columns, last):
        found.append(_Candidate(last, ""))
    return found


def _is_unnamed(connection: duckdb.DuckDBPyConnection, raw: str, columns: Sequence[str], row: int) -> bool:
    """Whether a row has nothing but numbers, and lacks the first cell."""
    cells = (
        connection.execute(
            f"SELECT {', '.join(map(_given, columns))} FROM {quoted(raw)} WHERE rowid = {row}"
        ).fetchone()
        or ()
    )
    given = [cell for cell in cells if cell is not None]
    return bool(given) and cells[0] is None and not any(letter.isalpha() for cell in given for letter in cell)


def _adds_up(
    connection: duckdb.DuckDBPyConnection, raw: str, found: Sequence[Finding], types: Mapping[str, str],
    candidate: _Candidate, candidates: Collection[int],
) -> bool:  # fmt: skip
    """Whether numbers of this row are the sums of those in the rows above or below it, as far as the next such row."""
    amounts = [each.amount for each in found if each.amount]
    amounts += [f"CAST({quoted(name)} AS DOUBLE)" for name, type_ in types.items() if type_.startswith(_NUMBERS)]
    if not amounts:
        return False
    own = (
        connection.execute(f"SELECT {', '.join(amounts)} FROM {quoted(raw)} WHERE rowid = {candidate.row}").fetchone()
        or ()
    )
    before = max((row for row in candidates if row < candidate.row), default=-1)
    after = min((row for row in candidates if row > candidate.row), default=1 << 60)
    spans = ((-1, candidate.row), (before, candidate.row), (candidate.row, after), (-1, 1 << 60))
    return any(
        _is_sum(candidate, own, _sums(connection, raw, amounts, candidates, span), span[1] > candidate.row)
        for span in dict.fromkeys(spans)
    )


def _sums(
    connection: duckdb.DuckDBPyConnection,
    raw: str,
    amounts: Sequence[str],
    candidates: Collection[int],
    span: tuple[int, int],
) -> list[tuple[float | None, int]]:
    """Sum and count of each amount over the rows between two, candidates left out."""
    asked = ", ".join(f"sum({amount}), count({amount})" for amount in amounts)
    where = f"WHERE rowid > {span[0]} AND rowid < {span[1]}"
    row = connection.execute(f"SELECT {asked} FROM {_without(raw, candidates)} {where}").fetchone() or ()
    return list(zip(row[::2], row[1::2], strict=True))


def _is_sum(
    candidate: _Candidate, own: Sequence[float | None], sums: Sequence[tuple[float | None, int]], reaches_below: bool
) -> bool:
    fewest = _FEWEST if candidate.label and not reaches_below else _FEWEST_UNUSUAL
    fits = [
        total is not None
        and count >= fewest
        and value != 0
        and isclose(total / (count if candidate.is_average else 1), value, rel_tol=1e-9, abs_tol=_HALF_A_CENT * count)
        for value, (total, count) in zip(own, sums, strict=True)
        if value is not None
    ]
    return any(fits) if candidate.label else bool(fits) and all(fits)


def _told(
    candidates: Sequence[_Candidate], totals: Sequence[_Candidate], last: int | None, keeps_total: bool
) -> list[str]:
    """What is to be said of the rows that are not the last one that was left out, which everybody is told of anyway."""
    within = [each.label for each in totals if each.row != last]
    told = []
    if within and not keeps_total:
        many = f"{len(within)} rows that add up others, such as “{within[0]}”, are left out"
        told.append(f"the row “{within[0]}” adds up others, and is left out" if len(within) == 1 else many)
    kept = [each for each in candidates if each not in totals and each.label and each.row == last]
    told += [f"the last row, “{each.label}”, is called a total, adds up nothing, and is kept as a row" for each in kept]
    return told


def _drop_notes(connection: duckdb.DuckDBPyConnection, raw: str, columns: Sequence[str]) -> list[str]:
    """Take footnotes out: last rows of which only the first cell is given, and is a note."""
    told: list[str] = []
    note = f"{_NOTE}|{_SENTENCE}" if len(columns) > 2 else _NOTE
    while len(columns) > 1 and (last := _last_row(connection, raw)) is not None:
        first, *others = connection.execute(
            f"SELECT {', '.join(map(_given, columns))}, regexp_full_match({_given(columns[0])}, {literal(note)}) "
            f"FROM {quoted(raw)} WHERE rowid = {last}"
        ).fetchone() or (None,)
        if first is None or any(each is not None for each in others[:-1]) or not others[-1]:
            break
        connection.execute(f"DELETE FROM {quoted(raw)} WHERE rowid = {last}")
        told.append(f"the note “{first[:60]}” below the table is left out")
    return told


def _drop_names(connection: duckdb.DuckDBPyConnection, raw: str, columns: Sequence[str]) -> list[str]:
    """Take rows out that repeat the names of the columns, as pages and files that were put together do."""
    if len(columns) < 2:
        return []
    same = " AND ".join(f"trim({quoted(name)}) = {literal(name)}" for name in columns)
    (count,) = connection.execute(f"DELETE FROM {quoted(raw)} WHERE {same}").fetchone() or (0,)
    times = "once" if count == 1 else f"{count:,} times"
    return [f"the row of names is repeated {times} below, and left out there"] if count else []


def _last_row(connection: duckdb.DuckDBPyConnection, raw: str) -> int | None:
    (last,) = connection.execute(f"SELECT max(rowid) FROM {quoted(raw)}").fetchone() or (None,)
    return last if last is None else int(last)


def _cells(connection: duckdb.DuckDBPyConnection, raw: str, columns: Sequence[str], row: int | None) -> tuple[str, ...]:
    found = connection.execute(
        f"SELECT {', '.join(map(_given, columns))} FROM {quoted(raw)} WHERE rowid = {row}"
    ).fetchone()
    return tuple(cell for cell in found or () if cell is not None)


def _given(column: str) -> str:
    return f"nullif(trim({quoted(column)}), '')"
