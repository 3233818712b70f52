"""Adds the condition that a question names by a gender alone, and that SQL left out: "female members"."""

from collections.abc import Sequence

from sqlglot import exp

from tools.linking.genders import gender_codes
from tools.linking.match_values import ValueMatch
from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import sources


def add_genders(sql: str, schema: Schema, values: Sequence[ValueMatch]) -> str | None:
    """The statement with a condition for the one gender that the question names; None where the column is used already, or
    if there is more than one SELECT, gender, or column that has it.

    >>> from tools.schema import Column, Table
    >>> member = Table("member", (Column("name", "TEXT"), Column("sex", "TEXT")))
    >>> found = ValueMatch("member", "sex", "F", "female", 0.9)
    >>> add_genders("SELECT name FROM member", Schema((member,), "sqlite"), [found])
    "SELECT name FROM member WHERE sex = 'F'"
    """
    trees = parse_or_nothing(sql, schema.dialect)
    named = [match for match in values if gender_codes(match.phrase.lower())]
    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select) or len({match.phrase.lower() for match in named}) != 1:
        return None
    every = sources(select, schema)
    owned = [
        (source, match) for source in every for match in named if source.table and source.table.name == match.table
    ]
    used = {column.name.lower() for column in select.find_all(exp.Column)}
    nested = len(list(select.find_all(exp.Select))) > 1
    if len(owned) != 1 or nested or owned[0][1].column.lower() in used:
        return None
    source, match = owned[0]
    column = exp.column(match.column, table=source.alias if len(every) > 1 else None)
    return select.where(column.eq(exp.Literal.string(match.value)), dialect=schema.dialect).sql(schema.dialect)
