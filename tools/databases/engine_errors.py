"""Errors of the engines in plain words: their kind, the name at fault, where it stands, and names that may have been meant.

Reads messages; never runs SQL. DuckDB says all of it itself (`errors_as_json`); the others are read by pattern, and their
candidates come from the schema by closeness of spelling.
"""

import json
import re
from difflib import get_close_matches
from typing import Any

from tools.guard.allowed import ordinary
from tools.processes import Reason
from tools.result import ErrorKind, Limits, QueryError
from tools.schema import Schema


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
