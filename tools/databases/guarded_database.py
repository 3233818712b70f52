"""What all databases share: the guard's check, and a settled order of rows.

DuckDB and servers leave open how equal rows are sorted and which of them a LIMIT keeps. What is added stands behind the query's
own keys: the keys of GROUP BY, sorted in the direction of its first one, as SQLite does, so that engines answer alike; else the
places of the rows in their tables, or primary keys; else (views, sub-queries, DISTINCT, set operations) the columns of the
result. So only rows that were equal change places, and only in the statement that the engine gets.
"""

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokenizer_core import Token, TokenType

from tools.databases.choices import SchemaCache
from tools.databases.database import Distinct
from tools.guard.guard import ApprovedQuery, judged
from tools.guard.visibility import outside_rules
from tools.processes import Watchdog
from tools.result import DEFAULT_LIMITS, Limits, OpenError, QueryError, Result
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
