"""Statements that two readers of SQL may cut into words in different ways. Data for differential.py.

Each puts a read of something hidden where one reader sees a comment, a text or a name, and another sees SQL: comments that
are nested, unclosed, conditional or hints; every space and line end of Unicode; quotes of each kind, dollars, escapes,
introducers; braces; words of one grammar that are names in another; very long words. Calls without parentheses have a file
of their own, attributes.py.
"""

import random
from collections.abc import Callable

from tests.tools.guard.fuzzing.attributes import Attributes

SPACES = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\xad\u1680\u180e\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
SPACES += "\u200a\u200b\u200c\u200d\u2028\u2029\u202f\u205f\u2060\u3000\u3164\ufeff"
LINE_ENDS = ("\n", "\n", "\r", "\r\n", "\x0b", "\x0c", "\x85", "\u2028", "\u2029")
COMMENTS = ("/*", "/*+", "/*!", "/*!50000", "/*M!", "/**", "--", "-- ", "#", "//", "{#", "{%", "<!--", "/*/", "%%")
CLOSERS = ("*/", "*/", "*/ */", "**/", "#}", "%}", "-->", "", "\n")
QUOTES = (
    "'",
    "'",
    '"',
    "`",
    "[",
    "$$",
    "$z$",
    "$1$",
    "E'",
    "e'",
    "N'",
    "U&'",
    "x'",
    "b'",
    "_utf8'",
    "_gbk'",
    "q'[",
    "r'",
)
CLOSING = {"[": "]", "$$": "$$", "$z$": "$z$", "$1$": "$1$", '"': '"', "`": "`", "q'[": "]'"}
ESCAPES = ("", "", "\\", "\\\\", "''", '""', "``", "\\'", "\\n", "%", "\\x27", "\u0301", "]]", "$", "\\\n")
BRACES = ("{#", "{%", "{{", "{-", "{--", "{d", "{ts", "{fn", "{", "{/*", "{!")
WORDS = (
    "AS", "TABLE", "FROM", "SELECT", "UNION", "UNION ALL", "EXCEPT", "INTERSECT", "JOIN", "NATURAL JOIN", "CROSS JOIN",
    "STRAIGHT_JOIN", "LATERAL", "ONLY", "IN", "EXISTS", "ANY", "VALUES", "WITH", "WINDOW", "PROCEDURE", "OFFSET", "FETCH",
    "LIMIT", "RETURNING", "INTO", "PIVOT", "UNPIVOT", "SUMMARIZE", "DESCRIBE", "SHOW", "MINUS", "QUALIFY", "SAMPLE",
    "TABLESAMPLE", "USING", "ON", "ASOF", "POSITIONAL", "SEMI", "ANTI", "OVER", "FILTER", "COLLATE", "INDEXED BY", "ORDER BY",
    "GROUP BY", "HAVING", "WHERE", "CASE", "END", "NOT", "NULL", "DISTINCT", "ALL", "ROW", "ARRAY", "MAP", "INTERVAL", "DATE",
    "CAST", "FOR", "SEPARATOR", "PARTITION", "HANDLER", "EXPLAIN", "DIV", "XOR", "|>", "|> UNION", "=>", ":=", "->", "::",
)  # fmt: skip
SIGNS = (
    "(",
    ")",
    ",",
    "*",
    "1",
    "a",
    "b",
    "name",
    "wage",
    "people",
    "secret",
    "'x'",
    ".",
    "=",
    "(a)",
    "(1)",
    "AS b",
    "p",
)
HIDDEN_TABLE = "secret"
READS = {
    "sqlite": ("(SELECT max(wage) FROM people)", "(SELECT v FROM secret)", "sqlite_version()"),
    "duckdb": (
        "(SELECT max(wage) FROM people)",
        "(SELECT v FROM secret)",
        "(SELECT content FROM read_text('{secret}'))",
    ),
    "postgres": ("(SELECT max(wage) FROM people)", "(SELECT v FROM secret)", "pg_backend_pid()"),
    "mysql": ("(SELECT max(wage) FROM people)", "(SELECT v FROM secret)", "load_file('{secret}')"),
}


class Oddities:
    """Statements for one dialect, drawn by `chance`."""

    def __init__(self, dialect: str, chance: random.Random) -> None:
        self._chance, self._reads = chance, READS[dialect]
        self._kinds: dict[str, Callable[[], str]] = {
            "nested comment": self._nested_comment,
            "dashes and a name": self._dashes,
            "braces": self._braces,
            "odd spaces": self._odd_spaces,
            "quotes": self._quotes,
            "words of the grammar": self._words,
            "long words": self._long_words,
            "anything": self._anything,
            "attributes": Attributes(dialect, chance).statement,
        }

    def statement(self) -> tuple[str, str]:
        """The kind of oddity, and a statement; `{secret}` in it stands for the path of a file that must not be read."""
        kind = self._pick(tuple(self._kinds))
        sql = self._kinds[kind]()
        return kind, self._mutated(sql) if self._chance.random() < 0.25 else sql

    def _pick(self, *choices: tuple[str, ...] | str) -> str:
        return self._chance.choice(self._chance.choice(choices))

    def _read(self) -> str:
        return self._pick(self._reads)

    def _space(self) -> str:
        return self._pick(" ", SPACES, ("", "/**/", "/* */", "--\n", "\n"))

    def _comment(self, depth: int = 0) -> str:
        """Opened up to three times, closed as often as it happens."""
        inner = self._comment(depth + 1) if depth < 2 and self._chance.random() < 0.5 else ""
        opened, gap = self._pick(("/*",), ("/*",), COMMENTS), self._pick(("",), (" ", " x ", "\n"))
        return opened + gap + inner + self._pick((" ", ""), (" */",), (" */", *CLOSERS))

    def _nested_comment(self) -> str:
        quote = self._pick(QUOTES, ("'",))
        before = (
            f"{self._comment()}{self._pick((', ', ' '))}{quote}{self._pick((' ', ''))}{self._pick(CLOSERS, ('*/',))}"
        )
        after = f"{self._pick(COMMENTS, ('--',), ('--',))}{self._pick((' ', ''))}{self._closing(quote)}"
        return f"SELECT 1 {before} , {self._read()} {after}"

    def _dashes(self) -> str:
        name = self._pick(SPACES) + "c"
        sign = self._pick(("--", "-- -", "#", "-", "/", "//", "--+", "—"), COMMENTS)
        return f"SELECT 1 {sign}{name}, {self._read()}{self._pick(LINE_ENDS)}FROM (SELECT 2 AS {name}) t"

    def _braces(self) -> str:
        opened, end = self._pick(BRACES), self._pick(LINE_ENDS)
        closed = self._pick(("#}", "%}", "}}", "-}", "}", "*/", ""))
        inner = self._pick(("d '2020-01-01'}", "1}", "'a': 1}", "d '2020-01-01'"))
        return f"SELECT 5, {opened}{end}{inner}, {self._read()}, {closed}{self._pick(LINE_ENDS)} 1"

    def _odd_spaces(self) -> str:
        space = self._pick(SPACES)
        tail = self._pick(("UNION SELECT v FROM secret", "FROM secret", "UNION ALL TABLE secret", f", {self._read()}"))
        return f"SELECT {self._pick(('1', chr(39) * 2))} AS x{space}{tail.replace(' ', space)}"

    def _quotes(self) -> str:
        first, second = self._pick(QUOTES), self._pick(QUOTES)
        middle = f"{self._pick(ESCAPES)}{self._closing(first)}"
        ending = f"{self._pick(ESCAPES)}{self._closing(second)}"
        cover = self._pick((", ", " ", "--", " --", "/*", "\n")) + self._pick(("", second, second))
        return f"SELECT {first}{self._pick(ESCAPES)}{middle} , {self._read()} {cover}{ending}"

    def _words(self) -> str:
        words = [self._pick(WORDS, WORDS, SIGNS) for _ in range(self._chance.randint(1, 3))]
        after = [self._pick(WORDS, SIGNS, SIGNS) for _ in range(self._chance.randint(0, 3))]
        hidden = self._pick((HIDDEN_TABLE, self._read(), f"({HIDDEN_TABLE})", f"main.{HIDDEN_TABLE}"))
        start = self._pick(
            ("SELECT 1", "SELECT 1 AS a", "SELECT name FROM people", "SELECT (", "FROM people", "SELECT 1 WHERE 1")
        )
        return f"{start} {' '.join(words)} {hidden} {' '.join(after)}{')' if start.endswith('(') else ''}"

    def _long_words(self) -> str:
        letter, size = (
            self._pick(("x", "1", " ", "\\", "é", "-", "(", "'")),
            self._chance.choice((63, 64, 255, 256, 4096, 20000)),
        )
        quote = self._pick(("", *QUOTES))
        return f"SELECT {quote}{letter * size}{self._closing(quote) if quote else ''} , {self._read()} {self._pick(COMMENTS)}"

    def _anything(self) -> str:
        parts = [
            self._pick(COMMENTS, CLOSERS, QUOTES, ESCAPES, WORDS, BRACES, SPACES, (",", ";", "1", "a", "(", ")"))
            for _ in range(8)
        ]
        cut = self._chance.randint(0, 8)
        return f"SELECT 1 {self._space().join(parts[:cut])} , {self._read()} {self._space().join(parts[cut:])}"

    def _mutated(self, sql: str) -> str:
        for _ in range(self._chance.randint(1, 3)):
            place = self._chance.randint(0, len(sql))
            put = self._pick(("",), SPACES, QUOTES, COMMENTS, CLOSERS, ESCAPES, LINE_ENDS)
            sql = sql[:place] + put + sql[place + self._chance.randint(0, 2) :]
        return sql

    def _closing(self, quote: str) -> str:
        return CLOSING.get(quote, "'")
