"""How long the texts of a statement may become, counted before it runs.

Engines look for an interrupt between rows, not while they make one value: 25 nested `replace` burned a core of MariaDB for 85 s
after its deadline, a chain of `||` took PostgreSQL 17 GB. No time limit and no kill of a server reaches such an expression,
so what it may become is bounded here. A column's text is taken to be `ASSUMED` characters long.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from tools.guard.allowed import GROWING

ASSUMED = 300
MAX_LENGTH = 1_000_000
"""Characters of one value."""
MAX_WORK = 3_000_000
"""Characters of all values that one row has in the making: engines release them when the row is done."""

_NUMBER = 20  # characters of what is no text
_QUERIES = (exp.Select, exp.SetOperation, exp.Values)
_ENDLESS = MAX_LENGTH + 1
_DOUBLING = {
    "hex", "to_hex", "encode", "escape", "quote", "quote_literal", "quote_ident", "quote_nullable", "json_quote", "to_json",
    "to_jsonb", "to_base64", "base64", "json_object", "json_array", "json_build_array", "json_build_object",
    "jsonb_build_array", "jsonb_build_object", "url_encode",
}  # fmt: skip
_OWN = "#own"  # the source of what a query's own outputs are called
_LARGEST = (exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least, exp.Max, exp.Min)
_COUNTS = (exp.Count, exp.Length, exp.Sum, exp.Avg, exp.RowNumber, exp.Connector, exp.Predicate)
_Lengths = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a query can name: `sources` by alias with the lengths of their columns, `named` by WITH."""

    sources: Mapping[str, _Lengths] = field(default_factory=dict)
    named: Mapping[str, _Lengths] = field(default_factory=dict)

    def column(self, column: exp.Column) -> int:
        name, table = column.name.lower(), column.table.lower()
        tables = [self.sources.get(table, {})] if table else self.sources.values()
        return max(
            (lengths[name] if name in lengths else lengths.get("*", ASSUMED) for lengths in tables), default=ASSUMED
        )


class _Growth:
    """Reads a statement's tree, query by query, and remembers the worst."""

    def __init__(self) -> None:
        self.work = 0
        self.longest = 0
        self.culprit = ""  # the function that made the longest

    def query(self, query: exp.Expr, outer: _Scope) -> dict[str, int]:
        """The lengths of its columns by lower-case name, in order; "*" for those that a star names."""
        scope = self._with(query, outer)
        if isinstance(query, exp.Subquery):
            return self._in_parentheses(query, scope)
        if isinstance(query, exp.SetOperation):
            left, right = (self.query(side, scope) for side in (query.this, query.expression))
            widest = [*right.values(), *[0] * len(left)]
            return {name: max(length, widest[i]) for i, (name, length) in enumerate(left.items())}
        scope = _Scope({**scope.sources, **dict(self._sources(query, scope))}, scope.named)
        return self._outputs(query, scope)

    def _in_parentheses(self, query: exp.Subquery, scope: _Scope) -> dict[str, int]:
        """A query, or tables that are joined."""
        found = dict(self._source(query.this, scope))
        for join in (*(query.args.get("joins") or ()), *(query.this.args.get("joins") or ())):
            found |= self._source(join.this, scope)
        return found

    def _with(self, query: exp.Expr, outer: _Scope) -> _Scope:
        with_ = query.args.get("with_")
        named = dict(outer.named)
        for cte in with_.expressions if with_ else ():
            renamed = [column.name.lower() for column in cte.args["alias"].columns]
            first = _renamed(self.query(_first_part(cte.this), _Scope(outer.sources, named)), renamed)
            named[cte.alias.lower()] = first
            if _first_part(cte.this) is not cte.this:
                named[cte.alias.lower()] = self._step(cte, renamed, first, _Scope(outer.sources, named))
        return _Scope(outer.sources, named)

    def _step(self, cte: exp.CTE, renamed: list[str], first: dict[str, int], scope: _Scope) -> dict[str, int]:
        """What the columns of a recursive WITH become: what is added to itself in each step has no end."""
        once = _renamed(self.query(cte.this, scope), renamed)
        own = {cte.alias.lower(): {name: length + ASSUMED for name, length in once.items()}}
        twice = _renamed(self.query(cte.this, _Scope(scope.sources, {**scope.named, **own})), renamed)
        doubles = any(twice[name] - once[name] > once[name] - first.get(name, 0) + ASSUMED for name in once)
        if doubles:
            self._note(_ENDLESS, "WITH RECURSIVE")
        return twice

    def _sources(self, query: exp.Expr, scope: _Scope) -> Iterator[tuple[str, _Lengths]]:
        from_ = query.args.get("from_")
        items = [from_.this] if from_ else []
        for item in [
            *items,
            *(join.this for join in query.args.get("joins") or ()),
            *(query.args.get("laterals") or ()),
        ]:
            for part in (item, *(join.this for join in item.args.get("joins") or ())):
                yield part.alias_or_name.lower() or f"#{id(part)}", self._source(part, scope)

    def _source(self, source: exp.Expr, scope: _Scope) -> _Lengths:
        alias = source.args.get("alias")
        renamed = [column.name.lower() for column in alias.columns] if alias else []
        inner = source.this if isinstance(source, exp.Lateral) else source
        if isinstance(inner, exp.Subquery | exp.Select | exp.SetOperation):
            return _pivoted(source, _renamed(self.query(inner, scope), renamed))
        if isinstance(inner, exp.Table) and isinstance(inner.this, exp.Identifier):
            return _pivoted(source, _renamed(dict(scope.named.get(inner.name.lower(), {})), renamed))
        return {"*": max([ASSUMED, *self._lengths(inner, scope).values()])}

    def _outputs(self, query: exp.Expr, scope: _Scope) -> dict[str, int]:
        found: dict[str, int] = {}
        for place, output in enumerate(query.expressions):
            lengths = self._lengths(output, _Scope({**scope.sources, _OWN: dict(found)}, scope.named))
            if output.is_star:
                found |= {name: length for source in scope.sources.values() for name, length in source.items()}
                found["*"] = max([ASSUMED, *found.values()])
            else:
                found[output.alias_or_name.lower() or f"#{place}"] = lengths[id(output)]
        seen = _Scope({**scope.sources, _OWN: dict(found)}, scope.named)
        for name, value in query.args.items():
            if name not in ("expressions", "with_"):
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, exp.Expr):
                        self._lengths(part, seen)
        return found

    def _lengths(self, root: exp.Expr, scope: _Scope) -> dict[int, int]:
        """Of every node below, but for those of queries within, which count as one."""
        nodes = list(root.walk(prune=lambda node: node is not root and isinstance(node, (*_QUERIES, exp.Subquery))))
        lengths: dict[int, int] = {}
        for node in reversed(nodes):
            if isinstance(node, (*_QUERIES, exp.Subquery)):
                is_source = isinstance(node.parent, exp.From | exp.Join | exp.Lateral | exp.CTE)
                below = 0 if node is root or is_source else max(self.query(node, scope).values(), default=0)
            else:
                below = self._length(node, lengths, scope)
            lengths[id(node)] = below
        return lengths

    def _length(self, node: exp.Expr, lengths: dict[int, int], scope: _Scope) -> int:
        if isinstance(node, exp.Column):
            return scope.column(node)
        if isinstance(node, exp.Literal | exp.Identifier | exp.Var):
            return len(node.name)
        parts = [lengths.get(id(child), 0) for child in node.iter_expressions()]
        if isinstance(node, _COUNTS):
            return _NUMBER
        if isinstance(node, _LARGEST):
            return max(parts, default=0)
        if isinstance(node, exp.Func | exp.DPipe | exp.Array | exp.Tuple):
            return self._note(_made(node, parts, lengths), _name(node))
        return _NUMBER if isinstance(node, exp.Binary) else max(parts, default=0)

    def _note(self, length: int, name: str) -> int:
        self.work += length
        if length > self.longest and self.longest <= MAX_LENGTH:
            self.longest, self.culprit = length, name
        return length


def growth(root: exp.Expr) -> str | None:
    """Why the texts of a statement may become too long; None when they do not. Raises RecursionError for one that is nested too
    deeply.
    """
    found = _Growth()
    found.query(root, _Scope())
    if found.longest > MAX_LENGTH:
        by_number = found.culprit in GROWING
        what = "needs a plain number that keeps texts" if by_number else "may make texts too long: keep them"
        return f"{found.culprit} {what} under {MAX_LENGTH} characters"
    if found.work > MAX_WORK:
        return "the texts that it makes of each row may take too much memory: join fewer pieces"
    return None


def _name(node: exp.Expr) -> str:
    """The name as written where sqlglot has no class for it, else sqlglot's own; lower case."""
    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
        return node.name.lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else "||"


def _made(node: exp.Expr, parts: list[int], lengths: dict[int, int]) -> int:
    """How long the outcome of a function may be."""
    name = _name(node)
    if isinstance(node, exp.Replace | exp.RegexpReplace):
        return _replaced(node, lengths)
    if name in GROWING:
        number = _number(node)
        return number * max(1, lengths.get(id(node.this), 1)) if name == "repeat" else max(number, *parts, 0)
    if name in ("format", "printf"):
        return sum(parts) + _width(node)
    if name == "array_fill":
        return _product(node)
    return min(sum(parts) * (2 if name in _DOUBLING else 1), _ENDLESS**2)


def _replaced(node: exp.Expr, lengths: dict[int, int]) -> int:
    text, sought, new = (node.args.get(part) for part in ("this", "expression", "replacement"))
    length, longer = lengths.get(id(text), 0), lengths.get(id(new), 0)
    if isinstance(node, exp.RegexpReplace):
        return length * (longer + 1)
    shorter = len(sought.name) if isinstance(sought, exp.Literal) else 1
    return length * max(1, -(-longer // max(1, shorter)))


def _number(node: exp.Expr) -> int:
    """The length or count that a growing function is given as a literal; more than is allowed when it is no literal."""
    arguments = node.expressions or [node.args.get("times") or node.args.get("expression") or node.this]
    number = arguments[min(1, len(arguments) - 1)]
    return max(1, int(number.name)) if isinstance(number, exp.Literal) and number.name.isdigit() else _ENDLESS


def _width(node: exp.Expr) -> int:
    """The widths that a format asks for; one that comes from the data may be anything."""
    first = node.expressions[0] if node.expressions else node.this
    if isinstance(first, exp.Literal) and not first.is_string:  # a number as the format asks for no width
        return 0
    texts = [literal.name for literal in node.find_all(exp.Literal) if literal.is_string]
    if any(re.search(r"%[^a-zA-Z%]*\*|\{[^}]*\{", text) for text in texts) or not texts:
        return _ENDLESS
    return sum(int(number) for text in texts for number in re.findall(r"(?<![\d.])\d{1,18}", text))


def _product(node: exp.Expr) -> int:
    """How many elements `array_fill` makes."""
    numbers = [each.name for each in node.expressions[1:2] for each in each.find_all(exp.Literal)]
    found = 1
    for number in numbers:
        found *= int(number) if number.isdigit() else _ENDLESS
    return min(found, _ENDLESS**2) if numbers else _ENDLESS


def _first_part(query: exp.Expr) -> exp.Expr:
    """Where a UNION begins, which in a recursive WITH does not name itself."""
    return query.this if isinstance(query, exp.SetOperation) else query


def _pivoted(source: exp.Expr, lengths: dict[str, int]) -> dict[str, int]:
    """PIVOT gives columns new names."""
    return lengths | {"*": max([ASSUMED, *lengths.values()])} if source.args.get("pivots") else lengths


def _renamed(lengths: dict[str, int], names: list[str]) -> dict[str, int]:
    kept = list(lengths.items())
    return {**dict(zip(names, lengths.values(), strict=False)), **dict(kept[len(names) :])}
