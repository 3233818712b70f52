"""The signs of a wrong answer, in one table. A new sign is a function and a line of `_SIGNS`.

Each function gives what goes into the sign's sentence, once for each time that the sign is seen.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from tools.linking.link_schema import Link, mentions
from tools.linking.match_values import ValueMatch
from tools.linking.word_forms import NUMBER_WORDS, keys, name_stems, stem
from tools.schema import Column, ColumnRef, Schema, derived
from tools.sql.join_graph import Joinable, edges, joinable
from tools.sql.scope import column_ref, first_select, is_number, table_name, type_kind

COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Like, exp.ILike)
_AGGREGATES = (exp.Sum, exp.Avg)
_SHORTEST_WORD = 3  # letters: shorter literals are codes, which stand for words
_EVERYDAY = ("0", "1")


@derived
def _keys(schema: Schema) -> frozenset[ColumnRef]:
    own = {(t.name.lower(), c.name.lower()) for t in schema.tables for c in t.columns if c.primary_key}
    refers = {(t.name.lower(), name.lower()) for t in schema.tables for key in t.foreign_keys for name in key.columns}
    return frozenset(own | refers)


@dataclass(frozen=True)
class Evidence:
    """An answer and what it is judged by. `values` and `links` may be empty: then nothing is concluded from them."""

    tree: exp.Expr
    schema: Schema
    question: str
    values: Sequence[ValueMatch]
    links: Sequence[Link]

    @cached_property
    def joins(self) -> Joinable:
        """The columns that may be equated."""
        return joinable(self.schema)

    @cached_property
    def keys(self) -> frozenset[ColumnRef]:
        """Every primary and foreign key, in lower case."""
        return _keys(self.schema)

    @cached_property
    def stems(self) -> frozenset[str]:
        """The stems of the question's words, and the digits of its number words."""
        words = set(keys(self.question))
        numbers = {str(number) for number, word in enumerate(NUMBER_WORDS) if word in words}
        return frozenset({stem(word) for word in words} | numbers)

    def place(self, column: exp.Expr | None) -> ColumnRef | None:
        """The table and the column that a name means, in lower case; None unless it is a table's column."""
        found = column_ref(column, self.schema) if isinstance(column, exp.Column) else None
        return (found[0].lower(), found[1].lower()) if found else None

    def column(self, place: ColumnRef) -> Column:
        """The column of the schema."""
        table = self.schema.table(place[0])
        column = table.column(place[1]) if table else None
        if column is None:
            raise ValueError(f"the schema has no column {'.'.join(place)}")
        return column

    def alike(self, one: ColumnRef, other: ColumnRef) -> bool:
        """Whether the columns hold values of the same kind: they have one name, or may be joined."""
        return one[1] == other[1] or (one[1], other[1]) in self.joins.between(one[0], other[0])

    def columns(self) -> Iterator[tuple[exp.Column, ColumnRef]]:
        """Each column of a table in the query, and its place."""
        for column in self.tree.find_all(exp.Column):
            place = self.place(column)
            if place is not None:
                yield column, place

    def literals(self) -> Iterator[tuple[exp.Column, exp.Literal]]:
        """Each literal that a column is compared with."""
        for node in self.tree.find_all(*COMPARISONS, exp.In, exp.Between):
            compared = node.expressions if isinstance(node, exp.In) else list(node.args.values())[1:]
            for literal in compared:
                if isinstance(node.this, exp.Column) and isinstance(literal, exp.Literal):
                    yield node.this, literal


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


@derived
def _joined(schema: Schema) -> frozenset[frozenset[ColumnRef]]:
    return frozenset(
        frozenset({(edge.table.lower(), here.lower()), (edge.ref_table.lower(), there.lower())})
        for edge in edges(schema)
        for here, there in zip(edge.columns, edge.ref_columns, strict=True)
    )


def join_off_keys(evidence: Evidence) -> Iterator[str]:
    """A join of two tables by columns that no foreign key connects, where the schema has foreign keys."""
    known = _joined(evidence.schema)
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


def unsaid_literal(evidence: Evidence) -> Iterator[str]:
    """A literal that is neither in the question nor a value found in it nor a code, and no word of which is said."""
    found = {value.value.casefold() for value in evidence.values}
    for _, literal in evidence.literals():
        text = literal.name.strip("%_ ")
        words = {stem(word) for word in keys(text)}
        code = len(text) < _SHORTEST_WORD if literal.is_string else text in _EVERYDAY
        said = text.casefold() in found or text.casefold() in evidence.question.casefold()
        if words and not code and not said and not words & evidence.stems and not _part_of_number(text, evidence):
            yield f"'{literal.name}'" if literal.is_string else literal.name


def _part_of_number(text: str, evidence: Evidence) -> bool:
    """Whether digits are those of a number in the question: 1,000 is 1000, and 5.50 is 5.5."""
    digits = evidence.question.replace(",", "")
    return text.rstrip("0").rstrip(".") in digits if text.replace(".", "").isdigit() else False


def column_without_evidence(evidence: Evidence) -> Iterator[str]:
    """A column, other than a key, that no link of the question leads to, and that is not compared with a literal: people say
    "in 1958" and mean a year.
    """
    linked = {(link.table.lower(), link.column.lower()) for link in evidence.links if link.column}
    known = linked | evidence.keys | {evidence.place(column) for column, _ in evidence.literals()}
    for column, place in evidence.columns() if linked else ():
        if place not in known and column.find_ancestor(exp.Join) is None:
            yield f"{place[0]}.{column.name}"


def named_table_unused(evidence: Evidence) -> Iterator[str]:
    """A table whose name the question says, though no name of the query has its words."""
    named = mentions(evidence.schema, _outside_values(evidence)).tables
    tables = {table_name(table, evidence.schema) for table in evidence.tree.find_all(exp.Table)}
    names = tables | {column.name for column in evidence.tree.find_all(exp.Column)}
    used = frozenset[str]().union(*map(name_stems, names))
    for table in named:
        if table.casefold() not in {name.casefold() for name in tables} and not name_stems(table) <= used:
            yield table


def _outside_values(evidence: Evidence) -> str:
    """The question without the phrases that are values: a club's name may have the word student."""
    question = evidence.question
    for value in evidence.values:
        question = question.replace(value.phrase, " ")
    return question


@dataclass(frozen=True, slots=True)
class Sign:
    """A reason to doubt an answer. `sentence` is for people; `strict` signs are hardly ever seen on right answers."""

    name: str
    sentence: str
    strict: bool


@dataclass(frozen=True, slots=True)
class _Rule:
    """How a sign is found: `find` gives what goes into its sentence at `{}`, once for each time that it is seen."""

    name: str
    strict: bool
    sentence: str
    find: Callable[[Evidence], Iterator[str]]


_SIGNS = (
    _Rule("unjoinable_in", True, "It compares {}, which hold different things.", unjoinable_in),
    _Rule("equal_halves", True, "Both halves of the {} are the same query.", equal_halves),
    _Rule("selected_and_fixed", True, "It shows {}, although every row has the same value there.",
          selected_and_fixed),
    _Rule("join_off_keys", True, "It joins on {}, which no key connects.", join_off_keys),
    _Rule("key_aggregate", False, "It computes {} of a key.", key_aggregate),
    _Rule("text_as_number", False, "It reads the text of {} as a number.", text_as_number),
    _Rule("unsaid_literal", True, "It looks for {}, which the question doesn't say.", unsaid_literal),
    _Rule("column_without_evidence", False, "Nothing in the question points to {}.",
          column_without_evidence),
    _Rule("named_table_unused", False, "The question names {}, which it doesn't use.",
          named_table_unused),
)  # fmt: skip
NAMES = tuple(rule.name for rule in _SIGNS)


def signs_of_doubt(
    tree: exp.Expr, schema: Schema, question: str, values: Sequence[ValueMatch] = (), links: Sequence[Link] = ()
) -> tuple[Sign, ...]:
    """The signs that a query is not what was asked, each once, in the order of `NAMES`. Pure: it runs nothing.

    `tree` is the parsed query, and is not changed; `values` and `links` are what linking found in the question.

    Nobody asks for countries that are numbers of singers:

    >>> from sqlglot import parse_one
    >>> from tools.schema import Column, Table
    >>> singer = Table("singer", (Column("singer_id", "INTEGER", primary_key=True), Column("country", "TEXT")))
    >>> tree = parse_one("SELECT country FROM singer WHERE country IN (SELECT singer_id FROM singer)")
    >>> [(sign.name, sign.sentence) for sign in signs_of_doubt(tree, Schema((singer,), "sqlite"), "Which countries?")]
    [('unjoinable_in', 'It compares country with singer_id, which hold different things.')]
    """
    evidence = Evidence(tree, schema, question, values, links)
    seen = ((rule, next(rule.find(evidence), None)) for rule in _SIGNS)
    return tuple(Sign(rule.name, rule.sentence.format(what), rule.strict) for rule, what in seen if what is not None)
