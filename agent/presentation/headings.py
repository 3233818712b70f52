"""Writes headings for the columns of a query: `albums` for count(*), "average list price" for avg(list_price)."""

from collections.abc import Callable, Sequence

from sqlglot import exp

from agent.presentation.sentence import plural, singular, without_key_word, words
from tools.schema import Schema, Table
from tools.sql.scope import kind_of, owner, sources

_WRAPPERS = (
    exp.AnyValue, exp.Cast, exp.TryCast, exp.Round, exp.Coalesce, exp.Paren, exp.First, exp.Ceil, exp.Floor, exp.IgnoreNulls,
    exp.Nullif,
)  # fmt: skip
_SIGNS: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "−", exp.Mul: "×", exp.Div: "/"}
_PARTS: dict[type[exp.Expr], str] = {exp.Year: "year", exp.Month: "month", exp.Day: "day"}
_SPANS = {"%Y": "year", "%Y-%m": "month", "%m": "month", "%d": "day", "%Y-%m-%d": "day", "%H": "hour"}
_BARE = "name"


def headings(select: exp.Select, schema: Schema) -> list[str]:
    """A heading for each projection, all of them different where the tables' names can tell them apart."""
    found = [heading(each, schema) for each in select.expressions]
    return [
        _with_table(each, text, schema) if found.count(text) > 1 else text
        for each, text in zip(select.expressions, found, strict=True)
    ]


def heading(item: exp.Expr, schema: Schema) -> str:
    """The heading of one projection. An alias that the query gives it is taken at its word."""
    if isinstance(item, exp.Alias):
        return words(item.alias)
    return _of(item, schema)


def count_of(item: exp.Expr, schema: Schema) -> str:
    """What a projection counts, in the plural; empty if it counts nothing, or if that is not clear."""
    inner = item.unalias()
    if not isinstance(inner, exp.Count):
        return ""
    of = inner.this
    different = isinstance(of, exp.Distinct)
    if different:
        of = of.expressions[0] if len(of.expressions) == 1 else None
    if isinstance(of, exp.Column) and not isinstance(of.this, exp.Star):
        return _counted_column(of, schema, different)
    return _counted_rows(inner, schema)


def _counted_column(column: exp.Column, schema: Schema, different: bool) -> str:
    source = owner(column, schema)
    table = source.table if source else None
    if table is None:
        return ""
    for key in table.foreign_keys:
        if different and [each.casefold() for each in key.columns] == [column.name.casefold()]:
            return plural(words(key.ref_table))
    known = table.column(column.name)
    if known and known.primary_key:
        return plural(words(table.name))
    return f"different {plural(words(column.name))}" if different else ""


def _counted_rows(count: exp.Expr, schema: Schema) -> str:
    """The rows of the only table, or of the one that refers to the others."""
    select = count.parent_select
    tables = [source.table for source in sources(select, schema)] if select else []
    known = [table for table in tables if table is not None]
    if len(known) != len(tables) or not known:
        return ""
    if len(known) == 1:
        return plural(words(known[0].name))
    referred = {key.ref_table.casefold() for table in known for key in table.foreign_keys}
    many = [table for table in known if table.name.casefold() not in referred]
    return plural(words(many[0].name)) if len(many) == 1 else ""


def _of(node: exp.Expr, schema: Schema) -> str:
    for types, rule in _RULES:
        if isinstance(node, types):
            return rule(node, schema)
    return words(node.sql().replace('"', ""))


def _column(node: exp.Expr, schema: Schema) -> str:
    """The column's name; the table's for a bare "name" among several tables, which does not say whose it is."""
    assert isinstance(node, exp.Column)
    text, select = words(node.name), node.parent_select
    if text != _BARE or select is None or not select.args.get("joins"):
        return text
    table = source.table if (source := owner(node, schema)) else None
    once = [each.table for each in sources(select, schema)].count(table) == 1
    return singular(words(table.name)) if table is not None and once else text


def _count(node: exp.Expr, schema: Schema) -> str:
    inner = node.this
    what = count_of(node, schema)
    if what or inner is None or isinstance(inner, exp.Star | exp.Distinct):
        return what or "count"
    return f"number of {plural(_of(inner, schema))}"


def _prefixed(prefix: str) -> Callable[[exp.Expr, Schema], str]:
    return lambda node, schema: f"{prefix} {_of(node.this, schema)}"


def _extreme(number: str, moment: str) -> Callable[[exp.Expr, Schema], str]:
    def of(node: exp.Expr, schema: Schema) -> str:
        kind = kind_of(node.this, schema)
        return f"{moment if kind == 'time' else number if kind != 'text' else 'first'} {_of(node.this, schema)}"

    return of


def _inner(node: exp.Expr, schema: Schema) -> str:
    return _of(node.this, schema)


def _total(node: exp.Expr, schema: Schema) -> str:
    return _met(node.this, schema) or f"total {_of(node.this, schema)}"


def _met(node: exp.Expr, schema: Schema) -> str:
    """What `CASE WHEN status = 'open' THEN 1 ELSE 0 END` counts: "status open"; empty for anything else."""
    if not isinstance(node, exp.Case) or len(node.args["ifs"]) != 1 or node.this is not None:
        return ""
    (when,), default = node.args["ifs"], node.args.get("default")
    ones = when.args["true"].sql() == "1" and (default is None or default.sql() in ("0", "NULL"))
    is_plain = isinstance(when.this, exp.EQ) and isinstance(when.this.expression, exp.Literal)
    return f"{_of(when.this.left, schema)} {when.this.expression.name}" if ones and is_plain else ""


def _arithmetic(node: exp.Expr, schema: Schema) -> str:
    """Amounts with their signs; a share of a hundred as "percentage of status open"."""
    assert isinstance(node, exp.Binary)
    hundred = next((each for each in node.find_all(exp.Literal) if each.name in ("100", "100.0")), None)
    counted = [met for each in node.find_all(exp.Case) if (met := _met(each, schema))]
    if hundred is not None and len(counted) == 1 and node.find(exp.Div):
        return f"percentage of {counted[0]}"
    return f"{_of(node.left, schema)} {_SIGNS[type(node)]} {_of(node.right, schema)}"


def _part(node: exp.Expr, schema: Schema) -> str:
    name = node.this.name.lower() if isinstance(node, exp.Extract) else _PARTS[type(node)]
    return words(name)


def _span(node: exp.Expr, schema: Schema) -> str:
    """The part of a date that a format keeps: "month" for %Y-%m."""
    form = node.args.get("format")
    return _SPANS.get(form.name if form is not None else "") or _of(node.this, schema)


_RULES: Sequence[tuple[tuple[type[exp.Expr], ...], Callable[[exp.Expr, Schema], str]]] = (
    ((exp.Column,), _column),
    ((exp.Count,), _count),
    ((exp.Sum,), _total),
    ((exp.Avg,), _prefixed("average")),
    ((exp.Min,), _extreme("lowest", "earliest")),
    ((exp.Max,), _extreme("highest", "latest")),
    (_WRAPPERS, _inner),
    ((exp.Distinct,), lambda node, schema: _of(node.expressions[0], schema)),
    (tuple(_SIGNS), _arithmetic),
    ((exp.Extract, *_PARTS), _part),
    ((exp.TimeToStr,), _span),
)


def label_heading(column: str, table: Table) -> str:
    """The heading of the names that an id column stands for: "manager" for `manager_id`, "album" for a key of albums."""
    return without_key_word(column) or singular(words(table.name))


def _with_table(item: exp.Expr, text: str, schema: Schema) -> str:
    """The heading with the table's name before it: "artist name"."""
    column = item if isinstance(item, exp.Column) else item.find(exp.Column)
    source = owner(column, schema) if column is not None else None
    if isinstance(item, exp.Alias) or source is None or source.table is None:
        return text
    return f"{singular(words(source.table.name))} {text}"
