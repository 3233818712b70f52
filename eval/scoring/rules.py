"""How a benchmark judges an answer, and SQL as text (without a grammar, so that wrong SQL is accepted).

`SpiderRules` and `BirdRules` are the official ones. Subclasses inherit the defaults below.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

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


Row = tuple[object, ...]

# Stands for "no prediction": the official scripts need some SQL, and this fails on every database.
PLACEHOLDER = "SELECT no_prediction"


class Predicted(Protocol):
    """The part of a record that goes into a prediction file."""

    @property
    def db_id(self) -> str: ...

    @property
    def gold(self) -> str: ...

    @property
    def sql(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Marks:
    """How rows are marked; `soft_f1` is None if the benchmark has none."""

    correct: bool
    soft_f1: float | None = None


class Rules(ABC):
    """The rules of a benchmark. They hold no state, since the scoring process imports the class by its module and name.

    levels: the difficulties in the order of a summary. lenient: bytes that are not UTF-8 are dropped; otherwise such a query
    fails. shared_deadline: the gold query's time counts towards the prediction's. has_soft_f1: rows are marked with a soft F1.
    has_ves: correct SQL is timed for R-VES.
    """

    levels: ClassVar[Sequence[str]] = ()
    lenient: ClassVar[bool] = False
    shared_deadline: ClassVar[bool] = False
    has_soft_f1: ClassVar[bool] = False
    has_ves: ClassVar[bool] = False

    @abstractmethod
    def marks(self, gold: str, gold_rows: Sequence[Row], rows: Sequence[Row]) -> Marks:
        """The marks of the predicted `rows`, compared with those of the query `gold`."""

    def prediction(self, sql: str) -> str:
        """A prediction as it is written to files and scored; never empty."""
        return sql.strip() or PLACEHOLDER

    def runnable_gold(self, gold: str) -> str:
        """The gold query in the form that is run."""
        return gold

    def runnable(self, prediction: str) -> str:
        """The result of `prediction` in the form that is run."""
        return prediction

    def databases(self, database: Path) -> Sequence[Path]:
        """The SQLite files on all of which an answer must be right."""
        return [database]

    def files(self, records: Sequence[Predicted]) -> Mapping[str, str]:
        """The files that the official script reads: content by file name, with an entry for each question, in order."""
        return {}
