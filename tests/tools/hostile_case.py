"""How a hostile statement is written down: its SQL, the dialects it is for, and which of the two locks can see it."""

from dataclasses import dataclass

BOTH = ("duckdb", "sqlite")
DUCKDB = ("duckdb",)
SQLITE = ("sqlite",)


@dataclass(frozen=True, slots=True)
class Hostile:
    sql: str
    dialects: tuple[str, ...] = BOTH
    guard_sees: bool = True
    engine_sees: bool = True
    why: str = ""


def both_see(dialects: tuple[str, ...], *statements: str) -> tuple[Hostile, ...]:
    return tuple(Hostile(sql, dialects) for sql in statements)


def guard_sees(dialects: tuple[str, ...], why: str, *statements: str) -> tuple[Hostile, ...]:
    return tuple(Hostile(sql, dialects, engine_sees=False, why=why) for sql in statements)


def engine_sees(dialects: tuple[str, ...], why: str, *statements: str) -> tuple[Hostile, ...]:
    return tuple(Hostile(sql, dialects, guard_sees=False, why=why) for sql in statements)
