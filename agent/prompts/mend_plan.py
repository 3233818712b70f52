"""Mends a plan by rules before SQL is written after it. Pure: a plan's mend depends on its text and the schema alone."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from agent.prompts.plan_format import Plan, PlanError, PlannedTable, parse_plan
from tools.schema import Schema
from tools.sql.join_graph import connect, edges
from tools.sql.joinable_columns import Joinable, joinable

_joinable = lru_cache(maxsize=16)(joinable)


def mend_plan(text: str, schema: Schema, *, columns: bool = True, bridges: bool = True) -> str:
    """The plan with columns under the tables that own them, and with the bridges between its tables; as it is if it fits.

    A singer's name is named under the concert, which has none:

    >>> from tools.schema import Column, ForeignKey, Table
    >>> singer = Table("singer", (Column("id", "INTEGER", primary_key=True), Column("name", "TEXT")))
    >>> to_singer = ForeignKey(("singer_id",), "singer", ("id",))
    >>> concert = Table("concert", (Column("singer_id", "INTEGER"), Column("title", "TEXT")), (to_singer,))
    >>> mend_plan("concert: title, name | SELECT _ FROM _", Schema((singer, concert), "sqlite"))
    'concert: title; singer: name | SELECT _ FROM _'
    """
    try:
        plan = parse_plan(text)
    except PlanError:
        return text
    mended = _with_owners(plan, schema) if columns else plan
    mended = _with_bridges(mended, schema) if bridges else mended
    return text if mended == plan else mended.text()


def mended_plan(text: str, schema: Schema, mends: Collection[str]) -> str:
    """The plan after those of its two mends that are among the names."""
    return mend_plan(text, schema, columns="columns" in mends, bridges="bridges" in mends)


def owner_of(
    column: str, under: str, planned: Sequence[str], owners: Mapping[str, frozenset[str]], joins: Joinable
) -> str:
    """The table that owns a column which was named under another: one that is planned or the only one that joins; else "".

    All names are in lower case; `owners` maps each table to its columns.
    """
    near = [table for table in sorted(joins.neighbours.get(under, ())) if column in owners.get(table, ())]
    taken = [table for table in near if table in planned] or near
    return taken[0] if len(taken) == 1 else ""


def _with_owners(plan: Plan, schema: Schema) -> Plan:
    owners = {table.name.lower(): frozenset(c.name.lower() for c in table.columns) for table in schema.tables}
    named = {table.name.lower(): list[str]() for table in plan.tables}
    for table in plan.tables:
        for column in table.columns:
            key, wanted = table.name.lower(), column.lower()
            own = wanted in owners.get(key, (wanted,))
            owner = key if own else owner_of(wanted, key, tuple(named), owners, _joinable(schema)) or key
            place = named.setdefault(owner, [])
            place += [column] if wanted not in map(str.lower, place) else []
    return replace(plan, tables=tuple(PlannedTable(_spelled(key, schema), tuple(own)) for key, own in named.items()))


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
