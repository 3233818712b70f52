"""What a question's words demand of a plan and of the SQL after it, for a grammar that binds the model to it.

Each rule of `tools.repair.rules` gets the constraints so far and returns those with its own, or None if it has none.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from tools.linking.mentions import Places, counted_columns, mentioned_columns, mentioned_roles, unshared
from tools.linking.question_context import QuestionContext
from tools.schema import Schema
from tools.sql.join_graph import identifiers

_identifiers = lru_cache(maxsize=16)(identifiers)


@dataclass(frozen=True, slots=True)
class QuestionConstraints:
    """All names are in lower case."""

    sure: tuple[Places, ...] = ()  # of each set the plan names one column or, with "" for a column, one table
    shadowed: Places = frozenset()  # columns that the plan may not name
    roles: Places = frozenset()  # foreign keys whose roles were said: joins follow them
    identifiers: Places = (
        frozenset()
    )  # columns that are not added up, nor compared by `<` or tested unless they were said
    dated: bool = False  # whether date columns are compared with texts only if the question has digits

    def of_plans(self) -> "QuestionConstraints":
        """Those that the grammar of plans reads."""
        return QuestionConstraints(sure=self.sure, shadowed=self.shadowed)

    def of_sql(self) -> "QuestionConstraints":
        """Those that the grammar of SQL reads."""
        return replace(self, sure=(), shadowed=frozenset())

    def requiring(self, places: Iterable[Places]) -> "QuestionConstraints":
        """These, and that the plan has something of each set."""
        return replace(self, sure=tuple(dict.fromkeys((*self.sure, *places))))


def values_required(schema: Schema, context: QuestionContext) -> QuestionConstraints:
    """The constraints before any rule: the plan has a column for each value that the question surely names."""
    every = frozenset((table.name.lower(), column.name.lower()) for table in schema.tables for column in table.columns)
    return QuestionConstraints().requiring(filter(None, (places & every for places in context.sure())))


def require_named(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """The plan names the columns whose names the question says in full, and none that they shadow."""
    found = mentioned_columns(schema, context.question, context.values)
    if not (found.named or found.shadowed):
        return None
    return replace(constraints.requiring(found.named), shadowed=found.shadowed)


def require_counted(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """The plan has a table with the column of which "how many" asks the sum."""
    counted = counted_columns(schema, context.question, context.values)
    return constraints.requiring(map(_tables, counted)) if counted else None


def follow_roles(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """Joins follow the keys whose roles the question says, and the plan has their tables."""
    roles = mentioned_roles(schema, context.question)
    required = constraints.requiring(_tables({place}) for place in sorted(unshared(roles)))
    return replace(required, roles=roles) if roles else None


def spare_identifiers(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """Identifiers are neither amounts nor, unless the question names them, tested."""
    return replace(constraints, identifiers=_identifiers(schema))


def bind_dates(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """A date column is compared with dates."""
    return replace(constraints, dated=True)


def _tables(places: Iterable[tuple[str, str]]) -> Places:
    return frozenset((table, "") for table, _ in places)
