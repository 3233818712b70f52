"""Makes text from databases, models and files safe for a terminal: control characters are spelled out."""

import re

# Control characters (C0 except line ends and tabs, DEL, C1), lone surrogates, line and paragraph separators, bidi marks, and
# invisible tags.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)


def shown(text: str) -> str:
    """The text with control characters spelled out, an escape character as \\x1b; line ends and tabs stay.

    >>> print(shown("a red \x1b[31mname"))
    a red \\x1b[31mname
    """
    return _STEERING.sub(_spelt, text)


def in_json(text: str) -> str:
    """JSON with the same meaning, in which such characters are written as \\u and four digits."""
    return _STEERING.sub(lambda found: "".join(f"\\u{unit:04x}" for unit in _utf_16(found[0])), text)


def _spelt(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _utf_16(character: str) -> list[int]:
    data = character.encode("utf-16-be", errors="surrogatepass")
    return [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]
