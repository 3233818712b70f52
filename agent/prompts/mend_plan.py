"""Mends a plan by rules before SQL is written after it. Pure: a plan's mend depends on its text and the schema alone."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache

from agent.prompts.plan_format import Plan, PlanError, PlannedTable, parse_plan
from tools.schema import Schema
from tools.sql.join_graph import connect, edges
from tools.sql.joinable_columns import Joinable, joinable

_joinable = lru_cache(maxsize=16)(joinable)


def mended_plan(text: str, schema: Schema, mends: Collection[str]) -> str:
    """The plan with the tables between its tables, where the mend `bridges` is named; as it is if it fits.

    >>> from tools.schema import Column, ForeignKey, Table
    >>> name = Column("name", "TEXT")
    >>> singer, show = (Table(each, (Column("id", "INTEGER", primary_key=True), name)) for each in ("singer", "show"))
    >>> keys = tuple(ForeignKey((each,), each, ("id",)) for each in ("singer", "show"))
    >>> concert = Table("concert", (Column("singer", "INTEGER"), Column("show", "INTEGER")), keys)
    >>> mended_plan("singer: name; show | SELECT _ FROM _", Schema((singer, concert, show), "sqlite"), ("bridges",))
    'singer: name; show; concert | SELECT _ FROM _'
    """
    if "bridges" not in mends:
        return text
    try:
        plan = parse_plan(text)
    except PlanError:
        return text
    mended = _with_bridges(plan, schema)
    return text if mended == plan else mended.text()


def _spelled(table: str, schema: Schema) -> str:
    found = schema.table(table)
    return found.name if found else table


def _with_bridges(plan: Plan, schema: Schema) -> Plan:
    """The plan with the tables on the shortest ways between its tables, unless one of them joins none of the others."""
    names = [_spelled(table.name, schema) for table in plan.tables]
    joins = _joinable(schema)
    apart = [name for name in names[1:] if not _joins_any(name.lower(), names, joins)]
    tree = connect(edges(schema), names) if apart else None
    ends = dict.fromkeys(end for edge in tree or () for end in (edge.table, edge.ref_table))
    missing = tuple(PlannedTable(end) for end in ends if end not in names)
    return replace(plan, tables=(*plan.tables, *missing)) if missing else plan


def _joins_any(table: str, names: Sequence[str], joins: Joinable) -> bool:
    return any(joins.between(table, name.lower()) for name in names if name.lower() != table)
