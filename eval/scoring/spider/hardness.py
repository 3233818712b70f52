"""Spider's four levels of hardness, computed from the gold query by the counts of the official script."""

from typing import Literal

from eval.scoring.spider.clauses import ColumnUse, Condition, Conditions, Expression, Query

Hardness = Literal["easy", "medium", "hard", "extra"]


def hardness(query: Query) -> Hardness:
    """The official level of a gold query as parsed by `eval.scoring.spider.parse.parse`."""
    clauses, nested, others = _clauses(query), _nested(query), _others(query)
    if nested == 0:
        if clauses <= 1 and others == 0:
            return "easy"
        if (clauses <= 1 and others <= 2) or (clauses <= 2 and others < 2):
            return "medium"
        if (clauses <= 2 and others > 2) or (clauses == 3 and others <= 2):
            return "hard"
    elif nested == 1 and clauses <= 1 and others == 0:
        return "hard"
    return "extra"


def _conditions(query: Query) -> list[Condition | str]:
    return [*query.joins[::2], *query.where[::2], *query.having[::2]]


def _clauses(query: Query) -> int:
    """How many there are of WHERE, GROUP BY, ORDER BY, LIMIT, further tables, OR and LIKE."""
    present = sum(map(bool, (query.where, query.group, query.order, query.limited)))
    words = [*query.joins[1::2], *query.where[1::2], *query.having[1::2]]
    likes = sum(isinstance(part, Condition) and part.operator == "like" for part in _conditions(query))
    return present + max(0, len(query.tables) - 1) + words.count("or") + likes


def _nested(query: Query) -> int:
    """The number of sub-queries in conditions, plus one for a set operation; sub-queries in FROM do not count."""
    bounds = [
        bound for part in _conditions(query) if isinstance(part, Condition) for bound in (part.first, part.second)
    ]
    return sum(isinstance(bound, Query) for bound in bounds) + bool(query.set_operation)


def _others(query: Query) -> int:
    """One each for several aggregates, selected columns, WHERE conditions and GROUP BY columns."""
    return (_aggregates(query) > 1) + (len(query.select) > 1) + (len(query.where) > 1) + (len(query.group) > 1)


def _aggregates(query: Query) -> int:
    """The number of aggregates as the official script counts them: in conditions it counts NOT instead of aggregates."""
    selected = sum(aggregate != "none" for aggregate, _ in query.select)
    grouped = sum(use.aggregate != "none" for use in query.group)
    ordered = sum(use.aggregate != "none" for item in (query.order or ("", ()))[1] for use in _uses(item))
    return selected + grouped + ordered + _negations(query.where) + _negations(query.having)


def _negations(conditions: Conditions) -> int:
    return sum(isinstance(part, Condition) and part.negated for part in conditions[::2])


def _uses(item: Expression) -> list[ColumnUse]:
    return [use for use in (item.left, item.right) if use]
