"""Decides, from the text alone, whether a statement may run: one read-only query over plain tables, or nothing.

Everything is an allow-list on sqlglot's tree: the root, every node class, what may stand in FROM, every function at every
position. A function that sqlglot has a class for passes unless it is listed as never; one without a class passes only when
`tools/guard/allowed.py` lists it for the dialect. A harmless function that the list lacks therefore comes back as
`unknown_function` with close names, like any misspelt one, and is not run: a list that lags behind an engine costs an
answer, never a file. Unknown tables are left to the engine, which knows candidates.

What is judged is what runs: the statement is written again from its words first (`tools/guard/canonicalize.py`), that text
is parsed and judged, and that text goes to the engine, never the one that was given.

The guard is the first of two locks. It is not the last: each engine repeats it with its own means (read-only file, no
external access, authorizer, read-only transaction), so that a disagreement between sqlglot's parser and the engine's, or a
view or macro that lies in a hostile file, meets the second. What no engine bounds, the length of one text, is bounded here
alone (`tools/guard/size_limits.py`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokenizer_core import Token

from tools.guard.allowed import (
    TABLE_FUNCTIONS,
    function_name,
    never,
    ordinary,
    refused,
    rows_objection,
    table_objection,
    type_objection,
    written_name,
)
from tools.guard.canonicalize import Respelt, dropped_name, respelt, with_aliases_marked, without_long_lists
from tools.guard.names import unresolved
from tools.guard.size_limits import growth
from tools.result import QueryError
from tools.schema import Schema, derived
from tools.sql.scope import parse_quietly

MAX_CHARACTERS = 100_000
MAX_WORDS = 40_000
"""Words and signs. Telling them apart takes about 20 microseconds each, so these take a second or two."""

_ROOTS = (exp.Select, exp.SetOperation, exp.Subquery, exp.Values)

_CLAUSES = (
    *_ROOTS, exp.Alias, exp.Aliases, exp.BitString, exp.CTE, exp.ColumnDef, exp.Comprehension, exp.Condition,
    exp.Cube, exp.DataType, exp.DataTypeParam, exp.Distinct, exp.Except, exp.Fetch, exp.Filter, exp.ForIn,
    exp.FormatJson, exp.From, exp.FromTimeZone, exp.AtTimeZone, exp.Group, exp.GroupingSets, exp.Having,
    exp.HavingMax, exp.HexString, exp.Identifier, exp.IgnoreNulls, exp.Interval, exp.IntervalOp, exp.IntervalSpan,
    exp.Introducer, exp.JSON, exp.JSONColumnDef, exp.JSONExtractQuote, exp.JSONKeyValue, exp.JSONPath,
    exp.JSONPathPart, exp.JSONSchema, exp.JSONValue, exp.Join, exp.Lambda, exp.Lateral, exp.Limit, exp.LimitOptions,
    exp.National, exp.Nearest, exp.Offset, exp.OnCondition, exp.Order, exp.Ordered, exp.OverflowTruncateBehavior,
    exp.Pivot, exp.PivotAlias, exp.PivotAny, exp.PositionalColumn, exp.PropertyEQ, exp.Qualify, exp.RespectNulls,
    exp.Rollup, exp.Schema, exp.Slice, exp.Sort, exp.Star, exp.Table, exp.TableAlias, exp.TableColumn,
    exp.TableSample, exp.TimeUnit, exp.Tuple, exp.UnpivotColumns, exp.Var, exp.Where, exp.WindowSpec, exp.With,
    exp.WithinGroup,
)  # fmt: skip

_NEVER_CLASSES = (
    exp.Parameter, exp.Placeholder, exp.SessionParameter, exp.ReadCSV, exp.ReadParquet, exp.ToFile,
    exp.NextValueFor, exp.Secret, exp.DynamicIdentifier, exp.AIAgg, exp.AIClassify, exp.AIEmbed, exp.AIForecast,
    exp.AIGenerate, exp.AISimilarity, exp.AISummarizeAgg, exp.FeaturesAtTime, exp.GenerateBool, exp.GenerateDouble,
    exp.GenerateEmbedding, exp.GenerateInt, exp.GenerateTable, exp.GenerateText, exp.MLForecast, exp.MLTranslate,
    exp.Predict, exp.VectorSearch, exp.NetFunc, exp.Operator,
)  # fmt: skip

_EXECUTABLE_COMMENT = re.compile(r"/\*M?!")
_COMMAND = re.compile(r"\s*(explain|show|describe|desc|pragma|set|call|copy|attach|detach|use)\s", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ApprovedQuery:
    """A statement that may run: its text as the engine gets it, and the tree of that text."""

    spelling: Respelt
    tree: exp.Expr

    @property
    def text(self) -> str:
        """What the engine gets."""
        return self.spelling.text


def guard(sql: str, dialect: str, schema: Schema | None = None) -> QueryError | None:
    """None when `sql` is one read-only query; else why not: "refused", "syntax", or "unknown_function".

    With a `schema`, names qualified by a schema or catalogue that it does not have are refused too.
    """
    verdict = judged(sql, dialect, schema)
    return verdict if isinstance(verdict, QueryError) else None


def judged(sql: str, dialect: str, schema: Schema | None = None) -> ApprovedQuery | QueryError:
    """The statement in `sql`, rewritten from its checked words, or why it is not run."""
    try:
        spelling = _unreadable(sql, dialect) or respelt(sql, dialect)
        if isinstance(spelling, QueryError):
            return spelling
        if len(spelling.tokens) > MAX_WORDS:
            return refused(f"the statement has more than {MAX_WORDS} words and signs; ask for fewer values at a time")
        return _judged(spelling, dialect, schema)
    except SqlglotError as error:
        return QueryError("syntax", f"cannot read this SQL: {_one_line(error)}")
    except RecursionError:
        return refused("the statement is nested too deeply")


def _judged(spelling: Respelt, dialect: str, schema: Schema | None) -> ApprovedQuery | QueryError:
    try:
        statements = _parsed(spelling, dialect)
    except ParseError as error:
        return _syntax_error(error, spelling)
    objection = _judge(statements, spelling.text, dialect, schema)
    if objection is not None:
        return replace(objection, position=spelling.origin(objection.position))
    if (dropped := dropped_name(spelling, statements[0], _bare_names(schema) if schema else frozenset())) is not None:
        return _not_understood(dropped, spelling)
    marked = with_aliases_marked(spelling, statements[0])
    again = statements if marked is spelling else _parsed(marked, dialect)
    if again != statements:
        return refused("an alias without AS can be read in two ways; write AS before it")
    return ApprovedQuery(marked, again[0])


@derived
def _bare_names(schema: Schema) -> frozenset[str]:
    return frozenset(table.name.rpartition(".")[2].casefold() for table in schema.tables)


def _parsed(spelling: Respelt, dialect: str) -> list[exp.Expr]:
    tokens = spelling.tokens or Dialect.get_or_raise(dialect).tokenize(spelling.text)
    return parse_quietly(spelling.text, dialect, without_long_lists(tokens))


def _not_understood(token: Token, spelling: Respelt) -> QueryError:
    message = f"the part with {token.text} is not understood; write the query in a more common way"
    return replace(refused(message), position=spelling.origin(token.start))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _unreadable(sql: str, dialect: str) -> QueryError | None:
    if len(sql) > MAX_CHARACTERS:
        return refused(f"the statement is longer than {MAX_CHARACTERS} characters")
    if not sql.strip():
        return QueryError("syntax", "the statement is empty")
    if command := _COMMAND.match(sql):  # of which sqlglot reads the rest as one text
        return refused(f"only SELECT queries are run, this is {command[1].upper()}")
    if "\0" in sql or any("\ud800" <= character <= "\udfff" for character in sql):
        return QueryError("syntax", "the statement holds characters that are not text")
    if dialect == "mysql" and _EXECUTABLE_COMMENT.search(sql):
        return refused("MySQL runs the text of /*! comments")
    if dialect == "postgres" and re.search(r"\bU&[\"']", sql, re.IGNORECASE):
        return refused("names written in Unicode escapes cannot be checked")
    return None


def _syntax_error(error: ParseError, spelling: Respelt) -> QueryError:
    sql = spelling.text
    detail = error.errors[0] if error.errors else {}
    line, column, token = detail.get("line"), detail.get("col"), detail.get("highlight") or ""
    position = None
    if line is not None and column is not None:
        start = sum(len(text) + 1 for text in sql.split("\n")[: line - 1])
        position = max(0, min(start + column - len(token), len(sql)))
    description = " ".join(str(detail.get("description") or error).split())
    if re.match("Required keyword|Expected .* but got <Token", description):  # sqlglot names its own classes here
        description = "something is missing after it"
    place = spelling.origin(position)
    return QueryError("syntax", f"syntax error at {token!r}: {description}", token or None, place)


def _judge(statements: list[exp.Expr], text: str, dialect: str, schema: Schema | None) -> QueryError | None:
    if not statements:
        return QueryError("syntax", "there is no statement here")
    if len(statements) > 1:
        return refused(f"only one statement at a time, here are {len(statements)}")
    root = statements[0]
    if isinstance(root, exp.Pivot):
        return refused("only SELECT queries are run; write SELECT * FROM table PIVOT (... FOR column IN (...))")
    if not isinstance(root, _ROOTS):
        return refused(f"only SELECT queries are run, this is {_what(root)}")
    return next(_objections(root, text, dialect, schema), None)


def _what(node: exp.Expr) -> str:
    return str(node.this).upper() if isinstance(node, exp.Command) else type(node).__name__.upper()


def _objections(root: exp.Expr, text: str, dialect: str, schema: Schema | None) -> Iterator[QueryError]:
    for node in root.walk():
        objection = _objection(node, dialect, schema)
        if objection is not None:
            yield objection
        if isinstance(node, exp.Func) and never(written := written_name(node, text)):
            yield refused(f"the function {written} is not allowed", written)
    yield from unresolved(root, text, dialect, schema)
    too_long = growth(root)
    if too_long is not None:
        yield refused(too_long)


def _objection(node: exp.Expr, dialect: str, schema: Schema | None) -> QueryError | None:
    if isinstance(node, exp.Func):
        return _function_objection(node, dialect)
    if isinstance(node, _NEVER_CLASSES) or not isinstance(node, _CLAUSES):
        return refused(f"{_what(node)} has no place in a read-only query")
    if isinstance(node, exp.Identifier) and not node.quoted and node.name.startswith(("$", "@", ":")):
        return refused(f"there is no value for the parameter {node.name}")
    if isinstance(node, exp.Table):
        return table_objection(node, dialect, schema)
    if isinstance(node, exp.Lateral):
        return rows_objection(node)
    if isinstance(node, exp.DataType):
        return type_objection(node, schema)
    if isinstance(node, exp.CTE) and not isinstance(node.this, _ROOTS):
        return refused(f"WITH may only name a SELECT, not {_what(node.this)}")
    if isinstance(node, exp.Pivot) and _makes_a_type(node):
        return refused("PIVOT ... ON needs its values: ON column IN (...)")
    return None


def _makes_a_type(pivot: exp.Pivot) -> bool:
    """DuckDB runs `PIVOT t ON column` as two statements, of which the first creates a type from the column's values."""
    on = pivot.expressions if pivot.this and not pivot.args.get("unpivot") else []
    return not all(isinstance(column, exp.In) for column in on)


def _function_objection(function: exp.Func, dialect: str) -> QueryError | None:
    name = function_name(function)
    if isinstance(function, _NEVER_CLASSES) or never(name):
        return refused(f"the function {name} is not allowed", name)
    allowed = ordinary(dialect) | TABLE_FUNCTIONS
    if isinstance(function, exp.Anonymous | exp.AnonymousAggFunc) and name not in allowed:
        close = tuple(get_close_matches(name, allowed, n=3))
        return QueryError("unknown_function", f"no function {name} is known here", name, None, close)
    return None
