"""Results as bytes and back, for a reader that does not trust the writer: MessagePack, which can spell values and nothing else.

A query's process reads hostile data with large C libraries; whatever becomes of it, its bytes can only become numbers, texts,
times, lists and dicts here. Cells keep their Python type; one of a type that is not listed arrives as its text.
"""

from collections.abc import Callable
from dataclasses import asdict
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import ormsgpack
import pytz

from tools.result import QueryError, Result

_OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_REPLACE_SURROGATES
)


class _Pairs:
    """A dict whose keys are no texts, as DuckDB's MAP gives it. No dataclass: those MessagePack would spell as dicts."""

    def __init__(self, pairs: list[Any]) -> None:
        self.pairs = pairs


def packed(outcome: Result | QueryError | None) -> bytes:
    """The outcome of a query as bytes."""
    if isinstance(outcome, Result):
        head = [list(outcome.columns), list(outcome.types), outcome.truncated, outcome.wall_ms, list(outcome.tie_keys)]
        return _pack(["rows", *head, [list(row) for row in outcome.rows]])
    return _pack(["error", asdict(outcome)] if outcome else ["none"])


def unpacked(data: bytes) -> Result | QueryError | None:
    """What `packed` was given. Raises ValueError for anything else."""
    try:
        kind, *rest = _unpack(data)
        if kind == "rows":
            columns, types, truncated, wall_ms, ties, rows = rest
            cells, keys = tuple(map(tuple, rows)), tuple(map(str, ties))
            return Result(tuple(columns), tuple(types), cells, bool(truncated), float(wall_ms), keys)
        if kind == "error":
            return QueryError(**rest[0] | {"candidates": tuple(map(str, rest[0]["candidates"]))})
    except (TypeError, KeyError, ArithmeticError, LookupError) as error:
        raise ValueError("the bytes are no outcome of a query") from error
    return None


def _pack(value: Any) -> bytes:
    try:
        return ormsgpack.packb(value, default=_spelt, option=_OPTIONS)
    except TypeError:  # a key that is no text: seldom, so the walk through all cells is made only then
        return ormsgpack.packb(_with_pairs(value), default=_spelt, option=_OPTIONS)


def _unpack(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=_read)


def _with_pairs(value: Any) -> Any:
    if isinstance(value, dict):
        return _Pairs([[_with_pairs(key), _with_pairs(item)] for key, item in value.items()])
    if isinstance(value, list | tuple):
        return type(value)(map(_with_pairs, value))
    return value


def _spelt(value: Any) -> Any:
    """What MessagePack has no word for: a number for its type, and its text or parts."""
    if isinstance(value, memoryview):
        return bytes(value)
    found = next((each for each in enumerate(_KINDS) if isinstance(value, each[1][0])), None)
    if found is None:
        return str(value)
    number, (_, write, _) = found
    return ormsgpack.Ext(number, _pack(write(value)))


def _read(number: int, data: bytes) -> Any:
    if number >= len(_KINDS):
        raise ValueError(f"no kind of value has the number {number}")
    return _KINDS[number][2](_unpack(data))


def _moment(parts: list[str]) -> datetime:
    text, zone = parts
    moment = datetime.fromisoformat(text)
    return moment.astimezone(pytz.timezone(zone)) if zone else moment


_KINDS: tuple[tuple[type, Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    (int, str, int),
    (tuple, list, tuple),
    (Decimal, str, Decimal),
    (datetime, lambda value: [value.isoformat(), getattr(value.tzinfo, "zone", None) or ""], _moment),
    (date, date.isoformat, date.fromisoformat),
    (time, time.isoformat, time.fromisoformat),
    (timedelta, lambda value: [value.days, value.seconds, value.microseconds], lambda parts: timedelta(*parts)),
    (UUID, str, UUID),
    (_Pairs, lambda value: value.pairs, dict),
)
"""Type, how it is written, how it is read; its place here is its number. datetime stands before date, which it is too."""
