"""Which of several candidates is chosen."""

from agent.graph.vote import Candidate, elect
from tools.result import QueryError, Result


def _result(*values: int) -> Result:
    return Result(("n",), ("INTEGER",), tuple((value,) for value in values), False, 1.0)


def _elected(*candidates: Candidate) -> list[str]:
    return [each.sql for each in elect(candidates)]


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
