"""Makes one query of several former ones that differ in one value: "which of the two has more?" after a count for Portugal and
one for Germany. It uses no model and runs no query."""

import re
from collections.abc import Sequence

from sqlglot import exp

from tools.adapt.adapt_query import aggregates_of
from tools.linking.word_forms import NUMBER_WORDS
from tools.sql.parse_quietly import parse_or_nothing

_MORE = r"more|higher|larger|bigger|greater|most|highest|largest|biggest|greatest"
_LESS = r"fewer|less|lower|smaller|fewest|least|lowest|smallest"
_WHICH = re.compile(
    r"[\s.…]*(?:(?:and|so|but|ok|now)[\s,]+)*(?:which|who)(?: one)?(?: of (?:the|them|those|these)(?: (?P<number>[a-z]+))?"
    rf"(?: [a-z]+)?)? (?:is|are|has|have|had|got|was|were) (?:the )?(?:(?P<more>{_MORE})|(?P<less>{_LESS}))(?: of them)?"
    r"[\s?.!]*",
    re.IGNORECASE,
)
_OF_TWO = ("more", "higher", "larger", "bigger", "greater", "fewer", "less", "lower", "smaller")


def compare_queries(question: str, formers: Sequence[str], dialect: str) -> str | None:
    """The query that answers which of the former ones gives more, or less; None if that is not asked, or not certain.

    `formers`: the SQL of the conversation, the newest last.

    >>> count = "SELECT COUNT(*) FROM customers WHERE country = '{}'"
    >>> formers = [count.format("Portugal"), count.format("Germany")]
    >>> compare_queries("Which of the two has more?", formers, "duckdb")
    "SELECT country FROM customers WHERE country IN ('Portugal', 'Germany') GROUP BY country ORDER BY COUNT(*) DESC LIMIT 1"
    >>> compare_queries("Which of the three has the most?", formers, "duckdb") is None
    True
    """
    found = _WHICH.fullmatch(question)
    number = _number(found) if found else 0
    if found is None or number < 2 or len(formers) < number:
        return None
    asked = [_asked(sql, dialect) for sql in formers[-number:]]
    values = [each[1] for each in asked if each]
    if len(values) < number or len({each[0] for each in asked if each}) > 1 or len(set(values)) < number:
        return None
    return _ranking(formers[-1], values, found["more"] is not None, dialect)


def _number(found: re.Match[str]) -> int:
    """How many former answers are compared; 0 if that is not said."""
    word = (found["number"] or "").lower()
    if word in NUMBER_WORDS:
        return NUMBER_WORDS.index(word)
    return 2 if (found["more"] or found["less"]).lower() in _OF_TWO else 0


def _asked(sql: str, dialect: str) -> tuple[str, str] | None:
    """An aggregate of rows with one text condition: the query without its value, and the value."""
    trees = parse_or_nothing(sql, dialect)
    condition = _condition(trees[0]) if len(trees) == 1 else None
    if condition is None or len(trees[0].expressions) != 1 or len(aggregates_of(trees[0])) != 1:
        return None
    value = str(condition.expression.this)
    condition.set("expression", exp.Placeholder())
    return trees[0].sql(dialect), value


def _condition(tree: exp.Expr) -> exp.EQ | None:
    """The only comparison of a column with a text, in a query without groups and limits."""
    if not isinstance(tree, exp.Select) or any(tree.args.get(part) for part in ("group", "limit", "having", "with_")):
        return None
    where = tree.args.get("where")
    texts = [each for each in where.find_all(exp.EQ) if each.expression.is_string] if where else []
    return texts[0] if len(texts) == 1 and isinstance(texts[0].this, exp.Column) else None


def _ranking(former: str, values: Sequence[str], descending: bool, dialect: str) -> str:
    select = parse_or_nothing(former, dialect)[0]
    condition = _condition(select)
    assert isinstance(select, exp.Select) and condition is not None
    column, measure = condition.this.copy(), aggregates_of(select)[0].copy()
    condition.replace(column.copy().isin(*(exp.Literal.string(value) for value in values)))
    ordered = exp.Ordered(this=measure, desc=descending or None, nulls_first=False)
    ranked = select.select(column, append=False, copy=False).group_by(column.copy(), copy=False)
    return ranked.order_by(ordered, copy=False).limit(1, copy=False).sql(dialect)
