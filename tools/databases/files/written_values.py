"""Numbers, dates and totals as people write them in files.

Numbers and dates as people write them in files: "1.234,50 €", "62,176", "12 %", "13.02.2023". DuckDB's reader leaves such
columns as text; here one form is found that fits every value of a column, and the SQL that converts it.

A column of which some values do not fit stays text, and its note says how many. Amounts in several currencies stay text, too.

Finds the row of totals that people write below a table: it is called so, and one of its numbers adds up those above it.

Read as a row like any other it would double every sum. Both signs are needed: a company may be called Total.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isclose
from typing import Any

import duckdb

from tools.databases.duckdb_catalog import quoted

SAMPLE = 1000  # values that must look like numbers or dates before the whole column is looked at
MOSTLY = 0.5  # share of values that fit a form, from which on the others are worth a note
_MISSING = ("", "-", "–", "—", ".", "?", "n/a", "#n/a", "na", "n.a.", "nan", "null", "none")
_UNIT = r"US\$|R\$|[$€£¥₹₽₩₺₪%]|USD|EUR|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|PLN|CZK|HUF|BRL|AUD|CAD|kr|Fr\.|zł|Kč"
_GAPS = "\u00a0\u202f\u2009'’"  # between thousands, whatever the decimal sign
_MOST_DIGITS = 18  # that every BIGINT holds
_WHOLE, _FRACTION = r"[1-9]\d{{0,2}}(?:[{thousands}]\d{{3}})+|[1-9]\d*|0", r"(?:[{decimal}]\d+)?"
_SPACED = r"[1-9]\d{{0,2}}(?: \d{{3}})+[{decimal}]\d+"  # a phone number has spaces, but no decimals
_DAYS = (
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d %b %Y", "%d %B %Y",
    "%d. %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y",
)  # fmt: skip
_TIMES = ("", " %H:%M", " %H:%M:%S")
_TWIN = {"%d/%m": "%m/%d", "%d-%m": "%m-%d"}
_WORDS = {
    "%d": "day",
    "%m": "month",
    "%b": "month",
    "%B": "month",
    "%Y": "year",
    "%y": "year",
    "%H:%M:%S": "time",
    "%H:%M": "time",
}


@dataclass(frozen=True, slots=True)
class NumberForm:
    """`decimal` is "." or ","; `unit` a currency or "%", or empty."""

    decimal: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class DateForm:
    """`pattern` as strptime takes it."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What a text column holds: a `form` that fits every value, or None; what a person should know of it (`note`).

    `expression`: the SQL that converts it, of `type_`. `settles`: whether its values alone say what the decimal sign is.
    """

    column: str
    form: NumberForm | DateForm | None = None
    type_: str = "VARCHAR"
    expression: str = ""
    note: str = ""
    settles: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """Of a column's values, blanks and marks for nothing left out: how many fit which number form, and with which units."""

    given: int
    marks: int
    fits: dict[str, int]
    units: tuple[str, ...]
    bare: int
    odd: str


def convert_text_columns(connection: duckdb.DuckDBPyConnection, table: str, decimal: str = ".") -> tuple[Finding, ...]:
    """Give the text columns of `table` that hold numbers or dates their types, and a comment with the unit. `decimal`: the sign
    of numbers that could be read both ways, unless another column settles it. Raises duckdb.Error."""
    described = connection.execute(f"DESCRIBE {quoted(table)}").fetchall()
    texts = [name for name, type_, *_ in described if type_ == "VARCHAR"]
    found = [_finding(connection, table, name, decimal) for name in texts]
    signs = {each.form.decimal for each in found if each.settles and isinstance(each.form, NumberForm)}
    if len(signs) == 1 and signs != {decimal}:
        (decimal,) = signs
        found = [_finding(connection, table, name, decimal) for name in texts]
    _convert(connection, table, [each for each in found if each.form])
    return tuple(found)


def _convert(connection: duckdb.DuckDBPyConnection, table: str, found: Sequence[Finding]) -> None:
    if not found:
        return
    replaced = ", ".join(f"{each.expression} AS {quoted(each.column)}" for each in found)
    connection.execute(f"CREATE OR REPLACE TABLE {quoted(table)} AS SELECT * REPLACE ({replaced}) FROM {quoted(table)}")
    for each in found:
        if isinstance(each.form, NumberForm) and each.form.unit:
            told = "in percent" if each.form.unit == "%" else f"in {each.form.unit}"
            connection.execute(f"COMMENT ON COLUMN {quoted(table)}.{quoted(each.column)} IS {_literal(told)}")


def _finding(connection: duckdb.DuckDBPyConnection, table: str, column: str, decimal: str) -> Finding:
    """What one text column holds."""
    sample = f"(SELECT {quoted(column)} FROM {quoted(table)} WHERE {quoted(column)} IS NOT NULL LIMIT {SAMPLE})"
    counts = _counts(connection, sample, column)
    if counts.given and max(counts.fits.values()) >= MOSTLY * counts.given:
        return _number(connection, table, column, decimal)
    pattern, fitting = _best_pattern(connection, sample, column)
    if counts.given and fitting >= MOSTLY * counts.given:
        return _date(connection, table, column, pattern)
    return Finding(column)


def _number(connection: duckdb.DuckDBPyConnection, table: str, column: str, decimal: str) -> Finding:
    counts = _counts(connection, quoted(table), column)
    fits = [sign for sign in (".", ",") if counts.fits[sign] == counts.given]
    if not fits:
        return Finding(column, note=_misfits(counts.given - max(counts.fits.values()), counts, "number"))
    if len(counts.units) > 1 or ("%" in counts.units and counts.bare):
        units = ", ".join([*counts.units, *(["no sign"] if counts.bare else [])])
        return Finding(column, note=f"text, for its values have different units: {units}")
    sign = fits[0] if len(fits) == 1 else decimal
    form = NumberForm(sign, counts.units[0] if counts.units else "")
    digits = _digits(column, sign)
    is_whole = f"NOT regexp_matches({digits}, '[.eE]') AND length({digits}) <= {_MOST_DIGITS}"
    (whole,) = connection.execute(f"SELECT bool_and({is_whole}) FROM {quoted(table)}").fetchone() or (None,)
    type_ = "BIGINT" if whole else "DOUBLE"
    told = [f"in {'percent' if form.unit == '%' else form.unit}"] if form.unit else []
    told += ["decimal comma"] if sign == "," and not whole else []
    return Finding(column, form, type_, f"TRY_CAST({digits} AS {type_})", _note(told, counts.marks), len(fits) == 1)


def _date(connection: duckdb.DuckDBPyConnection, table: str, column: str, pattern: str) -> Finding:
    counts = _counts(connection, quoted(table), column)
    parsed = f"try_strptime(trim({quoted(column)}), {_literal(pattern)})"
    fitting = _fitting(connection, quoted(table), column, [pattern])[pattern]
    if fitting < counts.given:
        return Finding(column, note=_misfits(counts.given - fitting, counts, "date"))
    type_ = "TIMESTAMP" if "%H" in pattern else "DATE"
    told = [f"written {_spelt(pattern)}"]
    twin = next((pattern.replace(*pair) for pair in _TWIN.items() if pair[0] in pattern), "")
    if twin and _fitting(connection, quoted(table), column, [twin])[twin] == fitting:
        told.append("month and day could be the other way round")
    return Finding(column, DateForm(pattern), type_, f"CAST({parsed} AS {type_})", _note(told, counts.marks))


def _counts(connection: duckdb.DuckDBPyConnection, source: str, column: str) -> Counts:
    """`source`: a table or a query in brackets."""
    value = f"trim({quoted(column)})"
    given = f"lower({value}) NOT IN ({', '.join(map(_literal, _MISSING))})"
    fits = {sign: f"regexp_full_match({value}, {_literal(_pattern(sign))})" for sign in (".", ",")}
    either = " OR ".join(fits.values())
    unit = f"regexp_extract({value}, {_literal(_UNIT)})"
    counted = ", ".join(f"count(*) FILTER ({given} AND {fit})" for fit in fits.values())
    units = f"list(DISTINCT {unit} ORDER BY {unit}) FILTER ({given} AND {unit} <> '')"
    row = connection.execute(
        f"SELECT count(*) FILTER ({given}), count(*) FILTER ({value} <> '' AND NOT {given}), {counted}, {units}, "
        f"count(*) FILTER ({given} AND {unit} = ''), min({value}) FILTER ({given} AND NOT ({either})) FROM {source}"
    ).fetchone()
    assert row is not None
    return Counts(row[0], row[1], {".": row[2], ",": row[3]}, tuple(row[4] or ()), row[5], row[6] or "")


def _pattern(decimal: str) -> str:
    """What a whole value looks like; its first group holds the digits."""
    thousands = ("," if decimal == "." else ".") + _GAPS
    signs = {"thousands": thousands, "decimal": decimal}
    body = rf"{_SPACED.format(**signs)}|(?:{_WHOLE.format(**signs)}){_FRACTION.format(**signs)}(?:[eE][+-]?\d+)?"
    return rf"\(?\s*[+\-−]?\s*(?:{_UNIT})?\s*[+\-−]?({body})\s*(?:{_UNIT})?\s*\)?"


def _digits(column: str, decimal: str) -> str:
    """SQL for a value as a plain number's text, or NULL where it is a mark for nothing."""
    value = f"trim({quoted(column)})"
    body = f"nullif(regexp_extract({value}, {_literal(_pattern(decimal))}, 1), '')"
    bare = f"regexp_replace({body}, {_literal('[ ' + _GAPS + (',' if decimal == '.' else '.') + ']')}, '', 'g')"
    sign = f"CASE WHEN regexp_matches({value}, '^[^0-9]*[-−(]') THEN '-' ELSE '' END"
    return f"({sign} || replace({bare}, ',', '.'))"


def _best_pattern(connection: duckdb.DuckDBPyConnection, source: str, column: str) -> tuple[str, int]:
    """The date pattern that most values fit, the first of equals, and how many they are."""
    fitting = _fitting(connection, source, column, list(_patterns()))
    best = max(fitting, key=lambda pattern: fitting[pattern])
    return best, fitting[best]


def _patterns() -> Iterator[str]:
    return (day + time for time in _TIMES for day in _DAYS)


def _fitting(
    connection: duckdb.DuckDBPyConnection, source: str, column: str, patterns: Sequence[str]
) -> dict[str, int]:
    """How many values fit each pattern. Two digits are no year where a pattern wants four; where it wants two, day and month
    have two as well, for 1.2.3 is rather a version."""
    value = f"trim({quoted(column)})"
    tried = [f"try_strptime({value}, {_literal(pattern)})" for pattern in patterns]
    two = f"regexp_matches({value}, '^\\d\\d[./]\\d\\d[./]\\d\\d($| )')"
    years = [f"year({each}) BETWEEN 1000 AND 2999" + (f" AND {two}" if "%y" in each else "") for each in tried]
    counted = ", ".join(f"count(*) FILTER ({each})" for each in years)
    row = connection.execute(f"SELECT {counted} FROM {source}").fetchone() or ()
    return dict(zip(patterns, row, strict=True))


def _spelt(pattern: str) -> str:
    """day.month.year"""
    for sign, word in _WORDS.items():
        pattern = pattern.replace(sign, word)
    return pattern


def _misfits(count: int, counts: Counts, what: str) -> str:
    example = f", such as “{counts.odd[:30]}”" if counts.odd and what == "number" else ""
    verb = f"is no {what}" if count == 1 else f"are not {what}s"
    return f"text, for {count:,} of {counts.given:,} values {verb}{example}"


def _note(told: Sequence[str], marks: int) -> str:
    empty = [f"{marks:,} {'mark' if marks == 1 else 'marks'} for nothing left empty"] if marks else []
    return "; ".join([*told, *empty])


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


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
        last = _cell_number(total[name], decimals.get(name, "."))
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


def _cell_number(text: str, decimal: str) -> float | None:
    """The number that a cell holds, whatever stands around its digits."""
    digits = re.sub(rf"[^\d{re.escape(decimal)}-]", "", text.replace("−", "-")).replace(decimal, ".")
    try:
        return float(digits)
    except ValueError:
        return None
