"""Headings for the columns of a query, and the columns and names that a reader needs in addition.

A heading is `albums` for count(*) and "average list price" for avg(list_price).

To a query are added the columns without which its rows do not say what they are (those it is grouped by and the one it is
sorted by), and the names that belong to ids. The extended query is run as well as the model's own, and is used only if the
common columns are the same. Which columns name the rows of a table is decided here, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from agent.presentation.sentence import plural, singular, without_key_word, words
from agent.presentation.shown import Shown
from tools.linking.taught import Definition
from tools.linking.word_forms import name_words, stem
from tools.result import QueryError, Result
from tools.schema import ColumnRef, Schema, Table
from tools.sql.scope import column_ref, kind_of, one_value, owner, sources, type_kind

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


def in_taught_words(shown: Shown, taught: Sequence[Definition]) -> Shown:
    """What is shown, with the names that people taught in the place of their formulas."""

    def named(text: str) -> str:
        for each in taught:
            text = text.replace(heading(each.formula, Schema((), "sqlite")), each.name)
        return text

    columns = tuple(replace(column, heading=named(column.heading)) for column in shown.columns)
    return replace(shown, columns=columns, done=named(shown.done))


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
    """The column's name; the table's for a bare "name" among several tables, which does not say whose it is; with the table's
    for the one thing that is looked up of what another table names: the clerk's email of a patron.
    """
    assert isinstance(node, exp.Column)
    text, select = words(node.name), node.parent_select
    table = source.table if (source := owner(node, schema)) else None
    if table is None or select is None or not select.args.get("joins"):
        return text
    thing = singular(words(table.name))
    once = [each.table for each in sources(select, schema)].count(table) == 1
    if text == _BARE:
        return thing if once else text
    is_the_only_one = len(select.expressions) == 1 and node.parent is select
    named = _tables_named(select, schema) if is_the_only_one else set()
    return f"{thing} {text}" if named and table.name not in named and thing not in text else text


def _tables_named(select: exp.Select, schema: Schema) -> set[str]:
    """The tables of which the condition compares a column with a text."""
    where = select.args.get("where")
    compared = where.find_all(exp.EQ, exp.In) if where else ()
    places = (
        column_ref(each.this, schema)
        for each in compared
        if isinstance(each.this, exp.Column) and any(literal.is_string for literal in each.find_all(exp.Literal))
    )
    return {place[0] for place in places if place}


def _count(node: exp.Expr, schema: Schema) -> str:
    inner = node.this
    what = count_of(node, schema)
    if what or inner is None or isinstance(inner, exp.Star | exp.Distinct):
        return what or "count"
    return f"number of {plural(_of(inner, schema))}"


def _once(prefix: str, text: str) -> str:
    """A column that is called "total" has no "total total"."""
    return text if prefix in text.split() else f"{prefix} {text}"


def _extreme(number: str, moment: str) -> Callable[[exp.Expr, Schema], str]:
    def of(node: exp.Expr, schema: Schema) -> str:
        kind = kind_of(node.this, schema)
        return f"{moment if kind == 'time' else number if kind != 'text' else 'first'} {_of(node.this, schema)}"

    return of


def _inner(node: exp.Expr, schema: Schema) -> str:
    return _of(node.this, schema)


def _total(node: exp.Expr, schema: Schema) -> str:
    return _met(node.this, schema) or _once("total", _of(node.this, schema))


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
    ((exp.Avg,), lambda node, schema: _once("average", _of(node.this, schema))),
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


_NAMED = "named"  # the table of names in a query for a name
Run = Callable[[str], Result | QueryError]
Labels = Mapping[str, tuple[str, ...]]
"""Declared label columns by table, in lower case."""

_NAMES = ("name", "full name")
_COMPANY, _TITLES = "company name", ("title", "label")
_PERSON = ("first name", "last name")  # before a title, which is their job's


@dataclass(frozen=True, slots=True)
class Named:
    """The table whose rows an id stands for, and the column that holds the id there."""

    table: Table
    column: str


def label_columns(table: Table, declared: Labels) -> tuple[str, ...]:
    """The columns that name a row of the table: those declared, `name`, `singer_name`, first and last name, the company before
    its contact, `title`, or the only text that is no key. None if no rule is sure.
    """
    if found := [name for name in declared.get(table.name.casefold(), ()) if table.column(name)]:
        return tuple(found)
    texts = {" ".join(name_words(each.name)): each.name for each in table.columns if type_kind(each.type) == "text"}
    own = " ".join(map(stem, name_words(table.name)))
    first, last = (*_NAMES, f"{own} name"), (_COMPANY, *_TITLES, f"{own} title")
    for parts in (*((each,) for each in first), _PERSON, *((each,) for each in last)):
        if all(part in texts for part in parts):
            return tuple(texts[part] for part in parts)
    ending = [name for spelt, name in texts.items() if spelt.endswith(("name", "title"))]
    if len(ending) == 1:
        return (ending[0],)
    keys = {each.name for each in table.columns if each.primary_key}
    return tuple(texts.values()) if len(texts) == 1 and not keys & set(texts.values()) else ()


def name_of(item: exp.Expr, column: exp.Column, named: Named, labels: Sequence[str], schema: Schema) -> exp.Expr:
    """A query for the name of the id that an item gives; `column` is the id's own."""
    whole = item.unalias().copy()
    whose = column.copy()
    whose.set("table", qualifier(column, schema))
    whole = (
        whose
        if isinstance(whole, exp.Column)
        else whole.transform(lambda each: whose.copy() if isinstance(each, exp.Column) else each)
    )
    parts = [exp.column(exp.to_identifier(each, quoted=True), _NAMED) for each in (named.column, *labels)]
    *above, bare = named.table.path or (named.table.name,)
    table = exp.Table(this=exp.to_identifier(bare, quoted=True), alias=exp.TableAlias(this=exp.to_identifier(_NAMED)))
    if above:
        table.set("db", exp.to_identifier(above[-1], quoted=True))
    return exp.select(_joined(parts[1:])).from_(table).where(parts[0].eq(whole)).subquery()


def qualifier(column: exp.Column, schema: Schema) -> exp.Identifier | None:
    """The name by which the query calls the table of a column."""
    source, select = owner(column, schema), column.parent_select
    if column.table or source is None or not isinstance(select, exp.Select):
        return column.args.get("table")
    from_ = select.args.get("from_")
    relations = [*([from_.this] if from_ else []), *(join.this for join in select.args.get("joins") or [])]
    relation = next((each for each in relations if each.alias_or_name == source.alias), None)
    alias = relation.args.get("alias") if relation is not None else None
    name = alias.this if alias is not None else relation.this if isinstance(relation, exp.Table) else None
    return name.copy() if isinstance(name, exp.Identifier) else None


def _joined(labels: Sequence[exp.Expr]) -> exp.Expr:
    """First and last name in one, whichever is there."""
    if len(labels) == 1:
        return labels[0]
    empty, space = exp.Literal.string(""), exp.Literal.string(" ")
    known = [exp.Coalesce(this=each, expressions=[empty.copy()]) for each in labels]
    spaced = [part.copy() for each in known for part in (space, each)][1:]
    return exp.Trim(this=exp.Concat(expressions=spaced))


def named_by(column: ColumnRef, table: Table, other: Callable[[str], Table | None]) -> Named | None:
    """What a column's ids stand for: rows of the table that it refers to, or, for a primary key, of its own. `other` finds a
    table by its name.
    """
    for key in table.foreign_keys:
        if [each.casefold() for each in key.columns] == [column[1].casefold()]:
            there = other(key.ref_table)
            return Named(there, key.ref_columns[0]) if there else None
    keys = [each.name.casefold() for each in table.columns if each.primary_key]
    return Named(table, column[1]) if keys == [column[1].casefold()] else None


@dataclass(frozen=True, slots=True)
class Fuller:
    """`before` columns stand before the query's own, `after` (0 or 1) behind them."""

    select: exp.Select
    before: int
    after: int


def fuller(select: exp.Select, schema: Schema) -> Fuller:
    """The query with the columns that it lacks; with none if it lacks none, or if more columns would change its rows."""
    whole = select.copy()
    assert isinstance(whole, exp.Select)
    order = select.args.get("order")
    by_place = any(isinstance(each.this, exp.Literal) for each in (order.expressions if order else ()))
    if select.args.get("distinct") or by_place:
        return Fuller(whole, 0, 0)
    there = {_text(one_value(each)) for each in select.expressions} | {
        each.alias.casefold() for each in select.expressions
    }
    groups = [each for each in _groups(select) if _text(each) not in there and not _is_named(each, select, schema)]
    key = sort_key(select)
    added = [key] if key is not None and _text(key) not in there and _text(key) not in map(_text, groups) else []
    if any(each.find(exp.Select, exp.Subquery) or _is_key(each, schema) for each in added):
        added = []
    whole.set("expressions", [each.copy() for each in (*groups, *whole.expressions, *added)])
    return Fuller(whole, len(groups), len(added))


def sort_key(select: exp.Select) -> exp.Expr | None:
    """What the rows are sorted by first; None if by nothing, or by a column's place."""
    order = select.args.get("order")
    first = order.expressions[0].this if order and order.expressions else None
    return None if first is None or isinstance(first, exp.Literal) else first


def _groups(select: exp.Select) -> list[exp.Expr]:
    group = select.args.get("group")
    return [each for each in group.expressions if isinstance(each, exp.Column)] if group else []


def _is_key(node: exp.Expr, schema: Schema) -> bool:
    """Whether it is a primary key: rows sorted by it are in no order that says anything."""
    source = owner(node, schema) if isinstance(node, exp.Column) else None
    column = source.table.column(node.name) if source and source.table else None
    return column is not None and column.primary_key


def _is_named(group: exp.Expr, select: exp.Select, schema: Schema) -> bool:
    """Whether the query shows another column of the rows that it groups by a key, such as their name."""
    if not isinstance(group, exp.Column) or not (source := owner(group, schema)) or source.table is None:
        return False
    key = source.table.column(group.name)
    refers = {each.ref_table.casefold() for each in source.table.foreign_keys if group.name in each.columns}
    if not refers and not (key and key.primary_key):
        return False
    stands_for = refers or {source.table.name.casefold()}
    shown = [column for item in select.expressions for column in item.find_all(exp.Column)]
    owners = [owner(column, schema) for column in shown if not column.find_ancestor(exp.Count, exp.Sum, exp.Avg)]
    return any(each and each.table and each.table.name.casefold() in stands_for for each in owners)


def _text(node: exp.Expr) -> str:
    return node.sql().casefold()
