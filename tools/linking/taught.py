"""What people teach: names for a formula, a condition or a column, "revenue: quantity * unit price * (1 - discount)".

A name that a question says becomes a column of the schema that the model sees. Linking finds it, the grammar allows it, and
what the model writes with it is expanded to the formula, in parentheses and with the joins that it needs. Meanings may be
written in words: a column's name in any style, `is` for `=`, and a value without quotes at the end.

>>> from tools.schema import Column, Table
>>> line = Table("lines", (Column("UnitPrice", "REAL"), Column("qty", "INTEGER"), Column("state", "TEXT")))
>>> shop = Schema((line,), "sqlite")
>>> revenue = definition(shop, "revenue", "unit price * qty")
>>> expanded("SELECT SUM(revenue) FROM lines", [revenue], shop)
'SELECT SUM((lines.UnitPrice * lines.qty)) AS revenue FROM lines'
>>> lost = definition(shop, "lost", "state is gone")
>>> expanded("SELECT COUNT(*) FROM lines WHERE lost = 'lost'", [lost], shop)
"SELECT COUNT(*) FROM lines WHERE (lines.state = 'gone')"
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.linking.match_values import ValueMatch, in_one_spelling
from tools.linking.mentions import CERTAIN, SURELY_VALUE
from tools.linking.word_forms import keys, name_words, split, stem, word_set
from tools.schema import Column, ColumnRef, Schema, derived
from tools.sql.join_graph import connect, edges
from tools.sql.scope import column_ref, first_select, owner, parse_or_nothing, sources, type_kind

Kind = Literal["amount", "total", "condition", "column"]
LONGEST_NAME = 6  # words
_TOKEN = re.compile(r"'(?:[^']|'')*'|\"[^\"]+\"|`[^`]+`|\[[^\]]+\]|\d+(?:\.\d+)?|\w+|<>|!=|<=|>=|\|\||[^\s\w]")
_WORDS = word_set("and or not is null in like between case when then else end as distinct integer real text true false")
_FUNCTIONS = word_set(
    "sum avg count min max total round abs coalesce nullif cast julianday strftime date length lower upper iif"
)
_DENIED = re.compile(
    r"(?:\bnot|n['’]t|\bnon-?|\bnever|\bneither|\bno longer)(?: been| yet| marked| being)?\s*$", re.IGNORECASE
)
_COMPARED = (exp.EQ, exp.NEQ, exp.Like, exp.ILike, exp.Is, exp.In)
_PREFIXES: tuple[tuple[type[exp.Expr], str], ...] = ((exp.Avg, "average_"), (exp.Min, "lowest_"), (exp.Max, "highest_"))


@dataclass(frozen=True, slots=True)
class Definition:
    """`name` is a formula over `table` and tables that it refers to. `column`: what the model calls it. `meaning`: as a person
    wrote it."""

    name: str
    meaning: str
    table: str
    column: str
    kind: Kind
    formula: exp.Expr
    denied: bool = False  # the question says the opposite of a condition: "not sold out"
    certain: bool = False  # its words mean nothing else, so that a plan must name it: a period

    @property
    def value(self) -> str:
        """What the column of a condition holds where it is met."""
        return f"not {self.name}" if self.denied else self.name

    @property
    def told(self) -> str:
        """What an answer says of it."""
        return f"Here “{self.name}” means: {self.meaning.strip().rstrip('.')}."

    @property
    def shown(self) -> Column:
        """The column that the model sees."""
        if self.kind == "condition":
            return Column(self.column, "TEXT", samples=(self.value,), choices=(self.value,))
        return Column(self.column, "REAL")


def definition(schema: Schema, name: str, meaning: str) -> Definition | None:
    """What the name stands for; None where its meaning is prose."""
    known = _definitions(schema)
    if (name, meaning) not in known:
        known[name, meaning] = _defined(schema, name, meaning)
    return known[name, meaning]


@derived
def _definitions(schema: Schema) -> dict[tuple[str, str], Definition | None]:
    return {}


def is_said(name: str, question: str) -> bool:
    """Whether the question has the words of the name in their order, in the singular or the plural.

    >>> is_said("out of stock", "Which items are out of stock?"), is_said("net sale", "Sales that are net")
    (True, False)
    """
    return _said_at(name, question) is not None


def as_said(known: Definition, question: str) -> Definition:
    """The definition, or the opposite of a condition that the question denies: "not sold out"."""
    place = _said_at(known.name, question) if known.kind == "condition" else None
    if place is None or not _DENIED.search(question[: place[0]]):
        return known
    return replace(known, formula=exp.not_(exp.paren(known.formula)), denied=True)


def denied_values(schema: Schema, question: str, values: Sequence[ValueMatch]) -> Iterator[Definition]:
    """The values right after a denial, "not closed", "isn't French", of which only one column holds each, in one spelling or in
    several."""
    for phrase, matches in _by_phrase(values).items():
        start = question.find(phrase)
        table = schema.table(matches[0].table)
        column = table.column(matches[0].column) if table else None
        meant = {(match.table, match.column, in_one_spelling(match.value)) for match in matches}
        if len(meant) > 1 or start < 0 or not column or not table or not _DENIED.search(question[:start]):
            continue
        if type_kind(column.type) in ("text", None):
            place = exp.column(
                exp.to_identifier(column.name, quoted=True), table=exp.to_identifier(table.name, quoted=True)
            )
            texts = [exp.Literal.string(match.value) for match in matches]
            equal = place.isin(*texts) if len(texts) > 1 else exp.EQ(this=place, expression=texts[0])
            meaning, name = f"{column.name} is {' or '.join(match.value for match in matches)}", "_".join(keys(phrase))
            yield as_said(Definition(phrase, meaning, table.name, name, "condition", equal, certain=True), question)


def _by_phrase(values: Sequence[ValueMatch]) -> dict[str, list[ValueMatch]]:
    found: dict[str, list[ValueMatch]] = defaultdict(list)
    for each in values:
        found[each.phrase].append(each)
    return {phrase: matches for phrase, matches in found.items() if matches[0].score >= SURELY_VALUE}


def _said_at(name: str, question: str) -> tuple[int, int] | None:
    words, wanted = split(question), [stem(word) for word in keys(name)]
    stems = [stem(word.key) for word in words]
    places = (n for n in range(len(stems) - len(wanted) + 1) if wanted and stems[n : n + len(wanted)] == wanted)
    first = next(places, None)
    return None if first is None else (words[first].start, words[first + len(wanted) - 1].end)


def with_definitions(schema: Schema, known: Sequence[Definition]) -> Schema:
    """The schema with a column for each, in the place of one of the same name; of one schema always the same object."""
    made, key = _with_definitions(schema), tuple((each.name, each.meaning, each.denied) for each in known)
    if key not in made:
        made[key] = _taught(schema, known)
    return made[key]


@derived
def _with_definitions(schema: Schema) -> dict[tuple[tuple[str, str, bool], ...], Schema]:
    return {}


def _taught(schema: Schema, known: Sequence[Definition]) -> Schema:
    tables = []
    for table in schema.tables:
        new = {each.column.casefold(): each for each in known if each.table == table.name}
        kept = [column for column in table.columns if column.name.casefold() not in new]
        tables.append(replace(table, columns=(*kept, *(_shown(each, schema) for each in new.values()))))
    return replace(schema, tables=tuple(tables))


def _shown(known: Definition, schema: Schema) -> Column:
    if known.kind != "column":
        return known.shown
    found = next((schema.table(each.table) for each in known.formula.find_all(exp.Column)), None)
    column = found.column(known.formula.name) if found else None
    return replace(column, name=known.column, primary_key=False, comment="") if column else known.shown


def values_of(known: Sequence[Definition], question: str) -> tuple[ValueMatch, ...]:
    """Each condition as a value that the question says."""
    found = ((each, _said_at(each.name, question)) for each in known if each.kind == "condition")
    return tuple(
        ValueMatch(
            each.table, each.column, each.value, _phrase(each, question, *place), CERTAIN if each.certain else 1.0
        )
        for each, place in found
        if place
    )


def _phrase(known: Definition, question: str, start: int, end: int) -> str:
    denial = _DENIED.search(question[:start]) if known.denied else None
    return question[denial.start() if denial else start : end]


def _defined(schema: Schema, name: str, meaning: str) -> Definition | None:
    text, hint = _without_source(schema, meaning)
    column = "_".join(keys(name))
    if not column or (pieces := _pieces(schema, text)) is None:
        return None
    table = _base(schema, [piece for piece in pieces if not isinstance(piece, str)], hint)
    if table is None:
        return None
    spelled = " ".join(piece if isinstance(piece, str) else _spelled(schema, piece, table) for piece in pieces)
    try:
        tree: exp.Expr = exp.maybe_parse(spelled, dialect="sqlite")
    except SqlglotError:
        return None
    for ratio in tree.find_all(exp.Div):  # of whole numbers too
        ratio.set("this", exp.Mul(this=exp.Literal.number("1.0"), expression=ratio.this))
    kind = _kind(tree)
    return Definition(name, meaning, table, column, kind, tree) if kind else None


def _kind(tree: exp.Expr) -> Kind | None:
    if isinstance(tree, exp.Column):
        return "column"
    if not tree.find(exp.Column) or isinstance(tree, exp.Query | exp.Alias):
        return None
    if tree.find(exp.AggFunc):
        return "total"
    inner = tree.unnest()
    return "condition" if isinstance(inner, exp.Predicate | exp.Connector | exp.Not) else "amount"


def _without_source(schema: Schema, meaning: str) -> tuple[str, str]:
    """The meaning without "from TABLE" at its end, and that table."""
    text = meaning.strip().rstrip(".;")
    found = re.fullmatch(r"(.+?)\s+(?:from|in)\s+([\w\s\"`\[\].]+)", text, re.IGNORECASE | re.DOTALL)
    named = _table_names(schema).get(_stems(found[2])) if found else None
    return (found[1], named) if found and named else (text, "")


Places = tuple[ColumnRef, ...]


def _pieces(schema: Schema, text: str) -> list[str | Places] | None:
    """The meaning as SQL, with the places that each name may mean; None if a word is neither."""
    tokens = _TOKEN.findall(text)
    found: list[str | Places] = []
    place = 0
    while place < len(tokens):
        if named := _longest(schema, tokens, place):
            places, place = named
            place += tokens[place : place + 1] == ["."]  # of a name that ends with it: "Qty."
            found.append(places)
            continue
        token = tokens[place]
        if token.lower() == "is" and not _is_null(tokens, place):
            negated = tokens[place + 1 : place + 2] == ["not"]
            found.append("<>" if negated else "=")
            place += 1 + negated
        elif re.match(r"[^\W\d]", token) and not _is_sql(tokens, place):
            end = next((n for n in range(place, len(tokens)) if tokens[n].lower() in ("and", "or")), len(tokens))
            words = tokens[place:end]
            if not found or found[-1] not in ("=", "<>") or not all(re.match(r"\w", word) for word in words):
                return None
            found.append("'" + " ".join(words) + "'")
            place = end
        else:
            found.append(token if token[0] not in '"`[' else f"'{token[1:-1]}'")
            place += 1
    return found


def _is_null(tokens: Sequence[str], place: int) -> bool:
    return [token.lower() for token in tokens[place + 1 : place + 3] if token.lower() != "not"][:1] == ["null"]


def _is_sql(tokens: Sequence[str], place: int) -> bool:
    token, called = tokens[place].lower(), tokens[place + 1 : place + 2] == ["("]
    return token in _WORDS or (called and token in _FUNCTIONS)


def _longest(schema: Schema, tokens: Sequence[str], place: int) -> tuple[Places, int] | None:
    """The columns that the most words from here on name, and where the name ends."""
    for end in range(min(len(tokens), place + LONGEST_NAME), place, -1):
        words = tokens[place:end]
        if any(word[0] == "'" or not re.match(r"[\w.\"`\[]", word) for word in words) or words[-1] == ".":
            continue
        *owner_words, last = _parted(words)
        called = end < len(tokens) and tokens[end] == "(" and last.lower() in _FUNCTIONS
        places = _column_names(schema).get(_stems(last), ()) if not called else ()
        if owner_words:
            table = _table_names(schema).get(_stems(" ".join(owner_words)))
            places = tuple(each for each in places if each[0] == table)
        if places:
            return places, end
    return None


def _parted(words: Sequence[str]) -> list[str]:
    """The words before a dot, if there is one, and those after it."""
    bare = [word[1:-1] if word[0] in '"`[' else word for word in words]
    if "." not in bare:
        return [" ".join(bare)]
    dot = len(bare) - 1 - bare[::-1].index(".")
    return [" ".join(bare[:dot]).replace(" . ", "."), " ".join(bare[dot + 1 :])]


def _stems(name: str) -> tuple[str, ...]:
    return tuple(map(stem, name_words(name)))


@derived
def _column_names(schema: Schema) -> Mapping[tuple[str, ...], Places]:
    found: dict[tuple[str, ...], Places] = defaultdict(tuple)
    for table in schema.tables:
        for column in table.columns:
            found[_stems(column.name)] += ((table.name, column.name),)
    return found


@derived
def _table_names(schema: Schema) -> Mapping[tuple[str, ...], str]:
    return {_stems(table.name): table.name for table in reversed(schema.tables)}


def _base(schema: Schema, names: Sequence[Places], hint: str) -> str | None:
    """The table of whose rows the formula speaks: that which has most of the names, and refers to the tables of the others."""
    if not names:
        return None
    tables = dict.fromkeys(table for places in names for table, _ in places)
    graph = edges(schema)

    def rank(table: str) -> tuple[bool, int, int]:
        own = sum(any(table == each for each, _ in places) for places in names)
        refers = sum(edge.table == table and edge.ref_table in tables for edge in graph)
        return table == hint, own, refers

    best = max(tables, key=rank)
    reached = all(_nearest(schema, places, best) for places in names)
    return best if reached else None


def _nearest(schema: Schema, places: Places, table: str) -> ColumnRef | None:
    """Of the columns that a name may mean, the one with the fewest joins from the table."""
    paths = ((connect(edges(schema), [table, place[0]]), place) for place in places)
    reached = [(len(path), place) for path, place in paths if path is not None]
    return min(reached, key=lambda each: each[0])[1] if reached else None


def _spelled(schema: Schema, places: Places, table: str) -> str:
    owner_name, column = _nearest(schema, places, table) or places[0]
    return f"{exp.to_identifier(owner_name, quoted=True).sql('sqlite')}.{exp.to_identifier(column, quoted=True).sql('sqlite')}"


def expanded(sql: str, known: Sequence[Definition], schema: Schema) -> str:
    """SQLite's SQL with each name as its formula; as it is where it has none of them, or cannot be read. The names are not in
    `schema`."""
    trees = parse_or_nothing(sql, "sqlite")
    if not known or len(trees) != 1:
        return sql
    seen, tree = with_definitions(schema, known), trees[0]
    names = {(each.table, each.column): each for each in known}
    uses = [(column, names.get(column_ref(column, seen) or ("", ""))) for column in tree.find_all(exp.Column)]
    if not any(meant for _, meant in uses):
        return sql
    aliases = {id(column): found.alias for column, meant in uses if meant and (found := owner(column, seen))}
    named = list(_named(tree, {id(column): meant for column, meant in uses if meant}))
    for column, meant in uses:
        if meant:
            _expand(column, meant, aliases[id(column)], seen)
    for select, place, name in named:
        select.expressions[place].replace(exp.alias_(select.expressions[place].copy(), name))
    return tree.sql("sqlite")


def _named(tree: exp.Expr, meant: Mapping[int, Definition]) -> Iterator[tuple[exp.Select, int, str]]:
    """The columns of the outermost query that show what was taught, and how they are called, where they have no name."""
    select = first_select(tree)
    for place, item in enumerate(select.expressions if select else ()):
        inner = item.this if isinstance(item, exp.AggFunc) else item
        found = meant.get(id(inner))
        if select and found and not isinstance(item, exp.Count):
            prefixes = (
                prefix for kind, prefix in _PREFIXES if isinstance(item, kind) and found.kind in ("amount", "column")
            )
            yield select, place, next(prefixes, "") + found.column


def _expand(column: exp.Column, meant: Definition, alias: str, seen: Schema) -> None:
    select = column.find_ancestor(exp.Select)
    if select is None:
        return
    formula = meant.formula.copy()
    for each in list(formula.find_all(exp.Column)):
        each.set("table", exp.to_identifier(_alias(each.table, meant.table, alias, select, seen)))
        each.set("this", exp.to_identifier(each.name))
    aggregate = column.find_ancestor(exp.AggFunc, exp.Select)
    inside = aggregate if isinstance(aggregate, exp.AggFunc) else None
    if meant.kind == "column":
        column.replace(formula)
    elif meant.kind == "condition":
        _expand_condition(column, meant, formula, inside is not None)
    elif meant.kind == "total":
        (inside or column).replace(exp.paren(formula))
    elif inside is None and _adds_up(column, select, alias):
        column.replace(exp.Sum(this=formula))
    else:
        column.replace(exp.paren(formula))


def _adds_up(column: exp.Column, select: exp.Select, alias: str) -> bool:
    """Whether an amount that stands by itself means its sum: for each group, where nothing else is shown, or where it sorts
    things of other tables, which are then grouped."""
    if not isinstance(column.find_ancestor(exp.Where, exp.Group, exp.Join, exp.Select), exp.Select):
        return False
    if select.args.get("group") is not None:
        return True
    shown = [item.unalias() for item in select.expressions]
    if len(shown) == 1 and shown[0] is column:
        return not select.args.get("order")
    others = [item for item in shown if item is not column]
    if not all(isinstance(item, exp.Column) and item.table and item.table != alias for item in others):
        return False
    select.group_by(*(item.copy() for item in others), copy=False)
    return True


def _expand_condition(column: exp.Column, meant: Definition, formula: exp.Expr, inside: bool) -> None:
    parent = column.parent
    if isinstance(parent, _COMPARED) and parent.this is column:
        unequal = isinstance(parent, exp.NEQ) or (
            isinstance(parent, exp.Is) and isinstance(parent.expression, exp.Null)
        )
        denied = unequal and not meant.denied
        parent.replace(exp.not_(exp.paren(formula)) if denied else exp.paren(formula))
    elif isinstance(parent, exp.Where | exp.Connector | exp.Not | exp.Having):
        column.replace(exp.paren(formula))
    else:
        otherwise = None if inside else exp.Literal.string(meant.name if meant.denied else f"not {meant.name}")
        column.replace(exp.Case(ifs=[exp.If(this=formula, true=exp.Literal.string(meant.value))], default=otherwise))


def _alias(table: str, base: str, alias: str, select: exp.Select, seen: Schema) -> str:
    """By which name the query knows the table; where it does not, it is joined."""
    if table == base:
        return alias
    here = {source.table.name: source.alias for source in sources(select, seen) if source.table}
    if table in here:
        return here[table]
    here[base] = alias
    for edge in connect(edges(seen), [base, table]) or ():
        new = edge.ref_table if edge.table in here else edge.table
        if new in here:
            continue
        ends = zip(edge.columns, edge.ref_columns, strict=True)
        here[new] = new
        on = [
            exp.EQ(
                this=exp.column(one, table=here[edge.table]), expression=exp.column(other, table=here[edge.ref_table])
            )
            for one, other in ends
        ]
        select.join(exp.to_table(new, dialect="sqlite"), on=exp.and_(*on), join_type="left", copy=False)
    return here[table]


def used(known: Iterable[Definition], sql: str, dialect: str) -> list[Definition]:
    """Those whose formulas the SQL has: all their columns stand in it."""
    trees = parse_or_nothing(sql, dialect)
    names = {column.name.casefold() for tree in trees for column in tree.find_all(exp.Column)}
    return [each for each in known if all(c.name.casefold() in names for c in each.formula.find_all(exp.Column))]
