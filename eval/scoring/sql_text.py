"""SQL as text: comments, quotes, statements and the word DISTINCT. No grammar, so it also takes SQL that is wrong."""

import re
from collections.abc import Iterator

# One lexical piece each: literal, quoted name, comment, word, or any other single character. A backslash before a
# quote continues the literal when a later quote can end it: the official Spider script's lexer (sqlparse) reads it so.
_PIECE = re.compile(
    r"""(?P<quoted>'(?:''|\\'|[^'])*'|"(?:""|\\"|[^"])*"|`(?:``|[^`])*`|(?<![\w\])])\[[^\[\]]+\])
    |(?P<line_comment>--[^\r\n]*)
    |(?P<block_comment>/\*.*?\*/)
    |(?P<word>\w[\w$\#]*)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def _pieces(sql: str) -> Iterator[tuple[str, str]]:
    """(kind, text) of each lexical piece; their texts joined are `sql`."""
    for match in _PIECE.finditer(sql):
        yield match.lastgroup or "other", match.group()


def one_line(sql: str) -> str:
    """`sql` without line comments, each line break and tab as a space: the same query on one line.

    A line break inside a literal becomes a space too, as a prediction file of one line each cannot hold it.
    """
    kept = "".join(" " if kind == "line_comment" else text for kind, text in _pieces(sql))
    return re.sub(r"[\r\n\t\v\f]", " ", kept).strip()


def first_statement(sql: str) -> str:
    """`sql` up to and with the first semicolon that stands outside of literals, comments and parentheses."""
    depth, kept = 0, []
    for kind, text in _pieces(sql):
        kept.append(text)
        if kind == "other":
            depth += (text == "(") - (text == ")")
            if text == ";" and depth <= 0:
                break
    return "".join(kept)


def without_distinct(sql: str) -> str:
    """`sql` with every word DISTINCT dropped, also inside COUNT(DISTINCT x); literals and quoted names keep theirs."""
    return "".join(text for kind, text in _pieces(sql) if not (kind == "word" and text.lower() == "distinct"))
