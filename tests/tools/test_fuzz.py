"""A bounded run of the fuzzers; `make fuzz` is the unbounded one."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tools.fuzz import Fuzzer, Harm, fuzzers
from tools.guard import guard

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
        assert verdict is None or verdict.kind in ("refused", "syntax", "unknown_function")


def test_the_fuzzer_notices_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the guard's eyes shut, each kind of harm is found."""
    monkeypatch.setattr("tests.tools.fuzz.guard", lambda sql, dialect: None)
    for dialect, sql in (
        ("sqlite", "CREATE TEMP TABLE t (a)"),
        ("sqlite", "UPDATE people SET age = age + 1"),
        ("duckdb", "INSERT INTO pets VALUES (1, 'x')"),
        ("duckdb", "SET VARIABLE x = 1"),
        ("duckdb", "SET threads = 1"),
        ("duckdb", "COPY people TO '{folder}/out.csv'"),
        ("duckdb", "FROM read_text('{folder}/secret.csv')"),
    ):
        with fuzzers() as opened:
            fuzzer = opened[dialect]
            statement = sql.replace("{folder}", str(fuzzer._folder))
            with pytest.raises(Harm):
                fuzzer.check(statement)
