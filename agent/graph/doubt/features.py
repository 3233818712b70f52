"""What can be known about an answer without knowing the right one, as numbers for `calibration`. Runs and asks nothing."""

import math
from collections.abc import Iterator, Sequence

from sqlglot import exp

from agent.graph.readings import asked, coverage, history
from agent.state import State
from tools.linking.link_schema import Link, mentions
from tools.linking.match_values import ValueMatch
from tools.linking.word_forms import keys
from tools.repair.doubt import Sign, signs_of_doubt
from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import column_ref, full_name

Features = dict[str, float]
CERTAIN = 0.003  # keeps the logarithm finite; a token with more than 99.7 % is certain


def signs(state: State, schema: Schema) -> tuple[Sign, ...]:
    """The signs of doubt in the SQL that ran; none if it cannot be read."""
    trees = parse_or_nothing(state["sql"], schema.dialect)
    values = [ValueMatch(**value) for value in state["values"]]
    said = " ".join(
        (*(question for question, _ in history(state)), asked(state))
    )  # a follow-up leaves out what was said
    return signs_of_doubt(trees[0], schema, said, values, _links(state)) if len(trees) == 1 else ()


def features_of(state: State, schema: Schema, seen: Sequence[Sign]) -> Features:
    """The features of the SQL that ran; those that are not known are absent. `seen`: its signs of doubt.

    plan_surprise: how unlikely the model's first plan was, of whose tokens only those count that the grammar left free.
    sql_doubt: how unlikely the SQL's least likely such token was.
    uncovered: the share of what the question names that the SQL does not use. unused_column, weakest_column, weakest_table: the
    scores of the best link that is not used, and of the worst ones that are.
    """
    found: Features = {}
    if log_probs := state["log_probs"].get(state["first_plans"].get(state["reading"], "")):
        found["plan_surprise"] = math.log(CERTAIN - sum(log_probs))
    if log_probs := state["log_probs"].get(state["candidate"]):
        found["sql_doubt"] = math.log(CERTAIN - min(log_probs))
    trees = parse_or_nothing(state["sql"], schema.dialect)
    if len(trees) == 1:
        found |= _of_tree(trees[0], schema, _links(state))
    question = asked(state)
    return found | {
        "strict_signs": float(sum(sign.strict for sign in seen)),
        "other_signs": float(sum(not sign.strict for sign in seen)),
        "empty": float(state["preview"] is None or not state["preview"]["row_count"]),
        "uncovered": 1.0 - coverage(state["sql"], state, mentions(schema, question), schema.dialect),
        "words": float(len(keys(question))),
    }


def _of_tree(tree: exp.Expr, schema: Schema, links: Sequence[Link]) -> Features:
    tables = {full_name(table).casefold() for table in tree.find_all(exp.Table)}
    columns = set(_columns(tree, schema))
    by_table = {link.table.casefold(): link.score for link in links if link.column is None}
    by_column = {(link.table.casefold(), link.column.casefold()): link.score for link in links if link.column}
    return {
        "tables": float(len(tables)),
        "nested": float(len(list(tree.find_all(exp.Select))) > 1),
        "weakest_table": min((by_table.get(table, 0.0) for table in tables), default=0.0),
        "weakest_column": min((by_column.get(column, 0.0) for column in columns), default=0.0),
        "unused_column": max((score for place, score in by_column.items() if place not in columns), default=0.0),
    }


def _columns(tree: exp.Expr, schema: Schema) -> Iterator[tuple[str, str]]:
    """The place of each column outside of joins, in lower case."""
    for column in tree.find_all(exp.Column):
        place = column_ref(column, schema) if column.find_ancestor(exp.Join) is None else None
        if place:
            yield place[0].casefold(), place[1].casefold()


def _links(state: State) -> list[Link]:
    return [Link(**each) for each in state["links"]]
