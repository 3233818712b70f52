r"""Rewrites a statement from the words that the parser saw, so that an engine cannot see other ones.

sqlglot and the engines disagree about where comments, spaces and quoted texts end. So the original text is never sent: comments
are removed, words are separated by plain white space, a text in quotes has the one spelling that every engine reads alike, an
unquoted name outside ASCII is put in quotes, and an alias has its AS, so that no engine takes it for a word of its own grammar.
Then the new text is read again; unless it gives the same words it is refused.

A literal is written in single quotes. Escapes are resolved, so that no setting of a server decides where the text ends:
`E'a\n'` becomes a text with a line end in it. MySQL keeps its backslash escapes; its sessions are set accordingly.

sqlglot's own generator is not used: it renames functions and drops what it does not know, which changes results and the
headings of columns.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokenizer_core import Token, TokenType

from tools.guard.allowed import never
from tools.result import QueryError

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


_TEXTS = {
    TokenType.STRING, TokenType.HEREDOC_STRING, TokenType.BYTE_STRING, TokenType.RAW_STRING, TokenType.UNICODE_STRING,
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\s+[A-Za-z_][A-Za-z0-9_]*)*")
_ODD_NAME = re.compile(r"\w[\w$]*")
_PARAMETER = re.compile(r"\$[A-Za-z0-9_]+")  # the guard has words of its own for these
_NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DIGITS = re.compile(r"[bBxX]'[0-9A-Fa-f]*'|0[bBxX][0-9A-Fa-f]+")
_HEXADECIMAL = re.compile(r"0[xX][0-9A-Fa-f]{1,32}|0[bB][01]{1,128}")
_NATIONAL = re.compile(r"[Nn]('.*')", re.DOTALL)
_QUOTED = re.compile(r'"(?:[^"]|"")+"|`(?:[^`]|``)+`|\[[^\]\[]+\]')
_SIGNS = re.compile(r"[-+*/%<>=~!@#^&|?:,.;()\[\]{}$]+")
_CLAUSE_WORDS = {
    "absent", "all", "apply", "array", "asymmetric", "at", "binary", "breadth", "by", "conditional", "current", "depth",
    "distinct", "error", "escape", "exclude", "exclusive", "filter", "first", "following", "groups", "if",
    "ignore", "include", "lambda", "last", "local", "locked", "lookup", "materialized", "measures", "name", "next", "no",
    "nocase", "nulls", "only", "others", "over", "overflow", "percent", "placing", "preceding", "recursive", "rename",
    "repeatable", "respect", "row", "rows", "rtrim", "sample", "search", "separator", "set", "sets", "symmetric", "ties",
    "truncate", "type", "unbounded", "unconditional", "value", "values", "within", "without", "wrapper", "zone",
}  # fmt: skip
"""Words of clauses that are no keywords to sqlglot and are not kept as such in its tree."""
_RESERVED = {
    "add", "all", "alter", "and", "as", "case", "check", "collate", "constraint", "create", "default", "delete", "distinct",
    "drop", "else", "except", "exists", "foreign", "from", "group", "having", "in", "insert", "intersect", "into", "is", "join",
    "limit", "not", "null", "on", "or", "order", "primary", "references", "select", "set", "table", "then", "to", "union",
    "unique", "update", "using", "values", "when", "where",
}  # fmt: skip
"""Words that no engine reads as a name unless they are in quotes."""
_BEFORE_TABLES = (TokenType.FROM, TokenType.JOIN, TokenType.COMMA, TokenType.L_PAREN, TokenType.DOT, TokenType.IN)
_LITERALS = (TokenType.NUMBER, TokenType.STRING)
_ENDS_OF_ITEMS = (TokenType.COMMA, TokenType.R_PAREN)
LISTED = 100
_OPENS_COMMENT = re.compile(r"--|/\*|\*/|\{[#%{]|[#%}]\}")
_SPACE = re.compile(r"[ \t\r\n]*")
_WORDY = re.compile(r"[\w$'\"`]")
_TIGHT = set("(),;.[]")
_STRICT = ("postgres", "duckdb")
_OPERATOR_SIGNS = frozenset("+-*/<>=~!@#%^&|`?")
_OPERATORS = {
    "postgres": frozenset({"<<", ">>", "<<=", ">>=", "!~", "!~*", "!~~", "!~~*"}),
    "duckdb": frozenset({"<<", ">>", "!~~", "!~~*"}),
}
"""Operators of the system's own that sqlglot reads as two words."""
"""Dialects that head a column without looking at the text, so that signs may be parted from each other."""


@dataclass(frozen=True, slots=True)
class Respelt:
    """`text`, and where its parts stood in the statement that was given: `(place in text, place there)`, in order.

    `tokens` are those of `text`, where it was not edited.
    """

    text: str
    places: tuple[tuple[int, int], ...]
    tokens: tuple[Token, ...] = field(default=(), compare=False, repr=False)

    def origin(self, place: int | None) -> int | None:
        """Where the word that stands at `place` in `text` stood in the statement that was given."""
        if place is None or not self.places:
            return None
        at = max(0, bisect_right(self.places, place, key=lambda pair: pair[0]) - 1)
        return self.places[at][1] + (place - self.places[at][0] if self._is_copied(at, place) else 0)

    def _is_copied(self, at: int, place: int) -> bool:
        """Whether `place` lies in a part that is as long here as there."""
        start, there = self.places[at]
        if at + 1 == len(self.places):
            return True
        return place < self.places[at + 1][0] and self.places[at + 1][0] - start == self.places[at + 1][1] - there


def respelt(sql: str, dialect: str) -> Respelt | QueryError:
    """The statement, or the statements, in `sql` from their words alone. Raises SqlglotError where it cannot be read."""
    tokens = Dialect.get_or_raise(dialect).tokenize(sql)
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens = tokens[:-1]
    pieces: list[str] = []
    places: list[tuple[int, int]] = []
    length, end = 0, 0
    before = None
    for token in tokens:
        if before is not None and token.start == end and _is_half_a_number(before, token):
            return _joined(sql[before.start : token.end + 1], before.start)
        before = token
        spelling = _spelling(sql[token.start : token.end + 1], token, dialect)
        if spelling is None:
            return _unsure(sql, token.start)
        gap = _gap(sql[end : token.start] if pieces else "", pieces[-1] if pieces else "", spelling, dialect)
        if gap == " " and token.start == end and _is_one_operator(sql, token, dialect):
            gap = ""
        length += len(gap)
        places.append((length, token.start))
        pieces += (gap, spelling) if gap else (spelling,)
        length, end = length + len(spelling), token.end + 1
    return _read_alike(Respelt("".join(pieces), tuple(places)), tokens, sql, dialect)


def with_aliases_marked(given: Respelt, tree: exp.Expr) -> Respelt:
    """The same statement with AS before each alias that lacks it. `tree`: the parse of `given.text`."""
    starts = sorted(
        {start for alias in tree.find_all(exp.Alias, exp.TableAlias) if (start := _start(alias)) is not None}
    )
    if not starts:
        return given
    tokens = given.tokens
    around = zip((None, *tokens), tokens, (*tokens[1:], None), strict=False)
    before = {token.start: (last, after) for last, token, after in around}
    bare = [start for start in starts if start in before and _lacks_as(*before[start])]
    if not bare:
        return given
    return edited(given, [(start, start, "AS ") for start in bare])


def without_long_lists(tokens: Sequence[Token]) -> list[Token]:
    """The tokens without most of the literals of a long list: there is nothing to judge in them, and parsing takes long."""
    kept: list[Token] = []
    listed = at = 0
    while at < len(tokens):
        kinds = [token.token_type for token in tokens[at : at + 3]]
        is_item = (
            len(kinds) == 3 and kinds[0] == TokenType.COMMA and kinds[1] in _LITERALS and kinds[2] in _ENDS_OF_ITEMS
        )
        listed = listed + 1 if is_item else 0
        if listed <= LISTED:
            kept += tokens[at : at + 1 + is_item]
        at += 1 + is_item
    return kept


def dropped_name(given: Respelt, tree: exp.Expr, tables: Container[str]) -> Token | None:
    """A name in the text that is nowhere in its parse: `FROM people VALUES (1)` is to sqlglot `VALUES (1)` and nothing else.

    Looked for are names, and other words that name one of the `tables` (in lower case) where an engine may read a table.
    """
    nodes = list(tree.walk())
    starts = {node.meta.get("start") for node in nodes if isinstance(node, exp.Identifier | exp.Func)}
    loose = Counter(
        text.casefold()
        for node in nodes
        if not (isinstance(node, exp.Identifier) and "start" in node.meta)
        for text in node.args.values()
        if isinstance(text, str)
    )
    around = zip((None, *given.tokens), given.tokens, (*given.tokens[1:], None), strict=False)
    for before, token, after in around:
        name = token.text.casefold()
        is_called = after is not None and after.token_type == TokenType.L_PAREN and not never(name)
        is_word = token.token_type == TokenType.VAR and (is_called or name in _CLAUSE_WORDS)
        is_name = token.token_type in (TokenType.VAR, TokenType.IDENTIFIER) and not is_word
        names_a_table = name in tables and not is_called and _may_be_a_table(before, token)
        if token.start in starts or not (is_name or names_a_table):
            continue
        if not loose[name]:
            return token
        loose[name] -= 1
    return None


def _may_be_a_table(before: Token | None, token: Token) -> bool:
    """Whether a word stands where an engine may read a table, and is none that all engines reserve."""
    if token.token_type in _TEXTS or token.text.casefold() in _RESERVED:
        return False
    return (
        before is None or before.token_type in _BEFORE_TABLES or before.text.casefold() in ("only", "table", "lateral")
    )


def edited(given: Respelt, edits: list[tuple[int, int, str]]) -> Respelt:
    """`given` with each `(start, end, text)` put in, in order and apart from each other; places keep pointing home."""
    pieces: list[str] = []
    places: list[tuple[int, int]] = []
    done = shift = at = 0
    for start, end, text in [*edits, (len(given.text), len(given.text), "")]:
        pieces += (given.text[done:start], text)
        while at < len(given.places) and given.places[at][0] < start:
            places.append((given.places[at][0] + shift, given.places[at][1]))
            at += 1
        if text:
            places.append((start + shift, given.origin(start) or 0))
        while at < len(given.places) and given.places[at][0] < end:
            at += 1
        shift, done = shift + len(text) - (end - start), end
    return Respelt("".join(pieces), tuple(places))


def _spelling(raw: str, token: Token, dialect: str) -> str | None:
    """How the word is rewritten; None where it is not certain that every reader sees it end in the same place."""
    kind = token.token_type
    if kind in _TEXTS:
        return plain_literal(raw, dialect) or _generated(token, dialect)
    if kind == TokenType.NATIONAL_STRING:
        national = _NATIONAL.fullmatch(raw)
        literal = plain_literal(national[1], dialect) if national else None
        return None if literal is None else "N" + literal
    if kind == TokenType.IDENTIFIER:
        return raw if _QUOTED.fullmatch(raw) else None
    if kind == TokenType.NUMBER:
        return next((each for each in (raw, token.text) if _NUMBER.fullmatch(each)), None)
    if kind in (TokenType.HEX_STRING, TokenType.BIT_STRING):
        return raw if _DIGITS.fullmatch(raw) else None
    if raw.isascii() and _WORD.fullmatch(raw):
        return raw if _SPACE.fullmatch("".join(re.findall(r"\s", raw))) else " ".join(raw.split())
    if kind == TokenType.VAR and _ODD_NAME.fullmatch(raw):
        return _quoted_name(raw, dialect)
    if _PARAMETER.fullmatch(raw):
        return raw
    return raw if raw.isascii() and _SIGNS.fullmatch(raw) and not _OPENS_COMMENT.search(raw) else None


def _generated(token: Token, dialect: str) -> str | None:
    """A text of a dialect whose escapes are known to sqlglot alone."""
    if dialect in ("sqlite", "duckdb", "postgres", "mysql") or token.token_type != TokenType.STRING:
        return None
    return exp.Literal.string(token.text).sql(dialect)


def _quoted_name(name: str, dialect: str) -> str:
    """A name as the engine reads it without quotes. SQLite takes double quotes for a text when it knows no such name."""
    if dialect == "postgres":
        name = "".join(letter.lower() if letter.isascii() else letter for letter in name)
    return f"`{name}`" if dialect in ("sqlite", "mysql") else exp.to_identifier(name, quoted=True).sql(dialect)


def _is_one_operator(sql: str, token: Token, dialect: str) -> bool:
    """Whether the word before and this one were written as one operator of the engine, which sqlglot cuts in two: put apart
    they mean something else. The run of signs around them has to be just this operator, for engines take the longest."""
    first, last = token.start, token.end + 1
    while first > 0 and sql[first - 1] in _OPERATOR_SIGNS:
        first -= 1
    while last < len(sql) and sql[last] in _OPERATOR_SIGNS:
        last += 1
    return sql[first:last] in _OPERATORS.get(dialect, ())


def _gap(given: str, before: str, after: str, dialect: str) -> str:
    """What stands between two words: the plain white space that was given, else as little as keeps them apart."""
    if given:
        return given if _SPACE.fullmatch(given) else "\n" if "\n" in given else " "
    if not before or before[-1] in _TIGHT or after[0] in _TIGHT:
        return ""
    are_words = _WORDY.match(before[-1]) and _WORDY.match(after[0])
    is_apart = are_words or dialect in _STRICT or _OPENS_COMMENT.search(before[-1] + after[0])
    return " " if is_apart else ""


def _read_alike(new: Respelt, tokens: list[Token], sql: str, dialect: str) -> Respelt | QueryError:
    again = Dialect.get_or_raise(dialect).tokenize(new.text)
    for first, second in zip(tokens, again, strict=False):
        if _meaning(first) != _meaning(second):
            return _unsure(sql, first.start)
    if len(again) != len(tokens):
        return _unsure(sql, tokens[-1].start if tokens else 0)
    return replace(new, tokens=tuple(again))


def _meaning(token: Token) -> tuple[object, str]:
    """What a word is. How a text was quoted, and whether an odd name was, makes no difference."""
    if token.token_type in _TEXTS:
        return TokenType.STRING, ""  # its spelling was read and written by `plain_literal`
    if token.token_type in (TokenType.VAR, TokenType.IDENTIFIER):
        return TokenType.VAR, token.text.casefold()
    return token.token_type, " ".join(token.text.split())


def _unsure(sql: str, place: int) -> QueryError:
    shown = sql[place : place + 20].split("\n")[0]
    message = f"refused: engines may read {shown!a} in another way than the guard; use plain characters outside quotes"
    return QueryError("refused", message, None, place)


def _is_half_a_number(before: Token, token: Token) -> bool:
    return before.token_type == TokenType.NUMBER and token.token_type == TokenType.VAR


def _joined(word: str, place: int) -> QueryError:
    """`0xff` is one number to some engines, to others a zero called xff."""
    shown = word[:20]
    number = _HEXADECIMAL.fullmatch(word)
    advice = f"write {int(word, 0)}" if number else "put a space between them"
    message = f"refused: engines do not read {shown!a}, a number and a name that touch, alike; {advice}"
    return QueryError("refused", message, None, place)


def _start(alias: exp.Expr) -> int | None:
    if isinstance(alias.parent, exp.CTE):
        return None
    name = alias.args.get("alias") if isinstance(alias, exp.Alias) else alias.args.get("this")
    return name.meta.get("start") if isinstance(name, exp.Identifier) else None


def _lacks_as(before: Token | None, after: Token | None) -> bool:
    has_as = before is None or before.token_type == TokenType.ALIAS
    return not has_as and (after is None or after.token_type != TokenType.COLON)
