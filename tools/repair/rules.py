"""The rules, in one table: what question, schema and types show about plans and SQL that the model gets wrong.

A rule gets what its stage is about, and returns it changed, or None where it has nothing to change:

- `values`: the cell values found in the question. SQL that compares with one that is dropped is planned again.
- `constraints`: what the grammar demands of plan and SQL while the model writes them.
- `sql`: the tree of a written statement. The tree is the rule's own.

Rules of a stage run in the table's order. Two rows of one name are one rule that acts in two stages. Training replaces rules:
a mistake that the model makes is a matter of its data first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tools.linking.mentions import drop_unmeant
from tools.linking.question_context import QuestionContext
from tools.repair.clauses import set_direction, set_groups, sum_counted
from tools.repair.constraints import bind_dates, follow_roles, require_counted, require_named, spare_identifiers
from tools.repair.literals import (
    add_genders,
    compare_nulls,
    compare_years,
    move_literals,
    separate_values,
    set_bounds,
    set_wildcards,
)  # fmt: skip
from tools.repair.names import spell_names
from tools.schema import Schema

Stage = Literal["values", "constraints", "sql"]
Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Rule:
    """`apply(subject, schema, context)`: the changed subject, or None if nothing changes. `doc`: what holds after it."""

    name: str
    stage: Stage
    apply: Callable[[Any, Schema, QuestionContext], Any]
    doc: str


RULES = (
    Rule("meant", "values", drop_unmeant, "A plain word of the schema is no cell value."),
    Rule("named", "constraints", require_named, "A plan names the columns whose names the question says in full."),
    Rule("counted", "constraints", require_counted, "It has the table of the column that 'how many beds' adds up."),
    Rule("roles", "constraints", follow_roles, "Joins follow the foreign key whose role is said: a destination."),
    Rule("keys", "constraints", spare_identifiers, "Identifiers are not added up, measured, or tested unless named."),
    Rule("dates", "constraints", bind_dates, "A date column is compared with texts only if the question has digits."),
    Rule("dates", "sql", compare_years, "A date is compared with a year by its year."),
    Rule("literals", "sql", move_literals, "A literal stands at the column that holds it."),
    Rule("intersections", "sql", separate_values, "No column has two values at once: an INTERSECT, or an IN."),
    Rule("nulls", "sql", compare_nulls, "NULL is tested by IS NULL."),
    Rule("grouped", "sql", set_groups, "Groups fix what is shown beside aggregates."),
    Rule("counted", "sql", sum_counted, "'How many beds' is the sum of the beds."),
    Rule("genders", "sql", add_genders, "A gender that is named is a condition."),
    Rule("direction", "sql", set_direction, "ORDER BY has the direction that the question says."),
    Rule("bounds", "sql", set_bounds, "'30 or younger' is <= 30."),
    Rule("wildcards", "sql", set_wildcards, "LIKE has the wildcards of 'starts with'."),
    Rule("spelling", "sql", spell_names, "Names are written as the schema writes them."),
)
RULE_NAMES = tuple(dict.fromkeys(rule.name for rule in RULES))


def rules_of(stage: Stage, context: QuestionContext) -> tuple[Rule, ...]:
    """The rules of a stage that are not switched off."""
    return tuple(rule for rule in RULES if rule.stage == stage and rule.name not in context.without)


def applied(rules: Sequence[Rule], subject: Subject, schema: Schema, context: QuestionContext) -> Subject:
    """What the rules make of it, one after the other."""
    for rule in rules:
        changed = rule.apply(subject, schema, context)
        subject = subject if changed is None else changed
    return subject
