"""How a hostile statement is written down: its SQL, the dialects it is for, which of the two locks can see it, its twin."""

from dataclasses import dataclass

BOTH = ("duckdb", "sqlite")
DUCKDB = ("duckdb",)
SQLITE = ("sqlite",)
POSTGRES = ("postgres",)
MYSQL = ("mysql",)
SERVERS = ("postgres", "mysql")
ALL = (*BOTH, *SERVERS)


@dataclass(frozen=True, slots=True)
class Hostile:
    """`own_twin` is an innocent query that resembles the statement; by default the twin has its words as data."""

    sql: str
    dialects: tuple[str, ...] = BOTH
    guard_sees: bool = True
    engine_sees: bool = True
    why: str = ""
    own_twin: str = ""

    def twin(self, dialect: str) -> str:
        """The innocent query next to this statement, which must run in `dialect`."""
        if self.own_twin:
            return self.own_twin
        words = "".join(letter for letter in self.sql[:500] if letter.isprintable())
        quoted = words.replace("'", "''").replace("\\", "\\\\" if dialect == "mysql" else "\\")
        return f"SELECT id, name FROM people WHERE name <> '{quoted}' ORDER BY id"


def both_see(dialects: tuple[str, ...], *statements: str) -> tuple[Hostile, ...]:
    return tuple(Hostile(sql, dialects) for sql in statements)


def pairs(dialects: tuple[str, ...], *statements: tuple[str, str]) -> tuple[Hostile, ...]:
    """Statements that both locks see, each with a twin of its own."""
    return tuple(Hostile(sql, dialects, own_twin=twin) for sql, twin in statements)


def guard_sees(dialects: tuple[str, ...], why: str, *statements: str) -> tuple[Hostile, ...]:
    return tuple(Hostile(sql, dialects, engine_sees=False, why=why) for sql in statements)


def engine_sees(dialects: tuple[str, ...], why: str, *statements: str) -> tuple[Hostile, ...]:
    return tuple(Hostile(sql, dialects, guard_sees=False, why=why) for sql in statements)
