"""Chooses among several SQL candidates by what they return."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sqlglot import parse_one
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.normalize_identifiers import normalize_identifiers

from agent.state import DrawnPlan, Reading
from tools.result import QueryError, Result


@dataclass(frozen=True, slots=True)
class Candidate:
    sql: str
    outcome: Result | QueryError
    log_likelihood: float = 0.0
    drawn: int = 1  # how many samples gave this plan
    votes: int = 0  # how many samples have the same result, including its own
    plan: str = ""


def drawn_plans(texts: Iterable[str], log_likelihoods: Iterable[float], reading: Reading) -> list[DrawnPlan]:
    """The distinct plans among the samples, in order of first appearance."""
    plans: dict[str, DrawnPlan] = {}
    for text, log_likelihood in zip(texts, log_likelihoods, strict=True):
        plan = plans.setdefault(text, DrawnPlan(text=text, drawn=0, log_likelihood=log_likelihood, reading=reading))
        plan["drawn"] += 1
    return list(plans.values())


def elect(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, best first: results with rows before empty ones, then by votes, likelihood and order; failures last."""
    counts = Counter[object]()
    for each in candidates:
        counts[_fingerprint(each.outcome)] += each.drawn
    voted = [replace(each, votes=counts[_fingerprint(each.outcome)]) for each in candidates]
    return sorted(voted, key=_rank)


def _rank(candidate: Candidate) -> tuple[bool, bool, int, float]:
    failed = isinstance(candidate.outcome, QueryError)
    empty = isinstance(candidate.outcome, Result) and not candidate.outcome.rows
    return failed, empty, -candidate.votes, -candidate.log_likelihood


def _fingerprint(outcome: Result | QueryError) -> object:
    """A value that is equal for results with the same rows in any order."""
    if isinstance(outcome, QueryError):
        return ("error", outcome.kind)
    return (len(outcome.columns), frozenset(Counter(map(repr, outcome.rows)).items()))


def same_sql(one: str, other: str, dialect: str) -> bool:
    """Whether two statements differ only in layout, in the case of keywords and names, and in comments."""
    return _normal(one, dialect) == _normal(other, dialect)


def _normal(sql: str, dialect: str) -> str:
    try:
        return normalize_identifiers(parse_one(sql, dialect=dialect), dialect).sql(dialect, comments=False)
    except (SqlglotError, RecursionError):
        return " ".join(sql.split()).rstrip(";").lower()
