"""What a question demands of its plan and of its joins, beyond what the schema tells."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from agent.grammar.scope.said import Said
from tools.linking.said.absent_columns import absent_columns
from tools.linking.said.implied_columns import implied_columns
from tools.linking.said.phrased_columns import counted_columns, phrased_columns
from tools.linking.said.said_clauses import SaidClauses, said_clauses
from tools.linking.said.said_columns import SaidColumns, said_columns
from tools.linking.said.said_roles import said_roles, unshared
from tools.linking.said.said_tables import said_tables
from tools.schema import ColumnRef, Schema

Places = frozenset[ColumnRef]


@dataclass(frozen=True, slots=True)
class Demands:
    """`sure`: of each set the plan must name one column or, with "" for a column, one table. `shadowed`: columns that it may
    not name. `roles`: keys whose roles were said. `clauses`: the words of the plan's skeleton. All in lower case.
    """

    sure: tuple[Places, ...] = ()
    shadowed: Places = frozenset()
    roles: Places = frozenset()
    clauses: SaidClauses = field(default_factory=SaidClauses)


def demands_of(schema: Schema, said: Said) -> Demands:
    """What the question demands by the rules that `said` switches on; nothing that the schema lacks."""
    every = frozenset((table.name.lower(), column.name.lower()) for table in schema.tables for column in table.columns)
    named = said_columns(schema, said.question, said.values) if said.named else SaidColumns()
    phrased = phrased_columns(schema, said.question, said.values) if said.phrased else ()
    roles = said_roles(schema, said.question) if said.roles else frozenset()
    shown = (places & every for places in (*said.sure(), *named.named, *phrased, *_meant(schema, said)))
    sure = (*filter(None, shown), *_tables(schema, said, roles))
    return Demands(tuple(dict.fromkeys(sure)), named.shadowed, roles, _clauses(schema, said))


def _clauses(schema: Schema, said: Said) -> SaidClauses:
    """Nothing beside earlier questions or evidence, which may say more."""
    alone = not any(said.around)
    return said_clauses(schema, said.question, negated=said.negated and alone, having=said.having and alone)


def _meant(schema: Schema, said: Said) -> Iterator[Places]:
    """The columns that the question compares by, and those that it says are empty."""
    if said.implied:
        yield from implied_columns(schema, said.question, said.values)
    if said.absent:
        yield absent_columns(schema, said.question)


def _tables(schema: Schema, said: Said, roles: Places) -> Iterator[Places]:
    """The tables of keys whose roles are said, of columns that are counted, and those that are said to be counted."""
    for names in said_tables(schema, said.question) if said.tables else ():
        yield frozenset((name, "") for name in names)
    counted = counted_columns(schema, said.question, said.values) if said.counted else ()
    for places in (*counted, *(frozenset({place}) for place in sorted(unshared(roles)))):
        yield frozenset((table, "") for table, _ in places)
