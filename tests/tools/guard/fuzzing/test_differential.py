"""A bounded run of differential fuzzing on files; `make fuzz` runs it on servers too, for as long as one likes."""

import random

import pytest

from tests.tools.guard.fuzzing.differential import Target, targets
from tests.tools.guard.fuzzing.oddities import READS, Oddities
from tools.guard.respell import Respelt
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
