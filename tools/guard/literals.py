"""Texts in quotes, read as an engine reads them and written in the one way that every engine reads alike.

A literal leaves here in single quotes. Escapes are resolved, so that no setting of a server decides where the text ends:
`E'a\\n'` becomes a text with a line end in it. MySQL keeps its backslash escapes, which its sessions are held to.
"""

import re
from collections.abc import Callable

_POSTGRES_ESCAPE = re.compile(
    r"\\(?:x(?P<hex>[0-9A-Fa-f]{1,2})|u(?P<u4>[0-9A-Fa-f]{4})|U(?P<u8>[0-9A-Fa-f]{8})|(?P<octal>[0-7]{1,3})|(?P<sign>.))",
    re.DOTALL,
)
_MYSQL_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_MYSQL_SIGNS = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}

_PLAIN = re.compile(r"'((?:[^']|'')*)'")
_ESCAPED = re.compile(r"[Ee]'((?:[^'\\]|\\.|'')*)'", re.DOTALL)
_DOLLARS = re.compile(r"(\$(?:[A-Za-z_][A-Za-z0-9_]*)?\$)(.*)\1", re.DOTALL)
_MYSQL_SINGLE = re.compile(r"'((?:[^'\\]|\\.|'')*)'", re.DOTALL)
_MYSQL_DOUBLE = re.compile(r'"((?:[^"\\]|\\.|"")*)"', re.DOTALL)


def plain_literal(spelling: str, dialect: str) -> str | None:
    """The text that `spelling` stands for, in single quotes; None for a spelling whose end engines may see elsewhere."""
    if dialect == "mysql":
        return _mysql_literal(spelling)
    if _PLAIN.fullmatch(spelling):
        return spelling
    if dialect not in ("postgres", "duckdb"):
        return None
    if (escaped := _ESCAPED.fullmatch(spelling)) is not None:
        return _in_quotes(_resolved(escaped[1].replace("''", "'"), _POSTGRES_ESCAPE, _postgres_sign))
    dollars = _DOLLARS.fullmatch(spelling)
    return None if dollars is None or dollars[1] in dollars[2] else _in_quotes(dollars[2])


def _mysql_literal(spelling: str) -> str | None:
    single = _MYSQL_SINGLE.fullmatch(spelling)
    if single is not None and "\\" not in spelling:
        return spelling
    double = _MYSQL_DOUBLE.fullmatch(spelling)
    if single is None and double is None:
        return None
    text = single[1].replace("''", "'") if single is not None else double[1].replace('""', '"')  # type: ignore[index]
    value = _resolved(text, _MYSQL_ESCAPE, lambda found: _MYSQL_SIGNS.get(found[1], found[1]))
    return None if value is None else _in_quotes(value.replace("\\", "\\\\").replace("\0", "\\0"))


def _resolved(text: str, escape: re.Pattern[str], meaning: Callable[[re.Match[str]], str]) -> str | None:
    try:
        return escape.sub(meaning, text)
    except ValueError:
        return None


def _postgres_sign(found: re.Match[str]) -> str:
    """Raises ValueError for a number that is no character: a byte above 127 means another one in each encoding."""
    if found["sign"]:
        return _CONTROLS.get(found["sign"], found["sign"])
    number = int(found["octal"], 8) if found["octal"] else int(found["hex"] or found["u4"] or found["u8"], 16)
    is_byte = bool(found["octal"] or found["hex"])
    if number == 0 or number > (127 if is_byte else 0x10FFFF) or 0xD800 <= number <= 0xDFFF:
        raise ValueError(number)
    return chr(number)


def _in_quotes(text: str | None) -> str | None:
    return None if text is None else "'" + text.replace("'", "''") + "'"
