"""What all databases share: the guard's check, a settled order of rows, and errors in plain words.

Reads messages; never runs SQL. DuckDB says all of it itself (`errors_as_json`); the others are read by pattern, and their
candidates come from the schema by closeness of spelling.
"""

import json
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, ClassVar, Self

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokenizer_core import Token, TokenType

from tools.databases.choices import SchemaCache
from tools.databases.database import Distinct
from tools.guard.allowed import ordinary
from tools.guard.guard import ApprovedQuery, judged
from tools.guard.visibility import outside_rules
from tools.processes import Reason, Watchdog
from tools.result import DEFAULT_LIMITS, ErrorKind, Limits, OpenError, QueryError, Result
from tools.schema import Schema
from tools.sql.scope import FromItem, sources
from tools.sql.spelling import identifier

SETTLED = ("duckdb", "postgres", "mysql")
"""Dialects whose engines leave the order of equal rows open; SQLite's is that of its rows."""
_LIMITS = (TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH)
_MANY_GROUPINGS = (exp.Cube, exp.GroupingSets, exp.Rollup)


@dataclass(frozen=True, slots=True)
class Settled:
    """A statement that sorts no rows as equal, and the keys that it has for that."""

    text: str
    keys: tuple[str, ...]


def settle_ties(statement: ApprovedQuery, schema: Schema) -> Settled | None:
    """The statement with keys added to its own ORDER BY, and to each one that a LIMIT, OFFSET or FETCH follows; None if there
    is none to add to.

    >>> from tools.guard.guard import judged
    >>> from tools.schema import Column, Table
    >>> album = Table("album", (Column("title", "VARCHAR"), Column("price", "DOUBLE")), row_count=9)
    >>> statement = judged("SELECT title FROM album ORDER BY price LIMIT 1", "duckdb")
    >>> settle_ties(statement, Schema((album,), "duckdb")).text
    'SELECT title FROM album ORDER BY price, "album".rowid LIMIT 1'
    """
    text, added = statement.text, list[str]()
    for place, keys in sorted(_additions(statement, schema), reverse=True):
        text = f"{text[:place].rstrip()}, {', '.join(keys)} {text[place:]}".rstrip()
        added[:0] = keys
    return Settled(text, tuple(added)) if added else None


def _additions(statement: ApprovedQuery, schema: Schema) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Where a key list ends in the text, and what is to stand there."""
    root = statement.tree
    ordered = [node for node in root.find_all(exp.Select, exp.SetOperation) if _is_open(node, node is root)]
    tokens = Dialect.get_or_raise(schema.dialect).tokenize(statement.text) if ordered else []
    for query in ordered:
        own = {_text(key.this, schema).casefold() for key in query.args["order"].expressions}
        keys = tuple(key for key in _keys(query, schema) if key.removesuffix(" DESC").casefold() not in own)
        place = _end_of_order(query, tokens) if _is_cut(query) else len(statement.text)
        if keys and place is not None:
            yield place, keys


def _is_open(query: exp.Expr, is_root: bool) -> bool:
    """Whether the order of equal rows can be seen, and keys can be added. A Var is the ALL of ORDER BY ALL."""
    order = query.args.get("order")
    return order is not None and (is_root or _is_cut(query)) and order.find(exp.Query, exp.Var) is None


def _is_cut(query: exp.Expr) -> bool:
    return bool(query.args.get("limit") or query.args.get("offset"))


def _end_of_order(query: exp.Expr, tokens: Sequence[Token]) -> int | None:
    """Where LIMIT, OFFSET or FETCH begins behind the query's keys; None if the keys cannot be found in the text."""
    starts = [node.meta["start"] for node in query.args["order"].walk() if "start" in node.meta]
    depth = 0
    for token in tokens:
        if not starts or token.start < max(starts):
            continue
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if token.token_type in _LIMITS and depth <= 0:
            return token.start
    return None


def _keys(query: exp.Expr, schema: Schema) -> tuple[str, ...]:
    """What tells equal rows apart, as SQL; nothing where that is not known."""
    if not isinstance(query, exp.Select):
        return _output(query)
    distinct, group = query.args.get("distinct"), query.args.get("group")
    if distinct is not None:
        return () if distinct.args.get("on") else _output(query)
    if group is not None:
        are_plain = not group.args.get("all") and group.find(*_MANY_GROUPINGS) is None
        direction = " DESC" if query.args["order"].expressions[0].args.get("desc") else ""
        texts = [_text(key, schema) for key in group.expressions] if are_plain else _output(query)
        return tuple(key + direction for key in texts)
    entries = sources(query, schema)
    rows = [_row(entry, schema) for entry in entries]
    return tuple(key for keys in rows for key in keys) if rows and all(rows) else _output(query)


def _row(entry: FromItem, schema: Schema) -> tuple[str, ...]:
    """What tells the rows of an entry apart: in DuckDB their places, which those of a table have, and those of a view, whose
    rows are not counted, do not; elsewhere the primary key."""
    if entry.table is None:
        return ()
    if schema.dialect == "duckdb":
        names = ["rowid"] if entry.table.row_count is not None else []
        return tuple(exp.column(name, exp.to_identifier(entry.alias, quoted=True)).sql("duckdb") for name in names)
    keys = [column.name for column in entry.table.columns if column.primary_key]
    return tuple(f"{identifier(entry.alias, schema.dialect)}.{identifier(key, schema.dialect)}" for key in keys)


def _output(query: exp.Expr) -> tuple[str, ...]:
    """The places of the columns of the result, unless a star hides how many there are."""
    items = query.selects if isinstance(query, exp.Query) else []
    return () if any(item.is_star for item in items) else tuple(str(place + 1) for place in range(len(items)))


def _text(node: exp.Expr, schema: Schema) -> str:
    return node.sql(schema.dialect)


_SORTS = re.compile(r"\bORDER\s+BY\b", re.IGNORECASE)
_STOPPED = ("timeout", "memory", "interrupted", "connection")


_ESTIMATES = re.compile(r"~([\d,]+) rows|\brows=(\d+)(?: width=(\d+))?")


@dataclass(frozen=True, slots=True)
class Step:
    """What an engine's plan expects of one of its steps; bytes: 0 where it does not tell them."""

    rows: int
    bytes: int = 0

    def __str__(self) -> str:
        return f"{self.rows:,} rows" + (f" ({self.bytes / 1e6:,.1f} MB)" if self.bytes else "")


def largest_step(plan: Result) -> Step | None:
    """The step of a plan with most rows, as DuckDB, PostgreSQL, MySQL and MariaDB print it; None where none is told."""
    if "rows" in plan.columns:  # MySQL and MariaDB
        told = [row[plan.columns.index("rows")] for row in plan.rows]
        found = [Step(int(str(rows))) for rows in told if str(rows).isdecimal()]
    else:
        text = "\n".join(str(cell) for row in plan.rows for cell in row)
        counted = ((int((a or b).replace(",", "")), int(width or 0)) for a, b, width in _ESTIMATES.findall(text))
        found = [Step(rows, rows * width) for rows, width in counted]
    return max(found, key=lambda step: step.rows, default=None)


class GuardedDatabase(ABC):
    """The base of `tools.databases.database.Database`s that run statements themselves.

    `explain_prefix`: what makes a statement one that is bound and not run; None where the engine has nothing of the kind.
    """

    dialect: str
    has_schemas = False  # whether tables may lie outside a default schema
    needs_environment: ClassVar[bool] = False  # whether a process of its own gets this program's environment variables

    def __init__(self, name: str, explain_prefix: str | None) -> None:
        self.name = name
        self._explain_prefix = explain_prefix
        self._changed = threading.Condition()  # guards `_watchdogs`, one for each query that runs
        self._watchdogs: set[Watchdog] = set()
        self._schema: Schema | None = None
        self._schema_lock = threading.Lock()
        self._cache: SchemaCache | None = None
        self._held_to: Schema | None = None

    def schema(self) -> Schema:
        """The schema, read on the first call. Raises OpenError when it cannot be read."""
        with self._schema_lock:
            if self._schema is None:
                self._schema = self._kept_schema()
            return self._schema

    def keep_schema(self, cache: SchemaCache) -> None:
        """From now on take the schema from there, or put it there; to be called before it is read."""
        self._cache = cache

    def know(self, schema: Schema) -> None:
        """Take over a schema that was read before."""
        self._schema = schema

    def hold_to(self, seen: Schema) -> None:
        """A kind without such a lock looks at rules alone; see `Database.hold_to`."""
        self._held_to = seen

    def execute(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """Run one guarded query with the order of equal rows settled, or as it is where the engine does not take it so."""
        settled = self._settled(sql) if self.dialect in SETTLED and _SORTS.search(sql) else None
        if settled is None:
            return self._run_judged(sql, limits, "")
        outcome = self._run_judged(settled.text, limits, "")
        if isinstance(outcome, Result):
            return replace(outcome, tie_keys=settled.keys)
        return outcome if outcome.kind in _STOPPED else self._run_judged(sql, limits, "")

    def _settled(self, sql: str) -> Settled | None:
        statement = self._judged(sql)
        return settle_ties(statement, self.schema()) if isinstance(statement, ApprovedQuery) else None

    def explain(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> QueryError | None:
        """Bind without running, where the engine can; elsewhere only guard. See `Database.explain`."""
        if self._explain_prefix is None:
            verdict = self._judged(sql)
            return verdict if isinstance(verdict, QueryError) else None
        outcome = self.plan(sql, limits)
        return outcome if isinstance(outcome, QueryError) else None

    def plan(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """The engine's plan of a guarded statement; see `Database.plan`."""
        if self._explain_prefix is None:
            return QueryError("other", f"there is no plan for {self.dialect}")
        return self._run_judged(sql, limits, self._explain_prefix)

    def distinct(self, wanted: Distinct, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """Look up values past the engine's own locks alone, by a statement that is made here; see `Database.distinct`."""
        try:
            return self._look_up(wanted.sql(self.schema()), limits)
        except LookupError as error:
            return QueryError("refused", str(error))
        except OpenError as error:
            return QueryError("connection", str(error))

    def prepare(self) -> None:
        """Read the schema, if that has not been done."""
        self.schema()

    def interrupt(self) -> None:
        """Stop every query that runs now."""
        with self._changed:
            for watchdog in self._watchdogs:
                watchdog.interrupt()

    @property
    @abstractmethod
    def location(self) -> str:
        """What `reopened` takes."""

    @classmethod
    @abstractmethod
    def reopened(cls, location: str, name: str) -> Self:
        """The same database in another process, which imports this class by its module and name. Raises OpenError."""

    @abstractmethod
    def close(self) -> None:
        """Stop what runs and let go of what the database holds."""

    @abstractmethod
    def _read_schema(self) -> Schema:
        """Raises OpenError."""

    @abstractmethod
    def _run(self, sql: str, limits: Limits, prefix: str = "") -> Result | QueryError:
        """Run `prefix + sql` past the engine's own locks alone."""

    def _kept_schema(self) -> Schema:
        """The schema from the cache; what was not there is there then. Raises OpenError."""
        reader = type(self).__qualname__
        schema = self._cache.read(reader) if self._cache else None
        if schema is None:
            schema = self._read_schema()
            if self._cache:
                self._cache.write(reader, schema)
        return schema

    def _look_up(self, sql: str, limits: Limits) -> Result | QueryError:
        """Run a statement that this program made."""
        return self._run(sql, limits)

    def _run_judged(self, sql: str, limits: Limits, prefix: str) -> Result | QueryError:
        """Run what was judged of `sql`; places in errors are those of `sql`."""
        statement = self._judged(sql)
        if isinstance(statement, QueryError):
            return statement
        if self._held_to and (objection := outside_rules(statement.tree, self._held_to)):
            return objection
        if limits.expected_rows and not prefix and (objection := self._too_large(statement.text, limits)):
            return objection
        outcome = self._run(statement.text, limits, prefix)
        if not isinstance(outcome, QueryError):
            return outcome
        return replace(outcome, position=statement.spelling.origin(outcome.position))

    def _too_large(self, text: str, limits: Limits) -> QueryError | None:
        """Why the statement is not run, by what the engine's plan expects. What cannot be planned fails when it runs."""
        if self._explain_prefix is None or self.dialect == "sqlite":
            return QueryError("other", f"no plan tells rows for {self.dialect}: leave --expected-rows out")
        plan = self._run(text, replace(limits, max_rows=DEFAULT_LIMITS.max_rows), self._explain_prefix)
        step = largest_step(plan) if isinstance(plan, Result) else None
        if step is None or step.rows <= limits.expected_rows:
            return None
        told = (
            f"not run: the engine expects {step} in one step of its plan, and {limits.expected_rows:,} rows are allowed"
        )
        return QueryError("timeout", f"{told}; ask for less, or allow more with --expected-rows")

    def _judged(self, sql: str) -> ApprovedQuery | QueryError:
        try:
            return judged(sql, self.dialect, self.schema())
        except OpenError as error:
            return QueryError("connection", str(error))

    @contextmanager
    def _registered(self, watchdog: Watchdog) -> Iterator[Watchdog]:
        """A query's watchdog, which `interrupt` reaches until the block ends."""
        with self._changed:
            self._watchdogs.add(watchdog)
        try:
            yield watchdog
        finally:
            with self._changed:
                self._watchdogs.discard(watchdog)
                self._changed.notify_all()


def stop_error(reason: Reason | None, error: Exception, limits: Limits) -> QueryError | None:
    """What to say of a query that did not come to its own end: `reason` is why it was stopped. None for any other error."""
    if reason == "timeout":
        return QueryError("timeout", f"stopped after {limits.deadline_s:g} s")
    if reason == "interrupted":
        return QueryError("interrupted", "stopped on request")
    if isinstance(error, MemoryError):
        return QueryError("memory", str(error) or "out of memory")
    return None


_Patterns = tuple[tuple[str, ErrorKind], ...]

_DUCKDB: _Patterns = (
    (r"read-only mode|configuration has been locked|disabled by configuration|Cannot (?:access|open) file", "refused"),
    (r'Table "[^"]+" does not have a column named "(?P<name>[^"]+)"', "unknown_column"),
    (r'Referenced column "(?P<name>[^"]+)" (?:not found|was not found)', "unknown_column"),
    (r'Referenced table "(?P<name>[^"]+)" not found', "unknown_table"),
    (r'Ambiguous reference to (?:column name|table|alias) "(?P<name>[^"]+)"', "ambiguous_column"),
    (r'Table with name "?(?P<name>[^"\s]+)"? does not exist', "unknown_table"),
    (r"Function with name \"?(?P<name>[^\"\s]+)\"? (?:does not exist|is not in the catalog)", "unknown_function"),
    (r"syntax error|unterminated|Invalid Input Error: Parser", "syntax"),
    (r"Query exceeded maximum execution time", "timeout"),
    (r"Out of Memory|failed to allocate|could not allocate|max_temp_directory_size", "memory"),
    (r"No function matches the given name and argument types '(?P<name>[^('\s]+)", "type"),
    (r'column "?(?P<name>[^"\s]+)"? must appear in the GROUP BY clause', "other"),
    (r"Could not choose a best candidate function", "type"),
    (r"Cannot (?:compare|mix|cast|combine) values|Could not (?:convert|cast)|Unimplemented type for cast", "type"),
    (r"Conversion Error|out of range|Overflow", "type"),
)

_SQLITE: _Patterns = (
    (r"no such column: (?P<name>.+)", "unknown_column"),
    (r"cannot join using column (?P<name>.+?) - column not present", "unknown_column"),
    (r"no such table: (?P<name>.+)", "unknown_table"),
    (r"no such function: (?P<name>.+)", "unknown_function"),
    (r"ambiguous column name: (?P<name>.+)", "ambiguous_column"),
    (r'near "(?P<name>.*)": syntax error|incomplete input|unrecognized token: "(?P<token>.*)', "syntax"),
    (r"wrong number of arguments to function (?P<name>\w+)|datatype mismatch|integer overflow|malformed JSON", "type"),
    (r"not authorized|authorization denied|prohibited|readonly database|read-only|one statement at a time", "refused"),
    (r"vtable constructor failed", "refused"),
    (r"too big|out of memory", "memory"),
    (r"interrupted", "interrupted"),
    (
        r"database is locked|unable to open|disk I/O error|malformed|not a database|Cannot operate on a closed",
        "connection",
    ),
    (r"embedded null|bindings supplied|surrogates not allowed", "syntax"),
)

_SERVER: _Patterns = (
    (r"read-only transaction|READ ONLY transaction|read-write mode|permission denied|command denied", "refused"),
    (r"multiple commands|DECLARE CURSOR must not|INTO is not allowed|does not return rows", "refused"),
    (
        r"statement timeout|max_execution_time|max_statement_time|maximum statement execution time|lock timeout",
        "timeout",
    ),
    (r"due to user request|Query execution was interrupted", "interrupted"),
    (r'column "?(?P<name>[\w. ]+?)"? does not exist', "unknown_column"),
    (r"Unknown column '(?P<name>[^']+)'|[Ii]nvalid column name '(?P<token>[^']+)'", "unknown_column"),
    (
        r'relation "(?P<name>[^"]+)" does not exist|missing FROM-clause entry for table "(?P<token>[^"]+)"',
        "unknown_table",
    ),
    (r"Table '(?P<name>[^']+)' doesn't exist|Unknown table '(?P<token>[^']+)'", "unknown_table"),
    (r"[Ii]nvalid object name '(?P<name>[^']+)'", "unknown_table"),
    (
        r"function (?P<name>[\w.]+)\([^)]*\) does not exist|FUNCTION (?P<token>[\w.]+) does not exist",
        "unknown_function",
    ),
    (r"[Cc]olumn (?:reference )?['\"](?P<name>[^'\"]+)['\"](?: in .*)? is ambiguous", "ambiguous_column"),
    (r'syntax error at or near "(?P<name>[^"]*)"|syntax error at end of input|error in your SQL syntax', "syntax"),
    (r"invalid input syntax|operator does not exist|cannot cast|must be type|Truncated incorrect|out of range", "type"),
    (r"out of memory|memory limit|max-session-mem-used|temp_file_limit", "memory"),
    (
        r"could not connect|connection .*(?:refused|failed|closed|lost)|server closed|Lost connection|gone away",
        "connection",
    ),
)

_PATTERNS: dict[str, _Patterns] = {"duckdb": _DUCKDB, "sqlite": _SQLITE}


def query_error(message: str, sql: str, schema: Schema, *, sql_offset: int = 0) -> QueryError:
    """The error that `message` describes, for the statement `sql` on `schema`.

    `sql_offset` is how many bytes stood before `sql` in what the engine was really given (an EXPLAIN, say).
    """
    details = _duckdb_details(message) if schema.dialect == "duckdb" else {}
    text = details.get("exception_message", message)
    kind, name = _classify(text, schema.dialect, str(details.get("exception_type", "")))
    name = name or (details.get("name") if kind != "other" else None)
    position = _byte_position(details, sql, sql_offset) if details else _find(name, sql)
    bare = name.rpartition(".")[2].strip('"`[] ') if name else None
    told = _engine_candidates(details, kind)
    if kind == "unknown_table":  # not the tables of the engine's own catalogue
        told = tuple(each for each in told if schema.table(each))
    candidates = told or _close_names(kind, bare, sql, schema)
    return QueryError(kind, _without_foreign_hint(_one_line(text), candidates), bare, position, candidates)


def _without_foreign_hint(message: str, candidates: tuple[str, ...]) -> str:
    """The message without the engine's hint at a name that is no candidate."""
    hint = re.search(r' Did you mean "([^"]+)"\?', message)
    return message.replace(hint[0], "") if hint and hint[1] not in candidates else message


def _one_line(text: str) -> str:
    """The first sentence of a message: what follows a blank line or a caret is a drawing for terminals."""
    kept = re.split(r"\n\s*\n|\nLINE \d|\n\t?Candidate functions|\n\[SQL:", text.strip())[0]
    return " ".join(kept.split())[:500]


def _duckdb_details(message: str) -> dict[str, Any]:
    start = message.find("{")
    try:
        details = json.loads(message[start:]) if start >= 0 else {}
    except json.JSONDecodeError:
        return {}
    return details if isinstance(details, dict) and "exception_message" in details else {}


def _classify(text: str, dialect: str, exception_type: str) -> tuple[ErrorKind, str | None]:
    for pattern, kind in _PATTERNS.get(dialect, _SERVER):
        match = re.search(pattern, text)
        if match:
            return kind, next((group for group in match.groupdict().values() if group), None)
    by_type: dict[str, ErrorKind] = {
        "Parser": "syntax", "Out of Memory": "memory", "Permission": "refused", "Conversion": "type", "Mismatch Type": "type",
        "Connection": "connection", "IO": "connection", "Interrupt": "interrupted", "INTERRUPT": "interrupted",
    }  # fmt: skip
    return by_type.get(exception_type, "other"), None


def _byte_position(details: dict[str, Any], sql: str, sql_offset: int) -> int | None:
    """DuckDB counts bytes; a QueryError counts characters."""
    if not str(details.get("position", "")).isdigit():
        return None
    in_bytes = int(details["position"]) - sql_offset
    if not 0 <= in_bytes <= len(sql.encode()):
        return None
    return len(sql.encode()[:in_bytes].decode(errors="ignore"))


def _find(name: str | None, sql: str) -> int | None:
    """Where `name`, perhaps quoted and qualified, first stands as a whole word."""
    if not name:
        return None
    qualified = r"\s*\.\s*".join(rf"[\"`\[]?{re.escape(part)}[\"`\]]?" for part in name.split("."))
    match = re.search(rf"(?<!\w){qualified}(?!\w)", sql, re.IGNORECASE)
    return match.start() if match else None


def _engine_candidates(details: dict[str, Any], kind: ErrorKind) -> tuple[str, ...]:
    text = details.get("exception_message", "")
    hint = re.search(r"Candidate (?:bindings|tables): ?:?(.+)|Did you mean (.+)|\(use: (.+?)\)", text)
    if kind == "type" or not hint:
        return ()
    quoted = re.findall(r"[\"']([^\"']+)[\"']", next(group for group in hint.groups() if group))
    return tuple(dict.fromkeys(quoted))[:5]


def _close_names(kind: ErrorKind, name: str | None, sql: str, schema: Schema) -> tuple[str, ...]:
    if name is None:
        return ()
    if kind == "ambiguous_column":
        return tuple(f"{table}.{name}" for table in schema.owners(name) if _find(table, sql) is not None)[:5]
    pools: dict[ErrorKind, list[str]] = {
        "unknown_table": [table.name for table in schema.tables],
        "unknown_column": [column.name for table in schema.tables for column in table.columns],
        "unknown_function": sorted(ordinary(schema.dialect)),
    }
    by_key = {candidate.casefold(): candidate for candidate in pools.get(kind, [])}
    return tuple(by_key[key] for key in get_close_matches(name.casefold(), by_key, n=3))
