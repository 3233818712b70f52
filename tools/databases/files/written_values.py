"""Numbers, dates and times as people write them in files: "1.234,50 €", "62,176", "12 %", "3 pcs", "13.02.2023".

Files are read as text; here one form is found that fits every value of a column, and the SQL that converts it. A column gets
another type only if nothing is lost thereby: long numbers keep all their digits, and codes (00042, 12E3, +491701234567) stay
text. A column of which some values do not fit stays text, and its note says how many. Amounts in several units stay text, too.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import duckdb

from tools.databases.duckdb_catalog import literal, quoted

SAMPLE = 1000  # values that must look like numbers or dates before the whole column is looked at
MOSTLY = 0.5  # share of values that fit a form, from which on the others are worth a note
MISSING = (
    "", "-", "--", "---", "–", "—", ".", "..", "...", "…", "?", "n/a", "#n/a", "na", "n.a.", "n.a", "nan", "null", "none",
    "nil", "n.v.", "k.a.", "tbd", "tba", "unknown", "not available", "missing",
    "#div/0!", "#ref!", "#value!", "#name?", "#num!", "#null!",
)  # fmt: skip
_CURRENCY = r"US\$|R\$|[$€£¥₹₽₩₺₪%]|USD|EUR|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|PLN|CZK|HUF|BRL|AUD|CAD|kr|Fr\.|zł|Kč"
_WORD = r"[°µ]?\pL{1,12}[²³]?(?:/\pL{1,6}[²³]?)?\.?"  # pcs, kg, °C, km/h
_NO_WORDS = (  # that change the number, or say that it is none
    r"(?i)k|tsd|mn|mio|mill?ions?|mrd|bn|b|billions?|trillions?|thousands?|lakhs?|crores?|[ap]\.?m\.?|st|nd|rd|th|bc|ad|e|"
    r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|okt|nov|dec|dez)\pL*"
)
_LAST_WORD = rf"[\d)]\s*({_WORD})\s*\)?$"
_ONE = r"regexp_replace(regexp_replace(lower(w), '\.$', ''), '(\pL\pL)s$', '\1')"  # one pc, two pcs
_LETTERS = r"[gtlhmsLWV]"  # units of one letter; "12 a" is a house
_GAPS = "\u00a0\u202f\u2009'’"  # between thousands, whatever the decimal sign
_WHOLE, _FRACTION = r"[1-9]\d{{0,2}}(?:[{thousands}]\d{{3}})+|[1-9]\d*|0", r"(?:[{decimal}]\d+)?"
_SPACED = r"[1-9]\d{{0,2}}(?: \d{{3}})+[{decimal}]\d+"  # a phone number has spaces, but no decimals
_BIGINT, _HUGEINT, _DOUBLE = 18, 38, 15  # digits that these hold, whatever they are
_PHONE = 8  # digits after a plus sign that no person writes before an amount
_DAYS = (
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d %b %Y", "%d %B %Y",
    "%d. %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y",
)  # fmt: skip
_ISO = "%Y-%m-%d"
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_TWIN = {"%d/%m": "%m/%d", "%d-%m": "%m-%d", "%m/%d": "%d/%m", "%m-%d": "%d-%m"}
_WORDS = {"%d": "day", "%m": "month", "%b": "month", "%B": "month", "%Y": "year", "%y": "year"}
_EARLIEST, _LATEST = 19000101, 21001231
_NAMES_A_DATE = re.compile(r"(?i)date|day|datum|tag\b|fecha|jour|giorno|_(?:on|at)$")
_NAMES_A_VERSION = re.compile(
    r"(?i)(?:^|[^a-z])(?:version|release|ver|rev|revision|build|chapter|section|clause|kapitel)(?:$|[^a-z])"
)
_VERSION = "text, for 1.10 and 1.1 are not the same version"


@dataclass(frozen=True, slots=True)
class NumberForm:
    """`decimal` is "." or ","; `unit` a currency, "%" or a word such as "pcs", or empty."""

    decimal: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class DateForm:
    """`pattern` of the day as strptime takes it. `month_first`: whether the values say that the month stands before the day;
    None where they leave it open or where nothing can be mixed up."""

    pattern: str
    month_first: bool | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What a text column holds: a `form` that fits every value, or None; what a person should know of it (`note`).

    `expression`: the SQL that converts it, of `type_`. `settles`: whether its values alone say what the decimal sign is.
    `warns`: whether the note must be told to everybody. `amount`: SQL for the number in a value, NULL where there is none.
    """

    column: str
    form: NumberForm | DateForm | None = None
    type_: str = "VARCHAR"
    expression: str = ""
    note: str = ""
    settles: bool = False
    warns: bool = False
    amount: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """Of a column's values, blanks and marks for nothing left out: how many fit which number form, and with which units.

    `bare`: those without a unit. `odd`: one that is no number."""

    given: int
    marks: int
    fits: dict[str, int]
    units: tuple[str, ...]
    unit: str
    bare: int
    odd: str


@dataclass(frozen=True, slots=True)
class Digits:
    """Of the numbers of a column: the most digits before and after the decimal sign, and the fewest after it."""

    before: int
    after: int
    fewest_after: int
    has_exponents: bool
    has_codes: bool
    is_inexact: bool
    has_idle_zeros: bool
    has_phones: bool


def convert(connection: duckdb.DuckDBPyConnection, table: str, found: Sequence[Finding]) -> None:
    """Give columns of a table the types that were found. Raises duckdb.Error."""
    converted = [each for each in found if each.expression]
    if converted:
        replaced = ", ".join(f"{each.expression} AS {quoted(each.column)}" for each in converted)
        select = f"SELECT * REPLACE ({replaced}) FROM {quoted(table)}"
        connection.execute(f"CREATE OR REPLACE TABLE {quoted(table)} AS {select}")
    tell_units(connection, table, found)


def tell_units(connection: duckdb.DuckDBPyConnection, table: str, found: Sequence[Finding]) -> None:
    """Comment the columns of numbers with their units."""
    for each in found:
        if isinstance(each.form, NumberForm) and each.form.unit:
            told = literal(_in_unit(each.form.unit))
            connection.execute(f"COMMENT ON COLUMN {quoted(table)}.{quoted(each.column)} IS {told}")


def findings(
    connection: duckdb.DuckDBPyConnection, source: str, columns: Sequence[str], decimal: str = "."
) -> tuple[Finding, ...]:
    """What the text columns of `source` (a table or a query in brackets) hold. Raises duckdb.Error."""
    plain = _plain(connection, source, columns)
    found = {name: plain.get(name) or _finding(connection, source, name, decimal) for name in columns}
    signs = {each.form.decimal for each in found.values() if each.settles and isinstance(each.form, NumberForm)}
    if len(signs) == 1 and signs != {decimal}:
        (decimal,) = signs
        found |= {name: _finding(connection, source, name, decimal) for name in columns if name not in plain}
    orders = {each.form.month_first for each in found.values() if isinstance(each.form, DateForm)} - {None}
    if len(orders) == 1:
        month_first = orders.pop()
        found |= {
            name: _date(connection, source, name, each.form.pattern, month_first)
            for name, each in found.items()
            if isinstance(each.form, DateForm) and each.form.month_first is None and each.warns
        }
    return tuple(found.values())


_INTEGER, _DECIMAL, _TRUTH = "BIGINT", "DOUBLE", "BOOLEAN"
_DATE, _MOMENT, _ZONED, _TIME = "DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIME"
_CLOCK = r"\d\d?:\d\d(?::\d\d(?:\.\d{1,6})?)?"
_PLAIN: Mapping[str, str] = {
    _INTEGER: "CAST(TRY_CAST(VALUE AS BIGINT) AS VARCHAR) = VALUE",
    _DECIMAL: r"regexp_full_match(VALUE, '-?(?:0|[1-9]\d*)(?:\.\d+)?') AND length(VALUE) <= 15",
    _DATE: "CAST(TRY_CAST(VALUE AS DATE) AS VARCHAR) = VALUE",
    _MOMENT: rf"regexp_full_match(VALUE, '\d{{4}}-\d\d-\d\d(?:[ T]{_CLOCK})?') AND TRY_CAST(VALUE AS TIMESTAMP) IS NOT NULL",
    _ZONED: rf"regexp_full_match(VALUE, '\d{{4}}-\d\d-\d\d[ T]{_CLOCK} ?(?:Z|[+-]\d\d(?::?\d\d)?)') "
    "AND TRY_CAST(VALUE AS TIMESTAMPTZ) IS NOT NULL",
    _TIME: rf"regexp_full_match(VALUE, '{_CLOCK}') AND TRY_CAST(VALUE AS TIME) IS NOT NULL",
    _TRUTH: "lower(VALUE) IN ('true', 'false')",
}
"""Types whose values programs write in one way, with the test for a value. It is quick, and nothing is lost."""


def _plain(connection: duckdb.DuckDBPyConnection, source: str, columns: Sequence[str]) -> dict[str, Finding]:
    """Findings of the columns of which every value is written as a program would write it."""
    if not columns:
        return {}
    tests = [(name, type_) for name in columns for type_ in _PLAIN]
    counted = ", ".join(_count(name, type_) for name, type_ in tests)
    row = connection.execute(f"SELECT {counted} FROM (SELECT * FROM {source} LIMIT {SAMPLE})").fetchone() or ()
    wanted: dict[str, str] = {}
    for (name, type_), fits in zip(tests, row, strict=True):
        if fits and name not in wanted:
            wanted[name] = type_
    if not wanted:
        return {}
    counted = ", ".join(f"{_count(name, type_)}, {_settled(name)}" for name, type_ in wanted.items())
    row = connection.execute(f"SELECT {counted} FROM {source}").fetchone() or ()
    found = {}
    for place, (name, type_) in enumerate(wanted.items()):
        fits, settles, fewest, most, has_zeros = row[5 * place : 5 * place + 5]
        if not fits or (type_ == _DECIMAL and (not settles or (has_zeros and fewest < most))):
            continue
        if type_ == _INTEGER and (day := _written_together(connection, source, name)):
            found[name] = day
            continue
        form = NumberForm(".") if type_ == _DECIMAL else None
        value = f"CAST({quoted(name)} AS {type_})"
        amount = value if type_ in (_INTEGER, _DECIMAL) else ""
        found[name] = Finding(name, form, type_, value, settles=type_ == _DECIMAL, amount=amount)
    return found


def _count(column: str, type_: str) -> str:
    """SQL: whether all values that are given, if any, pass the test."""
    name = quoted(column)
    return f"coalesce(bool_and(coalesce({_PLAIN[type_].replace('VALUE', name)}, false)) FILTER ({name} IS NOT NULL), false)"


def _settled(column: str) -> str:
    """SQL of four: whether a decimal point can be no sign of thousands; fewest and most digits after it; zeros at their end."""
    name = quoted(column)
    after = f"(length({name}) - strpos({name}, '.'))"
    has = f"strpos({name}, '.') > 0"
    settles = f"bool_or({after} <> 3 OR {name} LIKE '0.%' OR {name} LIKE '-0.%') FILTER ({has})"
    return (
        f"coalesce({settles}, false), min({after}) FILTER ({has}), max({after}) FILTER ({has}), "
        f"coalesce(bool_or({name} LIKE '%0' AND {after} > 1) FILTER ({has}), false)"
    )


def _written_together(connection: duckdb.DuckDBPyConnection, source: str, column: str) -> Finding | None:
    """A finding where every whole number is a day such as 20240131."""
    day = f"try_strptime({quoted(column)}, '%Y%m%d')"
    fits = (
        f"length({quoted(column)}) = 8 AND {quoted(column)} BETWEEN '{_EARLIEST}' AND '{_LATEST}' AND {day} IS NOT NULL"
    )
    query = (
        f"SELECT bool_and({fits}), count(DISTINCT {quoted(column)}) FROM {source} WHERE {quoted(column)} IS NOT NULL"
    )
    is_day, different = connection.execute(query).fetchone() or (False, 0)
    if not is_day or (different < 2 and not _NAMES_A_DATE.search(column)):
        return None
    return Finding(column, DateForm("%Y%m%d"), "DATE", f"CAST({day} AS DATE)", "written yearmonthday")


def _finding(connection: duckdb.DuckDBPyConnection, source: str, column: str, decimal: str) -> Finding:
    """What one text column holds."""
    sample = f"(SELECT {quoted(column)} FROM {source} WHERE {quoted(column)} IS NOT NULL LIMIT {SAMPLE})"
    counts = _counts(connection, sample, column)
    if counts.given and max(counts.fits.values()) >= MOSTLY * counts.given:
        return _number(connection, source, column, decimal)
    pattern, fitting = _best_pattern(connection, sample, column)
    if counts.given and fitting >= MOSTLY * counts.given:
        return _date(connection, source, column, pattern)
    return Finding(column)


def _number(connection: duckdb.DuckDBPyConnection, source: str, column: str, decimal: str) -> Finding:
    counts = _counts(connection, source, column)
    most = max(counts.fits.values())
    signs = [sign for sign in (".", ",") if counts.fits[sign] == most]
    sign = signs[0] if len(signs) == 1 else decimal
    value = _digits(column, sign)
    text = Finding(column, warns=True, amount=f"TRY_CAST({value} AS DOUBLE)")
    if most < counts.given:
        return replace(text, note=_misfits(counts.given - most, counts, "number"))
    if len(counts.units) > 1 or (
        counts.bare and counts.units and ("%" in counts.units or re.fullmatch(r"\w", counts.unit))
    ):
        units = ", ".join([*counts.units, *(["no sign"] if counts.bare else [])])
        return replace(text, note=f"text, for its values have different units: {units}")
    digits = _most_digits(connection, source, column, sign)
    type_, why = _number_type(column, digits)
    if not type_:
        return replace(text, note=why)
    unit = counts.unit if counts.units else ""
    told = [_in_unit(unit)] if unit else []
    told += ["decimal comma"] if sign == "," and digits.after else []
    doubts = (
        [f"{counts.bare:,} of {counts.given:,} values have no unit"] if unit and counts.bare and unit.isalpha() else []
    )
    if _is_like_versions(digits) and sign == "." and not unit:
        doubts.append("read as numbers, so that 1.10 is 1.1")
    note = _note([*told, *doubts], counts.marks)
    expression = f"TRY_CAST({value} AS {type_})"
    form = NumberForm(sign, unit)
    return Finding(
        column, form, type_, expression, note, len(signs) == 1, bool(doubts), f"CAST({expression} AS DOUBLE)"
    )


def _number_type(column: str, digits: Digits) -> tuple[str, str]:
    """The type that keeps every digit, or empty and why there is none."""
    if digits.has_codes:
        return "", "text, for values such as 12E3 may be codes"
    if digits.has_phones:
        return "", "text, for a plus sign before so many digits is part of a code"
    if digits.has_idle_zeros and digits.fewest_after < digits.after and _NAMES_A_VERSION.search(column):
        return "", _VERSION
    if not digits.after and not digits.has_exponents:
        if digits.before > _HUGEINT:
            return "", f"text, for its numbers have up to {digits.before} digits"
        return "BIGINT" if digits.before <= _BIGINT else "HUGEINT", ""
    if not digits.is_inexact:
        return "DOUBLE", ""
    if digits.has_exponents or digits.before + digits.after > _HUGEINT:
        return "", f"text, for its numbers have up to {digits.before + digits.after} digits"
    return f"DECIMAL({digits.before + digits.after}, {digits.after})", ""


def _is_like_versions(digits: Digits) -> bool:
    """Whether all numbers could be versions such as 1.9 and 1.10."""
    is_short = digits.before <= 2 and 1 <= digits.fewest_after < digits.after <= 2
    return is_short and digits.has_idle_zeros and not digits.has_exponents


def _most_digits(connection: duckdb.DuckDBPyConnection, source: str, column: str, decimal: str) -> Digits:
    before, after = r"length(regexp_extract(d, '^-?(\d+)', 1))", r"length(regexp_extract(d, '\.(\d+)', 1))"
    has_exponent = "regexp_matches(d, '[eE]')"
    written = (
        f"CASE WHEN {after} > 0 THEN regexp_replace(regexp_replace(d, '0+$', ''), '\\.$', '.0') ELSE d || '.0' END"
    )
    lost = (
        f"NOT {has_exponent} AND {before} + {after} > {_DOUBLE} AND CAST(TRY_CAST(d AS DOUBLE) AS VARCHAR) <> {written}"
    )
    phone = f"v LIKE '+%' AND NOT {has_exponent} AND {after} = 0 AND regexp_full_match(v, '\\+\\d{{{_PHONE},}}')"
    bare = r"regexp_full_match(d, '-?\d+[eE]\d+')"
    asked = (
        f"max({before}), max({after}), min({after}), bool_or({has_exponent}), "
        f"bool_or({bare}) AND bool_and({bare} OR NOT regexp_matches(d, '[.eE]')), bool_or({lost}), "
        f"bool_or({after} > 1 AND d LIKE '%0'), bool_or({phone})"
    )
    values = f"SELECT trim({quoted(column)}) AS v, {_digits(column, decimal)} AS d FROM {source}"
    row = connection.execute(f"SELECT {asked} FROM ({values}) WHERE d IS NOT NULL").fetchone() or ()
    before_sign, after_sign, fewest = (int(each or 0) for each in row[:3])
    return Digits(before_sign, after_sign, fewest, *map(bool, row[3:]))


def _date(
    connection: duckdb.DuckDBPyConnection, source: str, column: str, pattern: str, month_first: bool | None = None
) -> Finding:
    """`month_first`: what another column says, where this one leaves it open."""
    counts = _counts(connection, source, column)
    twin = next((pattern.replace(*pair) for pair in _TWIN.items() if pair[0] in pattern), "")
    fits = _fitting(connection, source, column, [pattern, *([twin] if twin else [])])
    if twin and fits[twin] > fits[pattern]:
        pattern, twin = twin, pattern
    if fits[pattern] < counts.given:
        return Finding(column, note=_misfits(counts.given - fits[pattern], counts, "date"), warns=True)
    is_open = bool(twin) and fits[twin] == fits[pattern]
    if is_open and month_first is not None and month_first != pattern.startswith("%m"):
        pattern = twin
    parsed = _parsed(f"trim({quoted(column)})", pattern)
    has_time = f"SELECT bool_or({parsed} <> CAST({parsed} AS DATE) OR contains({quoted(column)}, ':')) FROM {source}"
    type_ = "TIMESTAMP" if (connection.execute(has_time).fetchone() or (False,))[0] else "DATE"
    told = [f"written {_spelt(pattern)}{' and time' if type_ == 'TIMESTAMP' else ''}"]
    warns = is_open and month_first is None
    if warns:
        told.append("month and day could be the other way round")
    known = pattern.startswith("%m") if twin and not is_open else None
    form = DateForm(pattern, known)
    return Finding(column, form, type_, f"CAST({parsed} AS {type_})", _note(told, counts.marks), warns=warns)


def _counts(connection: duckdb.DuckDBPyConnection, source: str, column: str) -> Counts:
    """`source`: a table or a query in brackets."""
    fits = {sign: f"coalesce(regexp_full_match(v, {literal(_pattern(sign))}), false)" for sign in (".", ",")}
    word = f"regexp_extract(v, {literal(_LAST_WORD)}, 1)"
    currency = f"regexp_extract(v, {literal(_CURRENCY)})"
    is_unit = (
        f"(c <> '' OR w = '' OR regexp_full_match(w, '{_LETTERS}') "
        f"OR (length(w) > 1 AND NOT regexp_full_match(w, {literal(_NO_WORDS)})))"
    )
    shaped = f"SELECT trim({quoted(column)}) AS v FROM {source} WHERE {quoted(column)} IS NOT NULL"
    given = f"lower(v) NOT IN ({', '.join(map(literal, MISSING))})"
    read = f"SELECT v, {given} AS g, {currency} AS c, {word} AS w, {fits['.']} AS p, {fits[',']} AS q FROM ({shaped})"
    named = (
        f"SELECT v, g, CASE WHEN c <> '' THEN c ELSE w END AS u, CASE WHEN c <> '' THEN c ELSE {_ONE} END AS o, "
        f"g AND p AND {is_unit} AS p, g AND q AND {is_unit} AS q FROM ({read})"
    )
    row = connection.execute(
        "SELECT count(*) FILTER (g), count(*) FILTER (v <> '' AND NOT g), count(*) FILTER (p), count(*) FILTER (q), "
        "list(DISTINCT o ORDER BY o) FILTER ((p OR q) AND o <> ''), mode(u) FILTER ((p OR q) AND u <> ''), "
        f"count(*) FILTER (g AND u = ''), min(v) FILTER (g AND NOT (p OR q)) FROM ({named})"
    ).fetchone()
    assert row is not None
    return Counts(row[0], row[1], {".": row[2], ",": row[3]}, tuple(row[4] or ()), row[5] or "", row[6], row[7] or "")


def _pattern(decimal: str) -> str:
    """What a whole value looks like; its first group holds the digits."""
    thousands = ("," if decimal == "." else ".") + _GAPS
    signs = {"thousands": thousands, "decimal": decimal}
    body = rf"{_SPACED.format(**signs)}|(?:{_WHOLE.format(**signs)}){_FRACTION.format(**signs)}(?:[eE][+-]?\d+)?"
    return rf"\(?\s*[+\-−]?\s*(?:{_CURRENCY})?\s*[+\-−]?({body})\s*(?:{_CURRENCY}|{_WORD})?\s*\)?"


def _digits(column: str, decimal: str) -> str:
    """SQL for a value as a plain number's text, or NULL where it is a mark for nothing."""
    value = f"trim({quoted(column)})"
    body = f"nullif(regexp_extract({value}, {literal('^' + _pattern(decimal) + '$')}, 1), '')"
    bare = f"regexp_replace({body}, {literal('[ ' + _GAPS + (',' if decimal == '.' else '.') + ']')}, '', 'g')"
    sign = f"CASE WHEN regexp_matches({value}, '^[^0-9]*[-−(]') THEN '-' ELSE '' END"
    return f"({sign} || replace({bare}, ',', '.'))"


def _best_pattern(connection: duckdb.DuckDBPyConnection, source: str, column: str) -> tuple[str, int]:
    """The date pattern that most values fit, the first of equals, and how many they are."""
    fitting = _fitting(connection, source, column, _DAYS)
    best = max(fitting, key=lambda pattern: fitting[pattern])
    return best, fitting[best]


def _parsed(value: str, pattern: str) -> str:
    """SQL for a value as a moment: a day of this pattern, or as programs write it, with or without a time."""
    formats = [day + time for day in dict.fromkeys((pattern, _ISO)) for time in _TIMES]
    listed = ", ".join(map(literal, formats))
    return f"try_strptime({value}, [{listed}])"


def _fitting(
    connection: duckdb.DuckDBPyConnection, source: str, column: str, patterns: Sequence[str]
) -> dict[str, int]:
    """How many values fit each pattern. Two digits are no year where a pattern wants four; where it wants two, day and month
    have two as well, for 1.2.3 is rather a version."""
    value = f"trim({quoted(column)})"
    parsed = [_parsed(value, pattern) for pattern in patterns]
    two = f"regexp_matches({value}, '^\\d\\d[./]\\d\\d[./]\\d\\d($| )|\\pL|^\\d{{4}}-')"
    years = [
        f"regexp_matches({value}, '\\d') AND year({each}) BETWEEN 1000 AND 2999"
        + (f" AND {two}" if "%y" in pattern else "")
        for pattern, each in zip(patterns, parsed, strict=True)
    ]
    counted = ", ".join(f"count(*) FILTER ({each})" for each in years)
    row = connection.execute(f"SELECT {counted} FROM {source}").fetchone() or ()
    return dict(zip(patterns, row, strict=True))


def _spelt(pattern: str) -> str:
    """day.month.year"""
    for sign, word in _WORDS.items():
        pattern = pattern.replace(sign, word)
    return pattern


def _in_unit(unit: str) -> str:
    return "in percent" if unit == "%" else f"in {unit}"


def _misfits(count: int, counts: Counts, what: str) -> str:
    example = f", such as “{counts.odd[:30]}”" if counts.odd and what == "number" else ""
    verb = f"is no {what}" if count == 1 else f"are not {what}s"
    return f"text, for {count:,} of {counts.given:,} values {verb}{example}"


def _note(told: Sequence[str], marks: int) -> str:
    empty = [f"{marks:,} {'mark' if marks == 1 else 'marks'} for nothing left empty"] if marks else []
    return "; ".join([*told, *empty])
