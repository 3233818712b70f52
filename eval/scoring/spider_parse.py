"""Parses a query as Spider's official script does for its levels of hardness. Checks names against the schema, and runs
nothing.

Columns are "table.column" in lower case, or "*". The parser accepts exactly what the official one does: one set operation
per level, aliases only with AS and only of tables, no CASE, no window, no IS NULL. Spider's figures depend on that.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Table name -> column names, all in lower case.
Tables = Mapping[str, tuple[str, ...]]

AGGREGATES = ("max", "min", "count", "sum", "avg")
ARITHMETIC = ("-", "+", "*", "/")
COMPARISONS = ("not", "between", "=", ">", "<", ">=", "<=", "!=", "in", "like", "is", "exists")
SET_OPERATIONS = ("intersect", "union", "except")
CLAUSES = ("select", "from", "where", "group", "order", "limit", *SET_OPERATIONS)


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """A column, perhaps aggregated."""

    aggregate: str
    column: str
    distinct: bool


@dataclass(frozen=True, slots=True)
class Expression:
    """One column, or two with an arithmetic operator ("" and None for one column)."""

    operator: str
    left: ColumnUse
    right: ColumnUse | None


@dataclass(frozen=True, slots=True)
class Condition:
    """`left operator first`; `second` is BETWEEN's upper bound."""

    negated: bool
    operator: str
    left: Expression
    first: "Operand"
    second: "Operand"


@dataclass(frozen=True, slots=True)
class Query:
    """One SELECT and the query that a set operation appends to it.

    Conditions and the words between them are in one flat tuple, because the official rules count positions: even positions
    are read as conditions, odd ones as "and" or "or". `order` is None without ORDER BY; its direction is the last one
    written. LIMIT counts only as present or absent.
    """

    distinct: bool
    select: tuple[tuple[str, Expression], ...]
    tables: "tuple[str | Query, ...]"
    joins: "Conditions"
    where: "Conditions"
    group: tuple[ColumnUse, ...]
    having: "Conditions"
    order: tuple[str, tuple[Expression, ...]] | None
    limited: bool
    set_operation: "tuple[str, Query] | None"


Operand = Query | ColumnUse | float | str | None
Conditions = tuple[Condition | str, ...]


class UnreadableError(ValueError):
    """The text is outside the grammar that the official script knows."""


# Words break at these, as in NLTK's word tokenizer, which the official script uses (its rules for English contractions
# such as "cannot" are not imitated). A comma or colon before a digit stays within the word.
_BREAKS = re.compile(r"""\.{2,}|`+|--|[,:](?!\d)|[;@\#$%&‒–—―?!*«»“”‘’„\[\](){}<>]""")
_FINAL_PERIOD = re.compile(r"""(?<=[^.])\.(?=[\])}>"'»”’\s]*$)""")
_STRING = re.compile(r'"[^"]*"')
_GLUED = {"!": "!=", ">": ">=", "<": "<="}


def words(sql: str) -> list[str]:
    """The words of `sql` in lower case; a literal is one word in double quotes, as written.

    Raises `UnreadableError` if a quote is left open. Single and double quotes are not distinguished, so O'Brien in double
    quotes does leave one open.
    """
    text = sql.replace("'", '"')
    if text.count('"') % 2:
        raise UnreadableError("a quote is left open")
    literals = _STRING.findall(text)
    numbers = iter(range(len(literals)))
    text = _STRING.sub(lambda _: f"\ue000{next(numbers)}\ue000", text)
    text = _BREAKS.sub(lambda match: f" {match.group()} ", _FINAL_PERIOD.sub(" . ", text))
    placeholders = {f"\ue000{number}\ue000": literal for number, literal in enumerate(literals)}
    return _glue([placeholders.get(word, word.lower()) for word in text.split()])


def _glue(tokens: list[str]) -> list[str]:
    """The tokens with "! =" joined to "!=", and likewise for < and >."""
    glued: list[str] = []
    for token in tokens:
        if token == "=" and glued and glued[-1] in _GLUED:
            glued[-1] = _GLUED[glued[-1]]
        else:
            glued.append(token)
    return glued


_CONDITION_ENDS = (*CLAUSES, ")", ";", "join", "on", "as")
_CLAUSE_ENDS = (*CLAUSES, ")", ";")
_VALUE_ENDS = (*CLAUSES, ",", ")", "and", "join", "on", "as")


def parse(sql: str, tables: Tables) -> Query:
    """The parsed query. Raises `UnreadableError` for what the official parser cannot parse either."""
    tokens = words(sql)
    try:
        return _Reader(tokens, _aliases(tokens, tables), tables).query()
    except RecursionError as error:
        raise UnreadableError("nested too deeply") from error


def _aliases(tokens: list[str], tables: Tables) -> dict[str, str]:
    """Maps each table name and alias to its table: the word after any AS is an alias of the word before it."""
    places = [place for place, token in enumerate(tokens) if token == "as"]
    if places and places[-1] == len(tokens) - 1:
        raise UnreadableError("nothing after AS")
    aliases = {tokens[place + 1]: tokens[place - 1] for place in places}
    if clash := aliases.keys() & tables.keys():
        raise UnreadableError(f"alias {min(clash)} is also a table")
    return aliases | {name: name for name in tables}


class _Reader:
    """A recursive-descent parser over the words; `at` is the index of the next word."""

    def __init__(self, tokens: list[str], aliases: dict[str, str], tables: Tables) -> None:
        self.tokens = tokens
        self.aliases = aliases
        self.tables = tables
        self.at = 0

    def ended(self) -> bool:
        return self.at >= len(self.tokens)

    def sees(self, *wanted: str) -> bool:
        return not self.ended() and self.tokens[self.at] in wanted

    def take(self) -> str:
        if self.ended():
            raise UnreadableError("the query ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, *wanted: str) -> bool:
        found = self.sees(*wanted)
        self.at += found
        return found

    def expect(self, *wanted: str) -> str:
        token = self.take()
        if token not in wanted:
            raise UnreadableError(f"{wanted[0]} expected at {token}")
        return token

    def query(self) -> Query:
        """One query with its set operation. FROM is read first, because columns without a qualifier need its tables."""
        parenthesised = self.accept("(")
        start = self.at
        sources, joins, names = self.from_clause()
        end, self.at = self.at, start
        distinct, select = self.select_clause(names)
        self.at = end
        where = self.conditions_after("where", names)
        group = self.group_clause(names)
        having = self.conditions_after("having", names)
        order = self.order_clause(names)
        limited = self.limit_clause()
        self.end_of_query(parenthesised)
        operation = (self.take(), self.query()) if self.sees(*SET_OPERATIONS) else None
        return Query(distinct, select, sources, joins, where, group, having, order, limited, operation)

    def end_of_query(self, parenthesised: bool) -> None:
        while self.accept(";"):
            pass
        if parenthesised:
            self.expect(")")
            while self.accept(";"):
                pass

    def from_clause(self) -> tuple[tuple[str | Query, ...], Conditions, list[str]]:
        """(tables and sub-queries, join conditions, names of the tables) of the next FROM, wherever it is."""
        if "from" not in self.tokens[self.at :]:
            raise UnreadableError("no FROM")
        self.at = self.tokens.index("from", self.at) + 1
        sources: list[str | Query] = []
        joins: list[Condition | str] = []
        names: list[str] = []
        while not self.ended() and (not sources or not self.sees(*_CLAUSE_ENDS)):
            parenthesised = self.accept("(")
            sources.append(self.source(names))
            if self.accept("on"):
                joins += (["and"] if joins else []) + list(self.conditions(names))
            if parenthesised:
                self.expect(")")
        return tuple(sources), tuple(joins), names

    def source(self, names: list[str]) -> str | Query:
        """A sub-query, or a table whose name is also added to `names`."""
        if self.sees("select"):
            return self.query()
        self.accept("join")
        name = self.table(self.take())
        if self.sees("as"):
            self.at += 2
        if name not in self.tables:
            raise UnreadableError(f"no table {name}")
        names.append(name)
        return name

    def select_clause(self, names: list[str]) -> tuple[bool, tuple[tuple[str, Expression], ...]]:
        self.expect("select")
        distinct = self.accept("distinct")
        items: list[tuple[str, Expression]] = []
        while not self.ended() and not self.sees(*CLAUSES):
            aggregate = self.take() if self.sees(*AGGREGATES, "none") else "none"
            items.append((aggregate, self.expression(names)))
            self.accept(",")
        return distinct, tuple(items)

    def group_clause(self, names: list[str]) -> tuple[ColumnUse, ...]:
        columns: list[ColumnUse] = []
        if self.accept("group"):
            self.expect("by")
            while not self.ended() and not self.sees(*_CLAUSE_ENDS):
                columns.append(self.column_use(names))
                if not self.accept(","):
                    break
        return tuple(columns)

    def order_clause(self, names: list[str]) -> tuple[str, tuple[Expression, ...]] | None:
        if not self.accept("order"):
            return None
        self.expect("by")
        direction, expressions = "asc", list[Expression]()
        while not self.ended() and not self.sees(*_CLAUSE_ENDS):
            expressions.append(self.expression(names))
            direction = self.take() if self.sees("asc", "desc") else direction
            if not self.accept(","):
                break
        return direction, tuple(expressions)

    def limit_clause(self) -> bool:
        limited = self.accept("limit")
        if limited:
            self.take()
        return limited

    def conditions_after(self, keyword: str, names: list[str]) -> Conditions:
        return self.conditions(names) if self.accept(keyword) else ()

    def conditions(self, names: list[str]) -> Conditions:
        parts: list[Condition | str] = []
        while not self.ended():
            parts.append(self.condition(names))
            if self.sees(*_CONDITION_ENDS):
                break
            if self.sees("and", "or"):
                parts.append(self.take())
        return tuple(parts)

    def condition(self, names: list[str]) -> Condition:
        left = self.expression(names)
        negated = self.accept("not")
        operator = self.expect(*COMPARISONS)
        first, second = self.operand(names), None
        if operator == "between":
            self.expect("and")
            second = self.operand(names)
        return Condition(negated, operator, left, first, second)

    def operand(self, names: list[str]) -> Operand:
        start = self.at
        parenthesised = self.accept("(")
        value = self.bare_operand(start, names)
        if parenthesised:
            self.expect(")")
        return value

    def bare_operand(self, start: int, names: list[str]) -> Operand:
        """A sub-query, a literal, a number, or a column. Only the leading words of a column are read."""
        if self.sees("select"):
            return self.query()
        token = self.take()
        if '"' in token:
            return token
        try:
            return float(token)
        except ValueError:
            end = self.at - 1
        while end < len(self.tokens) and self.tokens[end] not in _VALUE_ENDS:
            end += 1
        column = _Reader(self.tokens[start:end], self.aliases, self.tables).column_use(names)
        self.at = end
        return column

    def expression(self, names: list[str]) -> Expression:
        parenthesised = self.accept("(")
        left, operator, right = self.column_use(names), "", None
        if self.sees(*ARITHMETIC):
            operator, right = self.take(), self.column_use(names)
        if parenthesised:
            self.expect(")")
        return Expression(operator, left, right)

    def column_use(self, names: list[str]) -> ColumnUse:
        """A column or an aggregate of one. A parenthesis opened before an aggregate is not closed here."""
        parenthesised = self.accept("(")
        if self.sees(*AGGREGATES, "none"):
            aggregate = self.take()
            self.expect("(")
            use = ColumnUse(aggregate, *self.distinct_column(names))
            self.expect(")")
            return use
        use = ColumnUse("none", *self.distinct_column(names))
        if parenthesised:
            self.expect(")")
        return use

    def distinct_column(self, names: list[str]) -> tuple[str, bool]:
        distinct = self.accept("distinct")
        return self.column(self.take(), names), distinct

    def column(self, token: str, names: list[str]) -> str:
        if token == "*":
            return token
        qualifier, dot, name = token.rpartition(".")
        for owner in [self.table(qualifier)] if dot else names:
            if name in self.tables.get(owner, ()):
                return f"{owner}.{name}"
        raise UnreadableError(f"no column {token}")

    def table(self, name: str) -> str:
        if name not in self.aliases:
            raise UnreadableError(f"no table or alias {name}")
        return self.aliases[name]
