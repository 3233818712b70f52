"""Finds what a result itself says against an answer: it does not have the form that the question asks for. Needs no model."""

import re

from sqlglot import exp

from agent.presentation.shown import Shown
from tools.linking.match_values import in_one_spelling
from tools.linking.word_forms import name_words
from tools.schema import Schema
from tools.sql.scope import parse_or_nothing

_MOST = re.compile(r"\b(?:most|least|fewest|highest|lowest|largest|smallest|best|worst|top|longest|shortest)\b", re.I)
_SHARE = re.compile(
    r"\b(?:what|which)\s+(?:share|percentage|percent|proportion|fraction)\b|\bshare of\b|\bpercentage of\b", re.I
)
_AVERAGE = re.compile(r"\b(?:average|mean)\s+\w+", re.I)
_EACH = re.compile(r"\b(?:for|by|in|of|per)\s+(?:each|every)\s+(\w+)|\bof\s+every\s+(\w+)", re.I)
_PER = re.compile(r"\bper\s+(?!cent\b|capita\b|hundred\b)(\w+)", re.I)
_FEW = 6
_SHARE_WORDS = {"share", "percentage", "percent", "proportion", "fraction", "ratio", "rate", "pct"}
_AVERAGE_WORDS = {"average", "avg", "mean"}


def result_doubts(question: str, sql: str, shown: Shown, schema: Schema) -> list[str]:
    """What is doubtful, a sentence each."""
    trees = parse_or_nothing(sql, schema.dialect)
    if len(trees) != 1 or not shown.rows:
        return []
    found = [
        _level(question, shown),
        _repeated(shown),
        _no_share(question, trees[0], shown),
        _one_for_each(question, trees[0], shown),
    ]
    return [each for each in found if each]


def _level(question: str, shown: Shown) -> str:
    """Nobody has most where all have the same."""
    if shown.sorting is None or not _MOST.search(question):
        return ""
    place, rows = shown.sorting.place, shown.tied or shown.rows
    if shown.columns[place].kind != "amount" or len(rows) < 3 or len({row[place] for row in rows}) > 1:
        return ""
    return f"All of them have the same {shown.columns[place].heading}: nobody leads."


def _repeated(shown: Shown) -> str:
    """Rows that are called "380 countries" are ten."""
    if len(shown.columns) != 1 or not shown.columns[0].is_label:
        return ""
    different = len({row[0] for row in shown.rows})
    if 2 * different > len(shown.rows):
        return ""
    return f"The same values come again and again: {different:,} different ones in {len(shown.rows):,} rows."


def _no_share(question: str, tree: exp.Expr, shown: Shown) -> str:
    """A count is no share, and a sum no average."""
    names = {word for column in tree.find_all(exp.Column, exp.Alias) for word in name_words(column.alias_or_name)}
    names |= {word for column in shown.columns for word in name_words(column.heading)}
    divides = tree.find(exp.Div, exp.Avg, exp.Median, exp.PercentileCont, exp.Window) is not None
    if divides or not any(column.kind in ("amount", "digits") for column in shown.columns):
        return ""
    if _SHARE.search(question) and not names & _SHARE_WORDS:
        return "The question asks for a share; this is a number of which nothing was divided."
    if _AVERAGE.search(question) and not names & _AVERAGE_WORDS:
        return "The question asks for an average; none was computed."
    return ""


def _one_for_each(question: str, tree: exp.Expr, shown: Shown) -> str:
    """One number for all does not say what each has; "per employee" may mean a ratio or an average."""
    each = _EACH.search(question) or (None if tree.find(exp.Div, exp.Avg) else _PER.search(question))
    if each is None or len(shown.rows) != 1 or len(shown.columns) != 1:
        return ""
    return f"The question asks about each {next(filter(None, each.groups()))}; this is one number for all."


def pooled(sql: str, shown: Shown, dialect: str) -> str:
    """That one number is of several values together, which "in Bern and Basel" may mean or not; empty if it is not."""
    trees = parse_or_nothing(sql, dialect)
    select = trees[0] if len(trees) == 1 else None
    one = isinstance(select, exp.Select) and not select.args.get("group") and len(select.expressions) == 1
    if not select or not one or not select.expressions[0].find(exp.AggFunc) or not (where := select.args.get("where")):
        return ""
    either = where.this
    if not isinstance(either, exp.In) or not all(isinstance(each, exp.Literal) for each in either.expressions):
        return ""
    values = list({in_one_spelling(each.name): each.name for each in either.expressions}.values())
    known = 1 < len(values) <= _FEW and len(shown.rows) == 1
    return f"This is of {', '.join(values[:-1])} and {values[-1]} together." if known else ""
