"""Signs that need the query and the schema alone. Each function gives what goes into the sign's sentence."""

from collections.abc import Iterator

from sqlglot import exp

from tools.repair.doubt.evidence import Evidence
from tools.sql.join_graph import edges
from tools.sql.scope import first_select, is_number, type_kind

_AGGREGATES = (exp.Sum, exp.Avg)


def unjoinable_in(evidence: Evidence) -> Iterator[str]:
    """`x IN (SELECT y ...)`, or `x = (SELECT y ...)`, where no key makes x and y the same."""
    for node in evidence.tree.find_all(exp.In, exp.EQ):
        query = node.args.get("query") if isinstance(node, exp.In) else node.expression
        inner = first_select(query) if isinstance(query, exp.Subquery) else None
        entries = [item.unalias() for item in inner.expressions] if inner is not None else []
        here, there = evidence.place(node.this), evidence.place(entries[0]) if len(entries) == 1 else None
        if here is not None and there is not None and not evidence.alike(here, there):
            yield f"{node.this.name} with {entries[0].name}"


def equal_halves(evidence: Evidence) -> Iterator[str]:
    """A set operation of a query with itself."""
    for node in evidence.tree.find_all(exp.SetOperation):
        if node.left.sql().casefold() == node.right.sql().casefold():
            yield node.key.upper()


def selected_and_fixed(evidence: Evidence) -> Iterator[str]:
    """A column of the SELECT list that the WHERE clause holds equal to a literal."""
    for select in evidence.tree.find_all(exp.Select):
        where = select.args.get("where")
        conditions = (
            where.this.flatten() if where and isinstance(where.this, exp.And) else [where.this] if where else []
        )
        equal = [one for one in conditions if isinstance(one, exp.EQ) and isinstance(one.expression, exp.Literal)]
        fixed = {place for one in equal if (place := evidence.place(one.this)) is not None}
        for item in select.expressions:
            if evidence.place(item.unalias()) in fixed:
                yield item.unalias().name


def join_off_keys(evidence: Evidence) -> Iterator[str]:
    """A join of two tables by columns that no foreign key connects, where the schema has foreign keys."""
    known = {
        frozenset({(edge.table.lower(), here.lower()), (edge.ref_table.lower(), there.lower())})
        for edge in edges(evidence.schema)
        for here, there in zip(edge.columns, edge.ref_columns, strict=True)
    }
    for join in evidence.tree.find_all(exp.Join) if known else ():
        condition = join.args.get("on")
        for equal in condition.find_all(exp.EQ) if condition is not None else ():
            here, there = evidence.place(equal.this), evidence.place(equal.expression)
            if here is not None and there is not None and here != there and frozenset({here, there}) not in known:
                yield f"{'.'.join(here)} and {'.'.join(there)}"


def key_aggregate(evidence: Evidence) -> Iterator[str]:
    """A sum or an average of keys, which are names and no amounts."""
    for node in evidence.tree.find_all(*_AGGREGATES):
        if evidence.place(node.this) in evidence.keys:
            yield "the sum" if isinstance(node, exp.Sum) else "the average"


def text_as_number(evidence: Evidence) -> Iterator[str]:
    """A column of words that is cast to a number, added up, or averaged."""
    for node in evidence.tree.find_all(exp.Cast, exp.TryCast, *_AGGREGATES):
        to_number = not isinstance(node, exp.Cast) or is_number(type_kind(node.args["to"].sql()))
        place = evidence.place(node.this) if to_number else None
        column = evidence.column(place) if place else None
        is_text = column is not None and type_kind(column.type) == "text" and column.samples
        if column and is_text and not any(digit.isdigit() for sample in column.samples for digit in sample):
            yield column.name
