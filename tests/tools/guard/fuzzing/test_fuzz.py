"""A bounded run of the fuzzers; `make fuzz` is the unbounded one, led by coverage.

A bounded run of differential fuzzing; `make fuzz` runs it on all engines, for as long as one likes.
"""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tools.databases.server.servers import Server
from tests.tools.guard.fuzzing.attributes import Attributes
from tests.tools.guard.fuzzing.differential import Target, server_target, targets
from tests.tools.guard.fuzzing.fuzz import Fuzzer, Harm, fuzzers
from tests.tools.guard.fuzzing.oddities import READS, Oddities
from tools.guard.canonicalize import Respelt
from tools.guard.guard import guard
from tools.result import QueryError

BOUNDED = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def made() -> Iterator[dict[str, Fuzzer]]:
    with fuzzers() as opened:
        yield opened


@pytest.mark.parametrize("dialect", ["duckdb", "sqlite"])
@given(chance=st.randoms(use_true_random=False))
@BOUNDED
def test_what_the_guard_passes_changes_nothing(made: dict[str, Fuzzer], dialect: str, chance: random.Random) -> None:
    made[dialect].check(made[dialect].statement(chance))


@given(
    st.text(st.sampled_from("()[]{};,'\"`$@:-/*\\\0\n ") | st.characters(), max_size=40),
    st.sampled_from(["", "SELECT "]),
)
@BOUNDED
def test_any_text_gets_a_verdict(text: str, start: str) -> None:
    for dialect in ("duckdb", "sqlite", "postgres", "mysql"):
        verdict = guard(start + text, dialect)
        assert verdict is None or verdict.kind in ("refused", "syntax", "unknown_function", "unknown_column")


def test_a_statement_that_breaks_the_parser_is_a_syntax_error() -> None:
    """Found by guided fuzzing: sqlglot raised AttributeError."""
    verdict = guard("SELECT {:1}", "duckdb")
    assert verdict is not None and verdict.kind == "syntax"


def test_the_fuzzer_notices_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the guard's eyes shut, each kind of harm is found."""
    monkeypatch.setattr("tests.tools.guard.fuzzing.fuzz.guard", lambda sql, dialect: None)
    for dialect, sql in (
        ("sqlite", "CREATE TEMP TABLE t (a)"),
        ("sqlite", "UPDATE people SET age = age + 1"),
        ("duckdb", "INSERT INTO pets VALUES (1, 'x')"),
        ("duckdb", "SET VARIABLE x = 1"),
        ("duckdb", "SET threads = 1"),
        ("duckdb", "SELECT * FROM (PIVOT people ON name)"),
        ("duckdb", "COPY people TO '{folder}/out.csv'"),
        ("duckdb", "FROM read_text('{folder}/secret.csv')"),
    ):
        with fuzzers() as opened, pytest.raises(Harm):
            opened[dialect].check(sql)


def test_a_neighbour_is_another_statement_of_the_same_words(made: dict[str, Fuzzer]) -> None:
    sql, fuzzer = "SELECT name, age FROM people WHERE age > 17 ORDER BY name", made["duckdb"]
    near = {fuzzer.neighbour(sql, random.Random(seed)) for seed in range(50)}
    assert len(near) > 40
    assert sum("people" in one and "ORDER" in one for one in near) > 30
    assert {"read_csv(", "ATTACH"} <= set(fuzzer._words)


def test_guided_fuzzing_leaves_the_statement_at_fault(tmp_path: Path) -> None:
    """With the guard's eyes shut libFuzzer ends with 1 and a file, which is harmless again under the guard.

    Without instrumentation, which takes seconds: the modules are imported before it could happen.
    """
    pytest.importorskip("atheris", reason="atheris is for Linux on x86-64; only Linux")
    blind = (
        "from pathlib import Path; from tests.tools.guard.fuzzing import fuzz; fuzz.guard = lambda sql, dialect: None;"
        f"from tests.tools.guard.fuzzing import guided_fuzz; guided_fuzz.fuzz(1, Path({str(tmp_path)!r}))"
    )
    ended = subprocess.run([sys.executable, "-c", blind], capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "Harm" in ended.stdout, ended.stderr
    (found,) = tmp_path.glob("crash-*")
    from tests.tools.guard.fuzzing.guided_fuzz import again

    assert found.read_text()
    again([found])


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
            assert bool(target._misread("SELECT id, name FROM people")) is target.ruled  # without the rule it reads all


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
        "SELECT name + name FROM people",
        "SELECT 1 FROM pets WHERE name NOT LIKE pets",
        "SELECT x.whole FROM unnest(ARRAY[NULL::pets]) x",
    ):
        assert "PostgreSQL calls" in target.inspected(sql), sql
    for sql in (
        "SELECT lower(name), count(*), sum(1) OVER (), name || 'a', name::text FROM people GROUP BY name",
        "SELECT name LIKE 'a' ESCAPE 'b', extract(year FROM now()), now() AT TIME ZONE 'utc' FROM people",
    ):
        assert target.inspected(sql) == "", sql
