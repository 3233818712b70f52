"""What a query reads, and what its data say against it: joins that multiply rows, comparisons with NULL, ties at a LIMIT.

The query is somebody else's. Nothing is concluded from its text alone that the data can decide: each finding names a query
that shows it, and that query has run. A new check is a function and a line of `_CHECKS`. No language model here.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal

from sqlglot import exp

from tools.databases.database import Database
from tools.result import QueryError, Result
from tools.schema import ColumnRef, Schema, Table
from tools.sql.join_graph import Joinable, edges, joinable
from tools.sql.scope import FromItem, column_ref, first_select, owner, parse_or_nothing, sources, table_name

Severity = Literal["error", "warning", "note"]
Kind = Literal[
    "does_not_run",
    "multiplied_rows",
    "repeated_rows",
    "join_off_keys",
    "null_comparison",
    "null_left_out",
    "tie_at_limit",
    "limit_without_order",
    "cost",
    "not_checked",
    "unused_value",
    "same_reading",
    "other_reading",
]
Run = Callable[[str], Result | QueryError]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is to be known of a query. error: it does not run; warning: it hardly says what is meant; note: a fact.
    `evidence`: the query that shows it, where there is one."""

    kind: Kind
    severity: Severity
    sentence: str
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class TableRead:
    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Review:
    """A query, the tables and columns that it reads, and the findings, the gravest first."""

    sql: str
    dialect: str
    reads: tuple[TableRead, ...]
    findings: tuple[Finding, ...]
    error: QueryError | None = None  # why it does not run

    @property
    def is_doubtful(self) -> bool:
        """Whether there is an error or a warning."""
        return any(each.severity != "note" for each in self.findings)


def gravest_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, each once."""
    order = ("error", "warning", "note")
    return tuple(sorted(dict.fromkeys(findings), key=lambda each: order.index(each.severity)))


def review(sql: str, database: Database, run: Run) -> Review:
    """Review one SELECT. `run` executes a query read-only, within limits, on `database`."""
    error = database.explain(sql)
    if error is not None:
        hint = f"; there is: {', '.join(error.candidates)}" if error.candidates else ""
        finding = Finding("does_not_run", "error", f"It does not run: {error.message}{hint}.")
        return Review(sql, database.dialect, (), (finding,), error)
    schema = database.schema()
    trees = parse_or_nothing(sql, schema.dialect)
    if len(trees) != 1:
        return Review(sql, database.dialect, (), (Finding("not_checked", "note", "Nothing was checked."),))
    case = _Case(trees[0], schema, run)
    found = list(chain.from_iterable(check(case) for check in _CHECKS))
    found += [*_cost(database, sql), *case.unanswered]
    return Review(sql, database.dialect, _reads(trees[0], schema), gravest_first(found))


def _reads(tree: exp.Expr, schema: Schema) -> tuple[TableRead, ...]:
    found: dict[str, dict[str, None]] = {}
    for relation in tree.find_all(exp.Table):
        if schema.table(table_name(relation, schema)):
            found.setdefault(table_name(relation, schema), {})
    for column in tree.find_all(exp.Column):
        place = column_ref(column, schema)
        if place is not None:
            found.setdefault(place[0], {})[place[1]] = None
    for select in tree.find_all(exp.Select):
        for item in sources(select, schema) if any(each.is_star for each in select.selects) else ():
            if item.table is not None:
                found.setdefault(item.table.name, {}).update(dict.fromkeys(c.name for c in item.table.columns))
    return tuple(TableRead(table, tuple(columns)) for table, columns in found.items())


class _Case:
    """The query under review, and what is asked of its data."""

    def __init__(self, tree: exp.Expr, schema: Schema, run: Run) -> None:
        self.tree, self.schema, self._run = tree, schema, run
        self.unanswered: list[Finding] = []

    def ask(self, query: exp.Expr) -> tuple[tuple[tuple[Any, ...], ...], str]:
        """The rows of a counter-query, and its text; no rows where it cannot run, as in a query that leans on an outer one."""
        text = query.sql(self.schema.dialect)
        outcome = self._run(text)
        if isinstance(outcome, Result):
            return outcome.rows, text
        if outcome.kind in ("timeout", "memory"):
            told = f"One thing was not checked, for its query was stopped ({outcome.message})."
            self.unanswered.append(Finding("not_checked", "note", told, text))
        return (), text

    @cached_property
    def selects(self) -> "tuple[_Part, ...]":
        """Every SELECT of the query that reads tables."""
        found = (_Part(select, self.schema) for select in self.tree.find_all(exp.Select))
        return tuple(part for part in found if part.entries)


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """An entry of FROM: what it is called, what it is, and whether an outer join may leave it empty."""

    called: exp.Identifier
    item: FromItem
    optional: bool

    def key(self, dialect: str) -> tuple[exp.Column, ...]:
        """What tells its rows apart; nothing where that is not known."""
        table = self.item.table
        names = [column.name for column in table.columns if column.primary_key] if table else []
        has_numbers = table is not None and table.row_count is not None and dialect in ("sqlite", "duckdb")
        return tuple(self.column(name) for name in names or (["rowid"] if has_numbers else []))

    def column(self, name: str) -> exp.Column:
        return exp.Column(this=exp.to_identifier(name, quoted=name != "rowid"), table=self.called.copy())


class _Part:
    """One SELECT of the query under review."""

    def __init__(self, select: exp.Select, schema: Schema) -> None:
        self.select, self.schema = select, schema
        self.entries = tuple(self._entries())

    def _entries(self) -> Iterator[_Entry]:
        from_ = self.select.args.get("from_")
        joins = self.select.args.get("joins") or []
        relations = ([from_.this] if from_ else []) + [join.this for join in joins]
        sides = [None] * bool(from_) + [join.side for join in joins]
        from_right = any(side in ("RIGHT", "FULL") for side in sides)
        for relation, item, side in zip(relations, sources(self.select, self.schema), sides, strict=True):
            alias = relation.args.get("alias")
            called = alias.this if isinstance(alias, exp.TableAlias) else relation.this
            if isinstance(called, exp.Identifier):
                yield _Entry(called, item, side in ("LEFT", "FULL") or from_right)

    def own(self, *kinds: type[exp.Expr]) -> Iterator[Any]:
        """The nodes of this SELECT alone, without those of the queries inside it."""
        nested = lambda node: isinstance(node, exp.Query) and node is not self.select  # noqa: E731
        return (node for node in self.select.walk(prune=nested) if isinstance(node, kinds))

    def entries_of(self, node: exp.Expr) -> tuple[_Entry, ...]:
        """The entries whose columns stand in an expression."""
        owners = {id_of(owner(column, self.schema)) for column in node.find_all(exp.Column)}
        return tuple(entry for entry in self.entries if id_of(entry.item) in owners)

    def resolved(self, node: exp.Expr) -> exp.Expr:
        """What a key of GROUP BY or ORDER BY stands for: an item of the SELECT list by its place or alias, or itself."""
        items = self.select.selects
        if isinstance(node, exp.Literal) and not node.is_string and 0 < int(node.name) <= len(items):
            return items[int(node.name) - 1].unalias()
        named = isinstance(node, exp.Column) and not node.table
        return next((each.this for each in items if named and isinstance(each, exp.Alias) and each.alias == node.name), node)

    def rows(self, *items: exp.Expr) -> exp.Select:
        """A query of the rows that this SELECT reads, before it groups, sorts or cuts them."""
        query = exp.Select(expressions=list(items))
        for name in ("from_", "where"):
            if part := self.select.args.get(name):
                query.set(name, part.copy())
        query.set("joins", [join.copy() for join in self.select.args.get("joins") or []])
        return query

    def with_tables(self, query: exp.Select) -> exp.Select:
        """The query, which sees what WITH names for this SELECT."""
        around = [self.select, *_ancestors(self.select)]
        named = [node.args["with_"] for node in reversed(around) if node.args.get("with_")]
        tables = [table.copy() for each in named for table in each.expressions]
        if tables:
            query.set("with_", exp.With(expressions=tables, recursive=any(each.args.get("recursive") for each in named)))
        return query

    def counted(self, group: Sequence[exp.Expr], key: exp.Expr) -> exp.Select:
        """A query that counts the groups with several rows, and says how many the largest has."""
        items = [exp.alias_(column.copy(), f"key_{place}") for place, column in enumerate(group)]
        times = exp.alias_(exp.Count(this=exp.Star()), "times")
        several = exp.and_(exp.GT(this=exp.Count(this=exp.Star()), expression=exp.Literal.number(1)), _known(key))
        inner = self.rows(*items, times).group_by(*(each.copy() for each in group)).having(several)
        outer = exp.select("COUNT(*) AS repeated", "MAX(times) AS most", "SUM(times) AS rows_in_all")
        return self.with_tables(outer.from_(inner.subquery("counted")))


def id_of(item: FromItem | None) -> str | None:
    return item.alias.casefold() if item else None


def _ancestors(node: exp.Expr) -> Iterator[exp.Expr]:
    while node.parent is not None:
        node = node.parent
        yield node


def _known(key: exp.Expr) -> exp.Expr:
    return exp.Not(this=exp.Is(this=key.copy(), expression=exp.null()))


_TOTALS = (exp.Sum, exp.Avg, exp.Count)


def multiplied_totals(case: _Case) -> Iterator[Finding]:
    """Sums, averages and counts over rows that a join repeats."""
    for part in case.selects:
        if len(part.entries) < 2:
            continue
        group = part.select.args.get("group")
        by = [part.resolved(key) for key in group.expressions] if group else []
        asked: dict[tuple[_Entry, ...], Finding | None] = {}
        for total in part.own(*_TOTALS):
            if isinstance(total.this, exp.Distinct) or total.find_ancestor(exp.Window):
                continue
            of = () if _counts_rows(total) else part.entries_of(total)
            if of and of not in asked:
                asked[of] = _repeated(case, part, of, by, f"{_text(total, case)} takes")
                yield from (asked[of],) if asked[of] else ()
            if not of and () not in asked:
                each = [_repeated(case, part, (entry,), by, f"{_text(total, case)} counts") for entry in part.entries]
                asked[()] = each[0] if all(each) else None
                yield from (asked[()],) if asked[()] else ()


def _counts_rows(total: exp.Expr) -> bool:
    """Whether it counts rows that fulfil a condition: SUM(a = b), or a CASE of constants."""
    values = [each.args["true"] for each in total.this.args["ifs"]] if isinstance(total.this, exp.Case) else []
    return isinstance(total.this, exp.Predicate) or bool(values) and all(isinstance(each, exp.Literal) for each in values)


def _repeated(
    case: _Case, part: _Part, of: Sequence[_Entry], by: Sequence[exp.Expr], does: str
) -> Finding | None:
    """That rows of these entries come several times, within a group; None where they do not, or have no key."""
    keys = [entry.key(case.schema.dialect) for entry in of]
    if not all(keys):
        return None
    group = [*chain.from_iterable(keys), *by]
    rows, text = case.ask(part.counted(group, keys[0][0]))
    if not rows or not rows[0][0]:
        return None
    names = " and ".join(entry.item.table.name for entry in of if entry.item.table)
    often = f"{rows[0][0]:,} rows of {names} several times, up to {rows[0][1]:,}"
    others = [entry.item.alias for entry in part.entries if entry not in of]
    return Finding("multiplied_rows", "warning", f"{does} {often}: the join with {', '.join(others)} repeats them.", text)


def repeated_rows(case: _Case) -> Iterator[Finding]:
    """Rows that a join repeats in the result itself."""
    part = next((each for each in case.selects if each.select is case.tree), None)
    if part is None or len(part.entries) < 2 or any(part.own(exp.AggFunc, exp.Window)):
        return
    select = part.select
    if select.args.get("distinct") or select.args.get("group") or any(item.is_star for item in select.selects):
        return
    order = select.args.get("order")
    shown = [*select.selects, *(part.resolved(key.this) for key in (order.expressions if order else ()))]
    of = tuple(dict.fromkeys(entry for item in shown for entry in part.entries_of(item)))
    if of and len(of) < len(part.entries) and (found := _repeated(case, part, of, (), "The result has")):
        yield Finding("repeated_rows", "warning", found.sentence, found.evidence)


@dataclass(frozen=True, slots=True)
class _Equality:
    """Two columns of tables that a join holds equal."""

    one: ColumnRef
    other: ColumnRef


def _equalities(part: _Part) -> Iterator[_Equality]:
    conditions = [join.args.get("on") for join in part.select.args.get("joins") or []]
    conditions += [part.select.args.get("where")]
    for condition in conditions:
        for equal in condition.find_all(exp.EQ) if condition is not None else ():
            sides = [side for side in (equal.this, equal.expression) if isinstance(side, exp.Column)]
            places = [column_ref(side, part.schema) for side in sides]
            if equal.parent_select is part.select and len(places) == 2 and places[0] and places[1]:
                yield _Equality(places[0], places[1])


def off_keys(case: _Case) -> Iterator[Finding]:
    """Joins on columns that no key connects, where the schema connects the tables otherwise or the values hardly meet."""
    joins = joinable(case.schema)
    for part in case.selects:
        for equal in _equalities(part):
            one, other = _folded(equal.one), _folded(equal.other)
            if one != other and other not in joins.groups.get(one, ()):
                yield from _off_keys(case, equal, joins)


def _off_keys(case: _Case, equal: _Equality, joins: Joinable) -> Iterator[Finding]:
    here, there = ".".join(equal.one), ".".join(equal.other)
    (one, x), (other, y) = _folded(equal.one), _folded(equal.other)
    ways = [
        f"{edge.table}.{a} = {edge.ref_table}.{b}"
        for edge in edges(case.schema)
        if {edge.table.lower(), edge.ref_table.lower()} == {one, other}
        for a, b in zip(edge.columns, edge.ref_columns, strict=True)
    ]
    met, text = _met(case, equal)
    share = "" if met is None else f"; {met:.0%} of the values meet"
    if ways:
        told = f"It joins {here} with {there}, but the schema connects them by {' and '.join(ways)}{share}."
        yield Finding("join_off_keys", "warning", told, text)
    elif (x, y) not in joins.between(one, other) and met is not None:
        told = f"It joins {here} with {there}, which no key connects{share}."
        yield Finding("join_off_keys", "warning" if met < _MEET else "note", told, text)


_MEET = 0.5
"""Columns that are rightly joined share at least this part of the values of one of them."""


def _met(case: _Case, equal: _Equality) -> tuple[float | None, str]:
    """The share of one column's distinct values that the other has, the larger of both shares; None if it is not known."""
    one, other = (_values(case.schema, place) for place in (equal.one, equal.other))
    both = exp.select("COUNT(*)").from_(one.copy().subquery("one")).where("value IN (SELECT value FROM other_values)")
    counts = [exp.select("COUNT(*)").from_(each.copy().subquery("counted")) for each in (one, other)]
    query = exp.select(*(exp.alias_(each.subquery(), name) for each, name in zip((both, *counts), _COUNTS, strict=True)))
    rows, text = case.ask(query.with_("other_values", as_=other))
    if not rows or not all(rows[0][1:]):
        return None, text
    return rows[0][0] / min(rows[0][1:]), text


_COUNTS = ("in_both", "in_one", "in_other")


def _values(schema: Schema, place: ColumnRef) -> exp.Select:
    table = schema.table(place[0])
    assert table is not None
    column = exp.column(place[1], quoted=True)
    return exp.select(exp.alias_(column, "value")).distinct().from_(_relation(table)).where(_known(column))


def _relation(table: Table) -> exp.Table:
    *schema, name = table.path or (table.name,)
    return exp.table_(name, db=schema[0] if schema else None, quoted=True)


def _folded(place: ColumnRef) -> ColumnRef:
    return place[0].lower(), place[1].lower()


def null_comparisons(case: _Case) -> Iterator[Finding]:
    """Comparisons that are never true because of a NULL."""
    for node in case.tree.find_all(exp.EQ, exp.NEQ):
        if any(isinstance(side, exp.Null) for side in (node.this, node.expression)):
            told = f"{_text(node, case)} is never true: it takes IS NULL or IS NOT NULL."
            yield Finding("null_comparison", "warning", told)
    for node in case.tree.find_all(exp.Not):
        query = node.this.args.get("query") if isinstance(node.this, exp.In) else None
        inner = first_select(query) if query is not None else None
        if inner is not None and len(inner.selects) == 1:
            part = _Part(inner, case.schema)
            column = inner.selects[0].unalias()
            count = exp.select("COUNT(*) AS nulls").from_(
                exp.select(exp.alias_(exp.column("value"), "value")).from_(_as_values(query)).subquery("found")
            )
            rows, text = case.ask(part.with_tables(count.where("value IS NULL")))
            if rows and rows[0][0]:
                told = f"NOT IN is never true here: {_text(column, case)} is NULL in {rows[0][0]:,} rows of its list."
                yield Finding("null_comparison", "warning", told, text)


def _as_values(query: exp.Expr) -> exp.Expr:
    inner = query.this if isinstance(query, exp.Subquery) else query
    named = inner.copy()
    first = first_select(named)
    assert first is not None
    first.set("expressions", [exp.alias_(first.selects[0].unalias().copy(), "value")])
    return exp.Subquery(this=named, alias=exp.TableAlias(this=exp.to_identifier("listed")))


def nulls_left_out(case: _Case) -> Iterator[Finding]:
    """Rows that a comparison, a total or the key of a join passes over because a column is NULL in them."""
    minded = {node.this.sql() for node in case.tree.find_all(exp.Is)} | {
        each.sql() for node in case.tree.find_all(exp.Coalesce) for each in node.find_all(exp.Column)
    }
    for part in case.selects:
        for column, role, severity in _roles(part):
            entry = next(iter(part.entries_of(column)), None)
            table = entry.item.table if entry and not entry.optional else None
            known = table.column(column.name) if table else None
            if entry and table and known and not known.primary_key and column.sql() not in minded:
                if told := _left_out(case, entry, table, column, role):
                    yield Finding("null_left_out", severity, *told)


_COMPARED = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Like, exp.ILike, exp.In, exp.Between)


def _roles(part: _Part) -> Iterator[tuple[exp.Column, str, Severity]]:
    """Each column of the part by what passes over its NULLs."""
    for total in part.own(*_TOTALS):
        if isinstance(total.this, exp.Column):
            is_count = isinstance(total, exp.Count)
            yield total.this, f"{total.key.upper()} passes over them", "warning" if is_count else "note"
    for node in part.own(*_COMPARED):
        if not isinstance(node.this, exp.Column) or isinstance(node.expression, exp.Null) or node.find_ancestor(exp.Case):
            continue
        if isinstance(node.expression, exp.Column):
            yield node.this, "the join leaves them out", "note"
        elif isinstance(node, exp.NEQ) or isinstance(node.parent, exp.Not):
            yield node.this, "the condition, which denies a value, leaves them out as well", "warning"
        else:
            yield node.this, "the condition leaves them out", "note"


def _left_out(case: _Case, entry: _Entry, table: Table, column: exp.Column, role: str) -> tuple[str, str] | None:
    """The sentence, and the query that shows it; None where the column is never NULL."""
    relation = exp.alias_(_relation(table), entry.called.copy(), table=True)
    counts = ("COUNT(*) AS rows_in_all", exp.alias_(exp.Count(this=column.copy()), "with_a_value"))
    rows, text = case.ask(exp.select(*counts).from_(relation))
    if not rows or rows[0][0] == rows[0][1]:
        return None
    nulls, whole = rows[0][0] - rows[0][1], rows[0][0]
    told = f"{_text(column, case)} is NULL in {nulls:,} of {whole:,} rows ({nulls / whole:.0%}): {role}."
    return told, text


def ties(case: _Case) -> Iterator[Finding]:
    """Rows that tie where a LIMIT cuts."""
    tree, limit = case.tree, case.tree.args.get("limit")
    count = limit.expression if isinstance(limit, exp.Limit) else None
    part = next((each for each in case.selects if each.select is tree), None)
    if part is None or not isinstance(count, exp.Literal) or not count.name.isdigit():
        return
    order = tree.args.get("order")
    if order is None:
        if part.select.args.get("group") or not any(part.own(exp.AggFunc)):
            yield Finding("limit_without_order", "note", "It has a LIMIT and no ORDER BY: which rows come is chance.")
        return
    if tree.args.get("distinct"):
        return
    keys = [part.resolved(key.this).copy() for key in order.expressions]
    longer = tree.copy()
    own = len(longer.selects)
    longer.set("expressions", [*longer.expressions, *(exp.alias_(key, f"key_{i}") for i, key in enumerate(keys))])
    last = int(count.name)
    longer.set("limit", exp.Limit(expression=exp.Literal.number(last + 1)))
    rows, text = case.ask(longer)
    if len(rows) == last + 1 and last and not any(item.is_star for item in tree.selects):
        inside, outside = rows[last - 1], rows[last]
        if inside[own:] == outside[own:] and inside[:own] != outside[:own]:
            by = ", ".join(_text(key, case) for key in keys)
            told = f"Rows {last} and {last + 1} tie in {by}: which of them comes is chance."
            yield Finding("tie_at_limit", "warning", told, text)


def _text(node: exp.Expr, case: _Case) -> str:
    return " ".join(node.sql(case.schema.dialect).split())


_CHECKS: tuple[Callable[[_Case], Iterator[Finding]], ...] = (
    multiplied_totals,
    repeated_rows,
    off_keys,
    null_comparisons,
    nulls_left_out,
    ties,
)

_ESTIMATES = re.compile(r"~([\d,]+) rows|\brows=(\d+)")
_SCAN = re.compile(r"^SCAN (?!CONSTANT)(\S+)")


def _cost(database: Database, sql: str) -> Iterator[Finding]:
    """What the engine expects to read, by its own plan."""
    plan = database.plan(sql)
    if isinstance(plan, QueryError):
        return
    text = "\n".join(str(cell) for row in plan.rows for cell in row)
    estimates = [int((a or b).replace(",", "")) for a, b in _ESTIMATES.findall(text)]
    scans = [found[1] for row in plan.rows for cell in row if (found := _SCAN.match(str(cell)))]
    if estimates:
        yield Finding("cost", "note", f"The engine expects {max(estimates):,} rows in the largest step of its plan.")
    elif scans:
        yield Finding("cost", "note", f"The engine reads every row of {', '.join(dict.fromkeys(scans))}.")
