"""Handles SQL as text: comments, quotes, statements and the word DISTINCT. It has no grammar, so it accepts wrong SQL."""

import re
from collections.abc import Iterator

# One lexical piece each: literal, quoted name, comment, word, or any other single character. A backslash before a quote
# continues the literal if a later quote can end it, as in the official Spider script's lexer (sqlparse).
_PIECE = re.compile(
    r"""(?P<quoted>'(?:''|\\'|[^'])*'|"(?:""|\\"|[^"])*"|`(?:``|[^`])*`|(?<![\w\])])\[[^\[\]]+\])
    |(?P<line_comment>--[^\r\n]*)
    |(?P<block_comment>/\*.*?\*/)
    |(?P<word>\w[\w$\#]*)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def _pieces(sql: str) -> Iterator[tuple[str, str]]:
    """(kind, text) of each lexical piece; the texts together are `sql`."""
    for match in _PIECE.finditer(sql):
        yield match.lastgroup or "other", match.group()


def one_line(sql: str) -> str:
    """`sql` on one line, without line comments and with a space for each line break and tab.

    A line break inside a literal becomes a space too, because prediction files have one query per line.
    """
    kept = "".join(" " if kind == "line_comment" else text for kind, text in _pieces(sql))
    return re.sub(r"[\r\n\t\v\f]", " ", kept).strip()


def first_statement(sql: str) -> str:
    """`sql` up to and including the first semicolon outside literals, comments and parentheses."""
    depth, kept = 0, []
    for kind, text in _pieces(sql):
        kept.append(text)
        if kind == "other":
            depth += (text == "(") - (text == ")")
            if text == ";" and depth <= 0:
                break
    return "".join(kept)


def without_distinct(sql: str) -> str:
    """`sql` without any word DISTINCT, also inside COUNT(DISTINCT x), but not inside literals and quoted names."""
    return "".join(text for kind, text in _pieces(sql) if not (kind == "word" and text.lower() == "distinct"))
