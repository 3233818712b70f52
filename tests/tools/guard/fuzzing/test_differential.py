"""A bounded run of differential fuzzing; `make fuzz` runs it on all engines, for as long as one likes."""

import random

import pytest

from tests.tools.databases.server.servers import Server
from tests.tools.guard.fuzzing.attributes import Attributes
from tests.tools.guard.fuzzing.differential import Target, server_target, targets
from tests.tools.guard.fuzzing.oddities import READS, Oddities
from tools.guard.canonicalize import Respelt
from tools.result import QueryError

TRIED = 250


def found(target: Target, tried: int) -> list[str]:
    oddities = Oddities(target.dialect, random.Random(target.name))
    return [harm for _ in range(tried) if (harm := target.harm(oddities.statement()[1]))]


def test_nothing_hidden_is_read() -> None:
    with targets(("sqlite", "duckdb")) as made:
        for target in made:
            assert found(target, TRIED) == []
            assert target.ran > TRIED / 20


def test_the_fuzzer_notices_a_guard_that_sends_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the words as they came, DuckDB reads something hidden; its own lock does not let it out."""

    def as_given(sql: str, dialect: str) -> Respelt | QueryError:
        return Respelt(sql, ((0, 0),))

    monkeypatch.setattr("tools.guard.guard.respelt", as_given)
    with targets(("duckdb",)) as made:
        harms = found(made[0], 3 * TRIED)
        assert harms and not [harm for harm in harms if "past every lock" in harm]


def test_every_kind_of_harm_is_told() -> None:
    """With no guard and no rewriting, each thing that must not be read is seen to be read, by the engine's own account."""
    with targets(("sqlite", "duckdb")) as made:
        for target in made:
            for hidden in READS[target.dialect]:
                sql = f"SELECT {hidden}".replace("{secret}", str(target.secret))
                assert target._misread(sql), (target.name, hidden)
            assert target._misread("SELECT id, name FROM people") == ""


def called(target: Target, tried: int) -> list[str]:
    attributes = Attributes(target.dialect, random.Random(target.name))
    return [harm for _ in range(tried) if (harm := target.harm(attributes.statement()))]


def test_postgresql_calls_nothing_that_is_not_written_as_a_call(
    postgresql: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is found where every name is resolved, and much by a guard that resolves none, as it once was."""
    target = server_target(postgresql, "called", "")
    assert called(target, TRIED) == []
    assert target.ran > TRIED / 20
    monkeypatch.setattr("tools.guard.guard.unresolved", lambda *_: iter(()))
    harms = called(target, TRIED)
    assert any("without parentheses" in harm for harm in harms), harms


def test_postgresql_tells_what_it_calls(postgresql: Server) -> None:
    target = server_target(postgresql, "told", "")
    for sql in (
        "SELECT x.ts_stat FROM unnest(ARRAY['a']) x",
        "SELECT (1).pg_sleep",
        "SELECT TREAT('a' AS to_regclass)",
        "SELECT pg_read_file('a')",
    ):
        assert "PostgreSQL calls" in target.inspected(sql), sql
    for sql in (
        "SELECT lower(name), count(*), sum(1) OVER (), name || 'a', name::text FROM people GROUP BY name",
        "SELECT name LIKE 'a' ESCAPE 'b', extract(year FROM now()), now() AT TIME ZONE 'utc' FROM people",
    ):
        assert target.inspected(sql) == "", sql
