"""Predicts what the model will probably write from what is known beforehand, as drafts that cost no forward.

A plan determines its SQL except for the order of names; the links determine the beginning of a plan; and a few skeletons
cover most queries. These texts go into the step's `LookupCorpus`, where every lookup method finds them. Like the predicted
outputs that some servers accept, they only change speed: the target verifies each token.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from agent.prompts.profiles import ModelStep
from agent.prompts.slots import Plan, PlanError, PlannedTable, Slots, parse_plan, quoted_name
from tools.linking.link_schema import Link
from tools.linking.match_values import ValueMatch
from tools.schema import ColumnRef, Schema
from tools.sql.join_graph import Edge, edges

LINKS = 8  # best links of a question, from which plans are predicted
LIKELY_TABLES = 3
LIKELY_COLUMNS = 3
LINK_SCORE = 0.7  # least score of a column that a predicted plan names
_WORD = re.compile(r"(\s*)(_|[A-Za-z][A-Za-z_]*|<>|<=|>=|!=|[^\s_])")
_NUMBER = re.compile(r"\b\d+(?:\.\d+)?\b")
_CLAUSES = frozenset(["SELECT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT"])
_COMPARISONS = frozenset(["=", "<", ">", "<=", ">=", "<>", "!=", "LIKE", "BETWEEN"])
_SETS = frozenset(["UNION", "INTERSECT", "EXCEPT"])


def predicted_texts(step: ModelStep, slots: Slots, lead: str, end: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Texts for a step: those that rank below what the conversation remembers, and those that rank above it, each with the
    likeliest last. A correction copies the SQL in its prompt and needs none. lead: the text right before the
    answer; end: what ends it.
    """
    if step == "plan":
        return (skeletons(end),), predicted_plans(slots.links[:LINKS])
    if step == "refine":
        return (), ()
    try:
        return (), predicted_sql(parse_plan(slots.plan), slots.schema, slots.values, slots.question, lead, end)
    except PlanError:
        return (), ()


@cache
def skeletons(end: str) -> str:
    """The training data's most frequent skeletons as ends of plans, with `end` after each. The most frequent is last, because
    the latest position is looked up first. `sqlagent data build` counts them."""
    lines = files("agent.prompts").joinpath("skeletons.txt").read_text("utf-8").splitlines()
    return "".join(f" | {line}{end}" for line in reversed(lines))


def predicted_plans(links: Sequence[Link]) -> tuple[str, ...]:
    """Beginnings of plans, each after the end of its prompt, and continuations with a further table; the likeliest last.

    >>> predicted_plans([Link("singer", None, 0.9), Link("singer", "age", 0.8)])
    ('; singer: age | SELECT', 'plan: singer: age | SELECT')
    """
    tables = [entry.table for entry in links if entry.column is None][:LIKELY_TABLES]
    return tuple(text for table in reversed(tables) for text in _beginnings(table, links))


def _beginnings(table: str, links: Sequence[Link]) -> tuple[str, str]:
    own = [entry.column for entry in links if entry.table == table and entry.column and entry.score >= LINK_SCORE]
    planned = Plan((PlannedTable(table, tuple(own[:LIKELY_COLUMNS])),), "SELECT").text()
    return f"; {planned}", f"plan: {planned}"


def predicted_sql(
    plan: Plan, schema: Schema, values: Sequence[ValueMatch], question: str, lead: str, end: str
) -> tuple[str, ...]:
    """The skeleton with its blanks filled, in pieces: a piece ends at a blank that nothing known fills, or with `end`. The
    first piece, which begins with `lead`, the end of its prompt, comes last."""
    pieces = list(_Filling(plan, edges(schema), values, question).pieces(end))
    return tuple(reversed([piece if index else lead + piece for index, piece in enumerate(pieces)]))


@dataclass(slots=True)
class _Select:
    """A SELECT whose blanks are being filled."""

    tables: tuple[PlannedTable, ...]
    compared: ColumnRef | None  # the column that is compared with this subquery
    clause: str = "SELECT"
    selected: list[ColumnRef] = field(default_factory=list)  # columns not inside a function
    grouped: int = 0

    @property
    def places(self) -> list[ColumnRef]:
        return [(table.name, column) for table in self.tables for column in table.columns]


class _Filling:
    """Fills the blanks of one skeleton from left to right."""

    def __init__(self, plan: Plan, graph: Sequence[Edge], values: Sequence[ValueMatch], question: str) -> None:
        self._words: list[tuple[str, str]] = _WORD.findall(plan.skeleton)  # (space before, word)
        self._plan, self._graph = plan, graph
        self._sources = _sources([word for _, word in self._words], plan.tables)
        self._literals: dict[ColumnRef, list[str]] = defaultdict(list)
        for match in values:
            self._literals[match.table, match.column].append("'" + match.value.replace("'", "''") + "'")
        self._numbers: list[str] = _NUMBER.findall(question)
        self._outer: list[_Select | None] = []  # the SELECT around each open parenthesis
        self._now: _Select | None = None
        self._last: ColumnRef | None = None
        self._unused = self._planned()

    def _planned(self) -> list[ColumnRef]:
        return [(table.name, column) for table in self._plan.tables for column in table.columns]

    def pieces(self, end: str) -> Iterator[str]:
        piece = ""
        for index, (space, word) in enumerate(self._words):
            now = self._now
            blank = word == "_" or (word == "," and now is not None and now.clause == "FROM")
            if not blank:
                self._enter(index, word)
            filled = word if not blank else self._filled(now, index) if now else None
            if filled is None and piece:
                yield piece
            piece = "" if filled is None else piece + space * bool(filled) + filled
        if piece:
            yield piece + end

    def _enter(self, index: int, word: str) -> None:
        now = self._now
        if word == "SELECT":
            self._now = _Select(self._sources[index], self._last if now and now.clause in ("WHERE", "HAVING") else None)
        elif word == "(":
            self._outer.append(now)
        elif word == ")" and self._outer:
            self._now = self._outer.pop()
        elif word in _SETS:  # the next SELECT may use all planned columns again
            self._unused = self._planned()
        elif word in _CLAUSES and now:
            now.clause = word

    def _filled(self, now: _Select, index: int) -> str | None:
        """The text for a blank; empty if an earlier blank already holds it, None if nothing is known."""
        before = self._word(index - 1)
        if now.clause == "FROM":
            return _joined(now.tables, self._graph) if before == "FROM" else "" if before in ("_", ",") else None
        if now.clause == "LIMIT":
            return next(iter(self._numbers), "1")
        if before in _COMPARISONS or (before == "AND" and self._word(index - 3) == "BETWEEN"):
            return self._value(now, like=before == "LIKE")
        compares = self._word(index + 1) in _COMPARISONS and self._word(index + 2) == "_"
        return self._column(
            now, in_function=before in ("(", "DISTINCT") and self._word(index + 1) == ")", compares=compares
        )

    def _word(self, index: int) -> str:
        return self._words[index][1] if 0 <= index < len(self._words) else ""

    def _value(self, now: _Select, like: bool) -> str | None:
        known = self._literals.get(self._last, []) if self._last and now.clause == "WHERE" else []
        if known:
            literal = known.pop(0)
            return f"'%{literal[1:-1]}%'" if like else literal
        if self._numbers:
            return self._numbers.pop(0)
        return "1" if now.clause == "HAVING" else None

    def _column(self, now: _Select, in_function: bool, compares: bool) -> str | None:
        place = self._last = self._place(now, in_function, compares)
        if place is None:
            return None
        if place in self._unused:
            self._unused.remove(place)
        if now.clause == "SELECT" and not in_function:
            now.selected.append(place)
        names: tuple[str, ...] = place if len(now.tables) > 1 else place[1:]
        return ".".join(map(quoted_name, names))

    def _place(self, now: _Select, in_function: bool, compares: bool) -> ColumnRef | None:
        """The next planned column, preferably unused: one with a known value if a value is compared, otherwise one without."""
        own = now.places
        if now.clause == "GROUP" and now.grouped < len(now.selected):
            now.grouped += 1
            return now.selected[now.grouped - 1]
        if now.clause == "SELECT" and in_function and now.compared in own:
            return now.compared
        unused = sorted((p for p in self._unused if p in own), key=lambda place: (place in self._literals) != compares)
        again = [self._last] if self._last in own else own
        return next(iter(unused or again), None)


def _sources(words: Sequence[str], tables: Sequence[PlannedTable]) -> dict[int, tuple[PlannedTable, ...]]:
    """The tables of the SELECT at each index: as many of the plan's as its FROM has blanks, in order; then the first again."""
    blanks: dict[int, int] = {}
    clauses: dict[int, str] = {}
    outer: list[int] = []
    now = -1
    for index, word in enumerate(words):
        if word == "SELECT":
            now, blanks[index] = index, 0
        elif word == "(":
            outer.append(now)
        elif word == ")" and outer:
            now = outer.pop()
        elif word == "_" and clauses.get(now) == "FROM":
            blanks[now] += 1
        if word in _CLAUSES and now in blanks:
            clauses[now] = word
    left = list(tables)
    dealt = {}
    for index, count in blanks.items():
        dealt[index] = tuple(left[:count] or tables[:count])
        del left[:count]
    return dealt


def _joined(tables: Sequence[PlannedTable], graph: Sequence[Edge]) -> str | None:
    """`a JOIN b ON b.a_id = a.id`: each table joined by the first key that connects it with those before it."""
    if not tables:
        return None
    text, inside = quoted_name(tables[0].name), {tables[0].name}
    for name in (table.name for table in tables[1:]):
        key = next((e for e in graph if name in (e.table, e.ref_table) and e.other(name) in inside), None)
        text += f" JOIN {quoted_name(name)}" + (f" ON {' AND '.join(key.conditions('sqlite'))}" if key else "")
        inside.add(name)
    return text
