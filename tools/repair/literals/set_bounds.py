"""Compares a number as the question bounds it: "30 or younger" is `<= 30`, "at least 3" is `>= 3`."""

import re

from sqlglot import exp

from tools.linking.word_forms import NUMBER_WORDS
from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing

_NUMBER = r"(?P<number>\d+(?:\.\d+)?|" + "|".join(NUMBER_WORDS) + r")\b(?![.,]\d)"
_MORE = "more|older|higher|greater|larger|longer|later|taller|heavier|dearer|costlier|pricier"
_LESS = "less|fewer|younger|lower|smaller|shorter|earlier|lighter|cheaper"
_ABOVE, _BELOW = rf"(?:(?:{_MORE}|bigger) than|above|over)", rf"(?:(?:{_LESS}) than|below|under)"
_BOUNDS: tuple[tuple[type[exp.Binary], str], ...] = (
    (exp.GTE, rf"(?:at least|no (?:{_LESS}) than) {_NUMBER}"),
    (exp.LTE, rf"(?:at most|no (?:{_MORE}) than) {_NUMBER}"),
    (exp.GTE, rf"{_NUMBER} or (?:{_MORE})\b(?! than)"),
    (exp.GTE, rf"since the (?:start|beginning) of (?:the year )?{_NUMBER}"),
    (exp.LTE, rf"{_NUMBER} or (?:{_LESS})\b(?! than)"),
    (exp.GT, rf"(?<!no )(?<!not ){_ABOVE} {_NUMBER}"),
    (exp.LT, rf"(?<!no )(?<!not ){_BELOW} {_NUMBER}"),
)
_AVERAGE = r"(?:the |an? )?(?:average|mean)\b"
_SIDES = (
    (exp.GT, rf"(?:{_ABOVE}|more \w+ than) {_AVERAGE}"),
    (exp.LT, rf"(?:{_BELOW}|less \w+ than) {_AVERAGE}"),
)
_THAN_AVERAGE = tuple((side, re.compile(rf"(?<!no )(?<!not )\b{pattern}", re.I)) for side, pattern in _SIDES)
_PATTERNS = tuple((bound, re.compile(rf"\b{pattern}", re.I)) for bound, pattern in _BOUNDS)
_COMPARISONS = (exp.EQ, exp.GT, exp.GTE, exp.LT, exp.LTE)


def set_bounds(sql: str, schema: Schema, question: str) -> str | None:
    """The statement with each number compared as the question says; None if it is, if question or statement name the number
    twice, or if the statement leaves rows out by NOT or EXCEPT.

    >>> set_bounds("SELECT name FROM pilot WHERE age = 25", Schema((), "sqlite"), "Which pilots are aged 25 or older?")
    'SELECT name FROM pilot WHERE age >= 25'
    >>> sql = "SELECT COUNT(*) FROM pilot WHERE EXTRACT(YEAR FROM joined) > 2024"
    >>> set_bounds(sql, Schema((), "duckdb"), "How many pilots have joined since the start of 2024?")
    'SELECT COUNT(*) FROM pilot WHERE EXTRACT(YEAR FROM joined) >= 2024'
    >>> sql = "SELECT name FROM pilot WHERE pay < (SELECT AVG(pay) FROM pilot)"
    >>> set_bounds(sql, Schema((), "sqlite"), "Which pilots are dearer than the average?")
    'SELECT name FROM pilot WHERE pay > (SELECT AVG(pay) FROM pilot)'
    """
    trees = parse_or_nothing(sql, schema.dialect)
    bounds, sides = _said(question), [bound for bound, pattern in _THAN_AVERAGE if pattern.search(question)]
    if len(trees) != 1 or not (bounds or sides) or trees[0].find(exp.Not, exp.Except):
        return None
    changed = [_bounded(trees[0], number, bound) for number, bound in bounds.items()]
    changed += [_averaged(trees[0], sides[0])] if len(sides) == 1 else []
    return trees[0].sql(schema.dialect) if any(changed) else None


def _said(question: str) -> dict[str, type[exp.Binary]]:
    """How the question bounds each number, where it says the number once."""
    found: dict[str, set[type[exp.Binary]]] = {}
    for bound, pattern in _PATTERNS:
        for match in pattern.finditer(question):
            found.setdefault(_digits(match["number"]), set()).add(bound)
    said = [_digits(word) for word in re.findall(rf"\b{_NUMBER}", question, re.I)]
    return {number: bounds.pop() for number, bounds in found.items() if len(bounds) == 1 and said.count(number) == 1}


def _digits(number: str) -> str:
    words = {word: str(value) for value, word in enumerate(NUMBER_WORDS)}
    return words.get(number.lower(), number)


def _bounded(tree: exp.Expr, number: str, bound: type[exp.Binary]) -> bool:
    """Whether the one comparison with this number was changed."""
    literals = [literal for literal in tree.find_all(exp.Literal) if literal.name == number]
    node = literals[0].parent if len(literals) == 1 else None
    if type(node) not in _COMPARISONS or not isinstance(node, exp.Binary) or node.expression is not literals[0]:
        return False
    if isinstance(node, bound) or not isinstance(node.this, exp.Column | exp.AggFunc | exp.Extract):
        return False
    node.replace(bound(this=node.this, expression=literals[0]))
    return True


def _averaged(tree: exp.Expr, bound: type[exp.Binary]) -> bool:
    """Whether the one comparison with an average was changed."""
    averages = [query for query in tree.find_all(exp.Subquery) if _is_average(query)]
    node = averages[0].parent if len(averages) == 1 else None
    if not isinstance(node, exp.GT | exp.LT) or isinstance(node, bound) or node.expression is not averages[0]:
        return False
    node.replace(bound(this=node.this, expression=node.expression))
    return True


def _is_average(query: exp.Subquery) -> bool:
    shown = query.this.selects if isinstance(query.this, exp.Select) else []
    return len(shown) == 1 and isinstance(shown[0].unalias(), exp.Avg)
