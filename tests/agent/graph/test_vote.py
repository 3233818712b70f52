"""How several candidates are run, which results are the same, and which candidate is chosen."""

from datetime import date
from decimal import Decimal
from time import sleep
from typing import Any

import pytest

from agent.outcomes import OUT_OF_TIME, Candidate, Outcome, elect, fingerprint, outcomes, same_sql
from tools.result import QueryError, Result


def _result(*values: int) -> Result:
    return _rows(*((value,) for value in values))


def _rows(*rows: tuple[Any, ...], truncated: bool = False) -> Result:
    width = len(rows[0]) if rows else 1
    return Result(("c",) * width, ("ANY",) * width, rows, truncated, 1.0)


def _elected(*candidates: Candidate) -> list[str]:
    return [each.sql for each in elect(candidates, "sqlite")]


def test_votes_come_before_likelihood() -> None:
    pair = [Candidate(sql, _result(1), -9.0) for sql in ("a", "b")]
    assert _elected(Candidate("c", _result(2), -1.0), *pair)[0] == "a"


def test_among_equal_votes_the_likeliest_is_chosen_and_the_first_of_equals() -> None:
    assert _elected(Candidate("a", _result(1), -5.0), Candidate("b", _result(2), -2.0)) == ["b", "a"]
    assert _elected(Candidate("a", _result(1)), Candidate("b", _result(2))) == ["a", "b"]


def test_rows_come_before_none_and_errors_last() -> None:
    failed = [Candidate(sql, QueryError("syntax", "no"), 0.0) for sql in "xyz"]
    assert _elected(*failed, Candidate("empty", _result(), -1.0), Candidate("rows", _result(1), -9.0))[:2] == [
        "rows",
        "empty",
    ]


def test_the_order_of_rows_counts_only_between_sorted_statements() -> None:
    """A list that is sorted the other way answers another question; without ORDER BY the order is the engine's."""
    up, down = (
        Candidate("SELECT a FROM t ORDER BY a", _result(1, 2)),
        Candidate("SELECT a FROM t ORDER BY a DESC", _result(2, 1)),
    )
    assert {each.votes for each in elect([up, down], "sqlite")} == {1}
    plain = [Candidate("SELECT a FROM t", _result(*values)) for values in ((1, 2), (2, 1))]
    assert {each.votes for each in elect(plain, "sqlite")} == {2}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_rows((2, "a")), _rows((Decimal("2.00"), "a"))),
        (_rows((1.0,)), _rows((True,))),
        (_rows((0.1 + 0.2,)), _rows((0.3,))),
        (_rows(("a", 1), ("b", 2)), _rows((2, "b"), (1, "a"))),
        (_rows((date(2020, 1, 2),)), _rows(("2020-01-02",))),
    ],
)
def test_equal_results(one: Result, other: Result) -> None:
    assert fingerprint(one, ordered=False) == fingerprint(other, ordered=False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_rows((2,)), _rows(("2",))),
        (_rows((None,)), _rows(("None",))),
        (_rows((123456789012,)), _rows((123456789013,))),
        (_rows((1,), (1,)), _rows((1,))),
        (_rows(("a", 1), ("b", 2)), _rows(("a", 2), ("b", 1))),
        (_rows(("a", "b"), ("b", "a")), _rows(("a", "b"), ("a", "b"))),
        (_rows((1,)), _rows((1,), truncated=True)),
    ],
)
def test_different_results(one: Result, other: Result) -> None:
    """Guards against keys of an id being rounded, lost duplicates, and columns compared without their rows."""
    assert fingerprint(one, ordered=False) != fingerprint(other, ordered=False)


def test_equal_statements_run_once_and_wrong_ones_never() -> None:
    ran: list[str] = []

    def run(sql: str, deadline_s: float) -> Outcome:
        ran.append(sql)
        return _result(len(sql))

    wrong = QueryError("syntax", "no")
    found = outcomes([("a", None), ("bb", wrong), ("a", None), ("ccc", None)], run, 10.0)
    assert found == [_result(1), wrong, _result(1), _result(3)]
    assert ran == ["a", "ccc"]


def test_all_candidates_share_one_deadline() -> None:
    """Guards against k slow candidates taking k times the time of one, and one taking all the time of the others."""
    given: list[float] = []

    def run(sql: str, deadline_s: float) -> Outcome:
        given.append(deadline_s)
        sleep(deadline_s + 0.01)
        return QueryError("timeout", sql)

    found = outcomes([(sql, None) for sql in "abcd"], run, 0.08)
    assert sum(given) <= 0.08
    assert given[0] <= 0.04
    assert found[-1] == OUT_OF_TIME
    assert len(found) == 4


def test_statements_that_sqlglot_cannot_write_are_compared_all_the_same() -> None:
    """Its writer raises AttributeError at DATETIME in DuckDB's dialect, which ended a question whose answer was there."""
    sampled = """SELECT STRFTIME('%Y-%m', DATETIME("a")) FROM t"""
    assert not same_sql(sampled, "SELECT 1", "duckdb")
    assert same_sql(sampled, sampled.replace("SELECT", "select\n") + ";", "duckdb")
