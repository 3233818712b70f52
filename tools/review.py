"""What a query reads, and what its data say against it: joins that repeat rows, comparisons with NULL, ties at a LIMIT.

The query is somebody else's. What the data can decide is not concluded from the text alone: such a finding has a query that
shows it, and that query has run. A new check is a function and a line of `_CHECKS`. No language model here.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from sqlglot import exp

from tools.databases.database import Database
from tools.databases.guarded_database import largest_step
from tools.linking.word_forms import keys, name_words, stem, word_set
from tools.result import QueryError, Result
from tools.schema import ColumnRef, Schema, Table
from tools.sql.join_graph import edges, joinable
from tools.sql.scope import FromItem, column_ref, owner, parse_or_nothing, sources, table_name

Severity = Literal["error", "warning", "note"]
Kind = Literal[
    "does_not_run", "multiplied_rows", "repeated_rows", "join_off_keys", "null_comparison", "null_left_out",
    "tie_at_limit", "cost", "not_checked", "unused_value", "same_reading", "other_reading",
]  # fmt: skip
Run = Callable[[str], Result | QueryError]
Rows = tuple[tuple[Any, ...], ...]


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
    """A table that a query reads, and the columns that it names of it."""

    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Review:
    """A query, what it reads, and the findings, the gravest first. `error`: why it does not run."""

    sql: str
    dialect: str
    reads: tuple[TableRead, ...]
    findings: tuple[Finding, ...]
    error: QueryError | None = None

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
    case = _Case(parse_or_nothing(sql, database.dialect)[0], database.schema(), run)
    found = [*chain.from_iterable(check(case) for check in _CHECKS), *case.unanswered, *_cost(database, sql)]
    return Review(sql, database.dialect, _reads(case), gravest_first(found))


def repeated_by_joins(sql: str, database: Database, run: Run, question: str) -> tuple[Finding, ...]:
    """What joins repeat in a SELECT that runs, with the counter-queries that prove it: rows that are added up, averaged or
    counted, rows of the result, and what the question asks the number of."""
    trees = parse_or_nothing(sql, database.dialect)
    if len(trees) != 1 or trees[0].find(exp.Join, exp.Count) is None:
        return ()
    case = _Case(trees[0], database.schema(), run)
    return (*multiplied_totals(case), *repeated_rows(case), *_asked_number(case, question))


class _Case:
    """The query under review, and what is asked of its data."""

    def __init__(self, tree: exp.Expr, schema: Schema, run: Run) -> None:
        self.tree, self.schema, self._run = tree, schema, run
        self.unanswered: list[Finding] = []
        self.parts = tuple(_Part(select, schema) for select in tree.find_all(exp.Select))

    @property
    def root(self) -> "_Part | None":
        """The SELECT that gives the result; None where it is a set operation."""
        return next((part for part in self.parts if part.select is self.tree), None)

    def ask(self, query: exp.Expr) -> tuple[Rows, str]:
        """The rows of a counter-query, and its text; no rows where it cannot run, as in a query that leans on an outer one."""
        text = query.sql(self.schema.dialect)
        outcome = self._run(text)
        if isinstance(outcome, Result):
            return outcome.rows, text
        if outcome.kind in ("timeout", "memory"):
            told = f"One thing was not checked, for its query was stopped ({outcome.message})."
            self.unanswered.append(Finding("not_checked", "note", told, text))
        return (), text

    def text(self, node: exp.Expr) -> str:
        return node.sql(self.schema.dialect)


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """An entry of FROM: what it is called, what it is, and whether an outer join may leave it empty."""

    called: exp.Identifier
    item: FromItem
    optional: bool

    def key(self, dialect: str) -> list[exp.Expr]:
        """What tells its rows apart; nothing where that is not known."""
        table = self.item.table
        names = [column.name for column in table.columns if column.primary_key] if table else []
        if not names and table and table.row_count is not None and dialect in ("sqlite", "duckdb"):
            return [exp.Column(this=exp.to_identifier("rowid"), table=self.called.copy())]
        return [exp.Column(this=exp.to_identifier(name, quoted=True), table=self.called.copy()) for name in names]


class _Part:
    """One SELECT of the query under review."""

    def __init__(self, select: exp.Select, schema: Schema) -> None:
        self.select, self._schema = select, schema
        self.joins: list[exp.Join] = select.args.get("joins") or []
        self.entries = tuple(self._entries())

    def _entries(self) -> Iterator[_Entry]:
        from_ = self.select.args.get("from_")
        sides = [""] * bool(from_) + [join.side for join in self.joins]
        relations = [each.this for each in ([from_] if from_ else []) + self.joins]
        for relation, item, side in zip(relations, sources(self.select, self._schema), sides, strict=True):
            alias = relation.args.get("alias")
            called = alias.this if isinstance(alias, exp.TableAlias) else relation.this
            if isinstance(called, exp.Identifier):
                yield _Entry(called, item, side in ("LEFT", "FULL") or not {"RIGHT", "FULL"}.isdisjoint(sides))

    @property
    def is_open(self) -> bool:
        """Whether it shows rows once, or columns that it does not name."""
        return self.select.args.get("distinct") is not None or any(item.is_star for item in self.select.selects)

    def own(self, *kinds: type[exp.Expr]) -> Iterator[Any]:
        """The nodes of this SELECT alone, without those of the queries inside it."""

        def is_inside(node: exp.Expr) -> bool:
            return isinstance(node, exp.Query) and node is not self.select

        return (node for node in self.select.walk(prune=is_inside) if isinstance(node, kinds))

    def entries_of(self, *nodes: exp.Expr) -> tuple[_Entry, ...]:
        """The entries whose columns stand in expressions."""
        owners = [owner(column, self._schema) for node in nodes for column in node.find_all(exp.Column)]
        names = {item.alias.casefold() for item in owners if item}
        return tuple(entry for entry in self.entries if entry.item.alias.casefold() in names)

    def keys_of(self, clause: str) -> list[exp.Expr]:
        """What GROUP BY or ORDER BY has, with the items of the SELECT list for their places and aliases."""
        found = self.select.args.get(clause)
        keys = found.expressions if found else []
        return [self._resolved(key.this if isinstance(key, exp.Ordered) else key) for key in keys]

    def _resolved(self, node: exp.Expr) -> exp.Expr:
        items = self.select.selects
        if isinstance(node, exp.Literal) and node.is_int and 0 < int(node.name) <= len(items):
            return items[int(node.name) - 1].unalias()
        named = node.name if isinstance(node, exp.Column) and not node.table else None
        return next((each.this for each in items if isinstance(each, exp.Alias) and each.alias == named), node)

    def counted(self, group: Sequence[exp.Expr]) -> exp.Select:
        """A query that counts the groups of several rows among those that this SELECT reads; how many the largest has."""
        items = [exp.alias_(key.copy(), f"key_{place}") for place, key in enumerate(group)]
        inner = exp.Select(expressions=[*items, exp.alias_(exp.Count(this=exp.Star()), "times")])
        for name in ("from_", "joins", "where"):
            inner.set(name, self.select.copy().args.get(name))
        several = exp.GT(this=exp.Count(this=exp.Star()), expression=exp.Literal.number(1))
        is_there = exp.Not(this=exp.Is(this=group[0].copy(), expression=exp.null()))
        inner = inner.group_by(*(key.copy() for key in group)).having(exp.and_(several, is_there))
        return self.with_tables(
            exp.select("COUNT(*) AS repeated", "MAX(times) AS most").from_(inner.subquery("counted"))
        )

    def with_tables(self, query: exp.Select) -> exp.Select:
        """The query, which sees what WITH names for this SELECT."""
        named = list[exp.With]()
        node: exp.Expr | None = self.select
        while node is not None:
            named[:0] = [node.args["with_"]] if node.args.get("with_") else []
            node = node.parent
        tables = [table.copy() for each in named for table in each.expressions]
        if tables:
            query.set("with_", exp.With(expressions=tables, recursive=any(each.recursive for each in named)))
        return query


def _reads(case: _Case) -> tuple[TableRead, ...]:
    found: dict[str, dict[str, None]] = {}
    for relation in case.tree.find_all(exp.Table):
        if case.schema.table(table_name(relation, case.schema)):
            found.setdefault(table_name(relation, case.schema), {})
    for column in case.tree.find_all(exp.Column):
        if place := column_ref(column, case.schema):
            found.setdefault(place[0], {})[place[1]] = None
    for part in case.parts:
        for entry in part.entries if any(each.is_star for each in part.select.selects) else ():
            if table := entry.item.table:
                found.setdefault(table.name, {}).update(dict.fromkeys(column.name for column in table.columns))
    return tuple(TableRead(table, tuple(columns)) for table, columns in found.items())


_TOTALS = (exp.Sum, exp.Avg, exp.Count)


def multiplied_totals(case: _Case) -> Iterator[Finding]:
    """Sums, averages and counts over rows that a join repeats. COUNT(*) counts the rows of a join, unless it repeats those of
    each of its tables."""
    for part in case.parts:
        seen = set[tuple[_Entry, ...]]()
        for total in part.own(*_TOTALS) if len(part.entries) > 1 else ():
            of = () if _counts_rows(total) else part.entries_of(total)
            if of in seen or isinstance(total.this, exp.Distinct) or total.find_ancestor(exp.Window):
                continue
            seen.add(of)
            whole = [of] if of else [(entry,) for entry in part.entries]
            found = [_repeated(case, part, each, part.keys_of("group")) for each in whole]
            if found[0] and all(found):
                yield Finding("multiplied_rows", "warning", f"{case.text(total)} takes {found[0][0]}", found[0][1])


_HOW_MANY = re.compile(
    r"\b(?:how many|(?:the|total|most|least|highest|lowest|largest|smallest|greatest) number of)\b", re.IGNORECASE
)
_BETWEEN = word_set("a all different distinct individual of our separate single such the these unique your")


def _asked_number(case: _Case, question: str) -> Iterator[Finding]:
    """Counts of rows where the question asks how many rows there are of another table, which come several times: of one that
    is joined, or of one that is only referred to."""
    part = case.root
    counts = [each for each in part.own(exp.Count) if not each.find_ancestor(exp.Window)] if part else []
    if part is None or not counts or any(isinstance(each.this, exp.Distinct) for each in counts):
        return
    asked = [keys(question[found.end() :]) for found in _HOW_MANY.finditer(question)]
    named = [each.name for each in case.schema.tables if any(_counts_what(each.name, words) for words in asked)]
    joined = [(entry.item.table.name, entry) for entry in part.entries if entry.item.table]
    group = part.keys_of("group")
    several = joined if len(part.entries) > 1 else []
    found = [(table, _repeated(case, part, [entry], group)) for table, entry in several if table in named]
    if not group:
        found += [(table, _referred_to(case, part, table)) for table in named if table not in dict(joined)]
    for table, repeated in found:
        if repeated:
            told = f"The question asks for the number of {table}; this counts {repeated[0]}"
            yield Finding("multiplied_rows", "warning", told, repeated[1])


def _referred_to(case: _Case, part: _Part, table: str) -> tuple[str, str] | None:
    """That several rows which this SELECT reads refer to one row of a table that it does not read, and the query that shows
    it."""
    for entry in part.entries:
        owned = entry.item.table.name if entry.item.table else None
        for edge in edges(case.schema).touching.get(owned or "", ()):
            if edge.table != owned or edge.ref_table != table or len(edge.columns) != 1:
                continue
            key = exp.Column(this=exp.to_identifier(edge.columns[0], quoted=True), table=entry.called.copy())
            rows, text = case.ask(part.counted([key]))
            if rows and rows[0][0]:
                count = (
                    f"{rows[0][0]:,} of them several times, up to {rows[0][1]:,}: each row of {owned} refers to one."
                )
                return count, text
    return None


def _counts_what(table: str, words: Sequence[str]) -> bool:
    """Whether the words behind "how many" begin with the table's name in the plural: movie reviews are no movies."""
    name = [stem(word) for word in name_words(table)]
    said = [word for word in words if word not in _BETWEEN][: len(name)]
    is_plural = bool(said) and stem(said[-1]) != said[-1] and not said[-1].endswith("ie")  # a movie has the stem movy
    return is_plural and list(map(stem, said)) == name


def _counts_rows(total: exp.Expr) -> bool:
    """Whether it counts rows that fulfil a condition: SUM(a = b), or a CASE of constants."""
    what = total.this
    values = [each.args["true"] for each in what.args["ifs"]] if isinstance(what, exp.Case) else [what]
    return isinstance(what, exp.Predicate) or all(isinstance(each, exp.Literal) for each in values)


def _repeated(case: _Case, part: _Part, of: Sequence[_Entry], by: Sequence[exp.Expr]) -> tuple[str, str] | None:
    """That rows of these entries come several times, within a group, and the query that shows it; None where they do not, or
    have no key."""
    keys = [entry.key(case.schema.dialect) for entry in of]
    rows, text = case.ask(part.counted([*chain.from_iterable(keys), *by])) if all(keys) else ((), "")
    if not rows or not rows[0][0]:
        return None
    names = " and ".join(entry.item.table.name for entry in of if entry.item.table)
    others = ", ".join(entry.item.alias for entry in part.entries if entry not in of)
    count = f"{rows[0][0]:,} row{'s' * (rows[0][0] > 1)} of {names}"
    return f"{count} several times, up to {rows[0][1]:,}: the join with {others} repeats them.", text


def repeated_rows(case: _Case) -> Iterator[Finding]:
    """Rows that a join repeats in the result itself."""
    part = case.root
    if part is None or any(part.own(exp.AggFunc, exp.Window, exp.Group)) or part.is_open:
        return
    of = part.entries_of(*part.select.selects, *part.keys_of("order"))
    found = _repeated(case, part, of, ()) if of and len(of) < len(part.entries) else None
    if found:
        yield Finding("repeated_rows", "warning", f"The result has {found[0]}", found[1])


def off_keys(case: _Case) -> Iterator[Finding]:
    """Joins on columns that no key connects, where the schema connects the tables otherwise or the values hardly meet."""
    groups = joinable(case.schema).groups
    for part in case.parts:
        for condition in [join.args.get("on") for join in part.joins] + [part.select.args.get("where")]:
            for equal in condition.find_all(exp.EQ) if condition is not None else ():
                places = [column_ref(side, case.schema) for side in _columns(equal)]
                if equal.parent_select is part.select and len(places) == 2 and places[0] and places[1]:
                    one, other = _folded(places[0]), _folded(places[1])
                    if one != other and other not in groups.get(one, ()):
                        yield from _off_keys(case, places[0], places[1])


def _columns(equal: exp.EQ) -> list[exp.Column]:
    return [side for side in (equal.this, equal.expression) if isinstance(side, exp.Column)]


def _folded(place: ColumnRef) -> ColumnRef:
    return place[0].lower(), place[1].lower()


MEET = 0.5
"""Columns that are rightly joined share at least this part of the values of one of them."""


def _off_keys(case: _Case, here: ColumnRef, there: ColumnRef) -> Iterator[Finding]:
    (one, x), (other, y) = _folded(here), _folded(there)
    between = [edge for edge in edges(case.schema) if {edge.table.lower(), edge.ref_table.lower()} == {one, other}]
    ways = [way for edge in between for way in edge.conditions(case.schema.dialect)]
    (met, text), (back, _) = _met(case, here, there), _met(case, there, here)
    share = max(met, back)
    told = f"It joins {'.'.join(here)} with {'.'.join(there)}, which have {share:.0%} of the values in common; "
    if ways:
        yield Finding("join_off_keys", "warning", f"{told}the schema connects them by {' or '.join(ways)}.", text)
    elif (x, y) not in joinable(case.schema).between(one, other):
        yield Finding("join_off_keys", "warning" if share < MEET else "note", f"{told}no key connects them.", text)


def _met(case: _Case, one: ColumnRef, other: ColumnRef) -> tuple[float, str]:
    """The share of a column's distinct values that another has; all where that cannot be asked."""
    first, second = (case.schema.table(place[0]) for place in (one, other))
    assert first and second
    column = exp.column(one[1], quoted=True)
    values = (
        exp.select(exp.alias_(column, "value")).distinct().from_(_relation(first)).where(column.is_(exp.null()).not_())
    )
    known = exp.select(exp.column(other[1], quoted=True)).from_(_relation(second))
    met = exp.Count(this=exp.Case().when(exp.column("value").isin(query=known), exp.Literal.number(1)))
    rows, text = case.ask(exp.select("COUNT(*) AS all_values", exp.alias_(met, "met")).from_(values.subquery("one")))
    return (rows[0][1] / rows[0][0] if rows and rows[0][0] else 1.0), text


def _relation(table: Table) -> exp.Table:
    *schema, name = table.path or (table.name,)
    return exp.table_(name, db=schema[0] if schema else None, quoted=True)


def null_comparisons(case: _Case) -> Iterator[Finding]:
    """Comparisons that are never true because of a NULL."""
    for equal in case.tree.find_all(exp.EQ, exp.NEQ):
        if isinstance(equal.expression, exp.Null):
            told = f"{case.text(equal)} is never true: it takes IS NULL or IS NOT NULL."
            yield Finding("null_comparison", "warning", told)
    for node in case.tree.find_all(exp.Not):
        query = node.this.args.get("query") if isinstance(node.this, exp.In) else None
        part = next((each for each in case.parts if query and each.select is query.unnest()), None)
        if part is not None and len(part.select.selects) == 1:
            what = part.select.selects[0].unalias()
            listed = part.select.copy()
            listed.set("expressions", [exp.alias_(what.copy(), "value")])
            count = exp.select("COUNT(*) AS nulls").from_(listed.subquery("listed")).where("value IS NULL")
            rows, text = case.ask(part.with_tables(count))
            if rows and rows[0][0]:
                told = f"NOT IN is never true here: {case.text(what)} is NULL in {rows[0][0]:,} rows of its list."
                yield Finding("null_comparison", "warning", told, text)


_COMPARED = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Like, exp.ILike, exp.In, exp.Between)


def nulls_left_out(case: _Case) -> Iterator[Finding]:
    """Rows that a condition, a total or the key of a join passes over because a column is NULL in them."""
    minded = {node.this for node in case.tree.find_all(exp.Is)}
    minded |= {column for node in case.tree.find_all(exp.Coalesce) for column in node.find_all(exp.Column)}
    for part in case.parts:
        for column, role, severity in _roles(part):
            entry = next(iter(part.entries_of(column)), None)
            table = entry.item.table if entry and not entry.optional else None
            known = table.column(column.name) if table else None
            if not (entry and table and known) or known.primary_key or column in minded:
                continue
            counts = ("COUNT(*) AS whole", exp.alias_(exp.Count(this=column.copy()), "with_a_value"))
            relation = exp.alias_(_relation(table), entry.called.copy(), table=True)
            rows, text = case.ask(exp.select(*counts).from_(relation))
            if nulls := rows[0][0] - rows[0][1] if rows else 0:
                share = f"{nulls:,} of {rows[0][0]:,} rows ({nulls / rows[0][0]:.0%})"
                told = f"{case.text(column)} is NULL in {share}: {role}."
                yield Finding("null_left_out", severity, told, text)


def _roles(part: _Part) -> Iterator[tuple[exp.Column, str, Severity]]:
    """Each column of the part by what passes over its NULLs."""
    for total in part.own(*_TOTALS):
        if isinstance(total.this, exp.Column):
            is_count = isinstance(total, exp.Count)
            yield total.this, f"{total.key.upper()} passes over them", "warning" if is_count else "note"
    for node in part.own(*_COMPARED):
        if not isinstance(node.this, exp.Column) or node.find_ancestor(exp.Case):
            continue
        if isinstance(node.expression, exp.Column):
            yield node.this, "the join leaves them out", "note"
        elif isinstance(node, exp.NEQ) or isinstance(node.parent, exp.Not):
            yield node.this, "the condition, which denies a value, leaves them out as well", "warning"
        elif not isinstance(node.expression, exp.Null):
            yield node.this, "the condition leaves them out", "note"


def ties(case: _Case) -> Iterator[Finding]:
    """Rows that tie where a LIMIT cuts: the query is run with one row more."""
    part, limit = case.root, case.tree.args.get("limit")
    last = limit.expression if isinstance(limit, exp.Limit) else None
    if part is None or not isinstance(last, exp.Literal) or not last.is_int or part.is_open:
        return
    keys, own, count = part.keys_of("order"), len(part.select.selects), int(last.name)
    items = [exp.alias_(key.copy(), f"key_{place}") for place, key in enumerate(keys)]
    rows, text = case.ask(part.select.select(*items).limit(count + 1)) if keys and count else ((), "")
    if len(rows) == count + 1:
        inside, outside = rows[-2], rows[-1]
        if inside[own:] == outside[own:] and inside[:own] != outside[:own]:
            by = ", ".join(map(case.text, keys))
            told = f"Rows {count} and {count + 1} tie in {by}: which of them comes is chance."
            yield Finding("tie_at_limit", "warning", told, text)


_CHECKS = (multiplied_totals, repeated_rows, off_keys, null_comparisons, nulls_left_out, ties)
_SCAN = re.compile(r"SCAN (?!CONSTANT)(\S+)")


def _cost(database: Database, sql: str) -> Iterator[Finding]:
    """What the engine expects to read, by its own plan."""
    plan = database.plan(sql)
    if not isinstance(plan, Result):
        return
    scans = [found[1] for row in plan.rows for cell in row if (found := _SCAN.match(str(cell)))]
    if largest := largest_step(plan):
        yield Finding("cost", "note", f"The engine expects {largest} in the largest step of its plan.")
    elif scans:
        yield Finding("cost", "note", f"The engine reads every row of {', '.join(dict.fromkeys(scans))}.")
