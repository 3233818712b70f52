"""Rules for literals: where they stand, what they are compared with, and how they are written.

Each rule of `tools.repair.rules` gets the tree of a statement that is its own, and returns the changed tree, or None.
"""

import re
from collections.abc import Mapping, Sequence

from sqlglot import exp

from tools.linking.match_values import ValueMatch, in_one_spelling, spellings
from tools.linking.mentions import QuestionContext
from tools.linking.word_forms import NUMBER_WORDS, gender_codes
from tools.repair.lost_columns import add_join
from tools.schema import ColumnRef, Schema
from tools.sql.join_graph import joinable
from tools.sql.scope import column_ref, sources, type_kind

SURE = 0.9
_MORE = ("group", "having", "order", "limit", "windows", "qualify")  # clauses that both halves of a set cannot have
_YEAR = re.compile(r"[12]\d{3}")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between, exp.In)
_FORMS = (
    (re.compile(r"\b(?:start|begin)(?:s|ning|ing)? (?:with|from|by)\b", re.I), "{}%"),
    (re.compile(r"\bend(?:s|ing)? (?:with|in|by)\b", re.I), "%{}"),
    (re.compile(r"\b(?:contain(?:s|ing)?|includ(?:e|es|ing)|substring)\b", re.I), "%{}%"),
)
_NUMBER = r"(?P<number>\d+(?:\.\d+)?|" + "|".join(NUMBER_WORDS) + r")\b(?![.,]\d)"
_GREATER = "more|older|higher|greater|larger|longer|later|taller|heavier|dearer|costlier|pricier"
_SMALLER = "less|fewer|younger|lower|smaller|shorter|earlier|lighter|cheaper"
_ABOVE, _BELOW = rf"(?:(?:{_GREATER}|bigger) than|above|over)", rf"(?:(?:{_SMALLER}) than|below|under)"
_BOUNDS: tuple[tuple[type[exp.Binary], str], ...] = (
    (exp.GTE, rf"(?:at least|no (?:{_SMALLER}) than) {_NUMBER}"),
    (exp.LTE, rf"(?:at most|no (?:{_GREATER}) than) {_NUMBER}"),
    (exp.GTE, rf"{_NUMBER} or (?:{_GREATER})\b(?! than)"),
    (exp.GTE, rf"since the (?:start|beginning) of (?:the year )?{_NUMBER}"),
    (exp.LTE, rf"{_NUMBER} or (?:{_SMALLER})\b(?! than)"),
    (exp.GT, rf"(?<!no )(?<!not ){_ABOVE} {_NUMBER}"),
    (exp.LT, rf"(?<!no )(?<!not ){_BELOW} {_NUMBER}"),
)
_AVERAGE = r"(?:the |an? )?(?:average|mean)\b"
_SIDES = (
    (exp.GT, rf"(?:{_ABOVE}|more \w+ than) {_AVERAGE}"),
    (exp.LT, rf"(?:{_BELOW}|less \w+ than) {_AVERAGE}"),
)
_THAN_AVERAGE = tuple((side, re.compile(rf"(?<!no )(?<!not )\b{pattern}", re.I)) for side, pattern in _SIDES)
_PATTERNS = tuple((bound, re.compile(rf"\b{pattern}", re.I)) for bound, pattern in _BOUNDS)
_BOUNDED = (exp.EQ, exp.GT, exp.GTE, exp.LT, exp.LTE)


def move_literals(tree: exp.Query, schema: Schema, context: QuestionContext) -> exp.Query | None:
    """Moves a literal from a column that does not hold it to the only one that does, by the values found in the question; the
    column's table is joined if necessary, and the literal is spelled as in the cell, or in all ways that differ in case,
    accents or blanks alone.

    The value index found the text in another column, and in capitals:

    >>> from sqlglot import parse_one
    >>> from tools.schema import Column, Table
    >>> schema = Schema((Table("hero", (Column("name", "TEXT"), Column("publisher", "TEXT"))),), "sqlite")
    >>> found = QuestionContext("?", (ValueMatch("hero", "publisher", "DC Comics", "dc comics", 1.0),))
    >>> tree = parse_one("SELECT COUNT(*) FROM hero WHERE name = 'dc comics'")
    >>> move_literals(tree, schema, found).sql()
    "SELECT COUNT(*) FROM hero WHERE publisher = 'DC Comics'"
    >>> both = tuple(ValueMatch("hero", "name", text, "thor", 1.0) for text in ("Thor", "THOR"))
    >>> tree = parse_one("SELECT COUNT(*) FROM hero WHERE name <> 'Thor'")
    >>> move_literals(tree, schema, QuestionContext("?", both)).sql()
    "SELECT COUNT(*) FROM hero WHERE NOT name IN ('Thor', 'THOR')"
    """
    moved = [_moved(condition, schema, context.values) for condition in list(tree.find_all(exp.EQ))]
    known = spellings(context.values)
    spelled = [_in_all(node, known, schema) for node in list(tree.find_all(exp.EQ, exp.NEQ, exp.In))] if known else []
    return tree if any((*moved, *spelled)) else None


def _moved(condition: exp.EQ, schema: Schema, values: Sequence[ValueMatch]) -> bool:
    """Whether the condition was changed."""
    column, literal = condition.this, condition.expression
    if not isinstance(column, exp.Column) or not isinstance(literal, exp.Literal) or not literal.is_string:
        return False
    cells = [v for v in values if v.score >= SURE and v.value.casefold() == literal.name.casefold()]
    here = column_ref(column, schema)
    if not cells or here is None:
        return False
    if any(_hold_the_same(here, (cell.table, cell.column), schema) for cell in cells):
        return False
    own = [cell for cell in cells if (cell.table, cell.column) == here]
    there = (own[0].table, own[0].column) if own else _destination(condition, here[0], cells, schema)
    if there is None or (own and literal.name in [cell.value for cell in own]):
        return False
    value = next(cell.value for cell in own or cells if (cell.table, cell.column) == there)
    condition.set("expression", exp.Literal.string(value))
    return True


def _destination(condition: exp.EQ, table: str, cells: Sequence[ValueMatch], schema: Schema) -> ColumnRef | None:
    """Replace the condition's column by the one that holds the value: in its own table, in another one of the query, or in one
    that can be joined. table: that of the condition's column.
    """
    select = condition.parent_select
    if not isinstance(select, exp.Select):
        return None
    columns = list(dict.fromkeys((cell.table, cell.column) for cell in cells))
    called = {source.table.name: source.alias for source in sources(select, schema) if source.table}
    present = [column for column in columns if column[0] in called]
    present = [column for column in present if column[0] == table] or present
    if len(present) == 1:
        there = present[0]
        alias: str | None = called[there[0]] if len(called) > 1 else ""
    else:
        alias = None if present else add_join(select, [table for table, _ in columns], schema)
        joined = [column for column in columns if column[0] == alias]
        there = joined[0] if len(joined) == 1 else ("", "")
    if alias is None or not there[0]:
        return None
    condition.set("this", exp.column(there[1], table=alias or None))
    return there


def _hold_the_same(one: ColumnRef, other: ColumnRef, schema: Schema) -> bool:
    """Whether a join may equate the two columns, so that both may hold the same values."""
    pairs = joinable(schema).between(one[0].lower(), other[0].lower())
    return one != other and (one[1].lower(), other[1].lower()) in pairs


def _in_all(node: exp.Expr, known: Mapping[tuple[ColumnRef, str], list[str]], schema: Schema) -> bool:
    """Whether the comparison was changed."""
    here = column_ref(node.this, schema) if isinstance(node.this, exp.Column) else None
    literals = node.expressions if isinstance(node, exp.In) else [node.expression]
    if here is None or not all(isinstance(each, exp.Literal) and each.is_string for each in literals):
        return False
    texts = dict.fromkeys(each.name for each in literals)
    every = [text for each in texts for text in known.get((here, in_one_spelling(each)), [each])]
    if {*every} <= {*texts}:
        return False
    either = exp.In(this=node.this.copy(), expressions=[exp.Literal.string(text) for text in dict.fromkeys(every)])
    node.replace(exp.Not(this=either) if isinstance(node, exp.NEQ) else either)
    return True


def separate_values(tree: exp.Query, schema: Schema, context: QuestionContext) -> exp.Query | None:
    """`x = 'a' AND x = 'b'` never returns rows. Who says "students who have a cat and a dog" means the intersection of the rows
    with one and the rows with the other or, if rows are counted or summed, the rows with either.

    >>> from sqlglot import parse_one
    >>> def separated(sql):
    ...     return separate_values(parse_one(sql), Schema((), "sqlite"), QuestionContext("?")).sql()
    >>> separated("SELECT owner FROM pet WHERE kind = 'cat' AND kind = 'dog'")
    "SELECT owner FROM pet WHERE kind = 'cat' INTERSECT SELECT owner FROM pet WHERE kind = 'dog'"
    >>> separated("SELECT COUNT(*) FROM pet WHERE kind = 'cat' AND kind = 'dog'")
    "SELECT COUNT(*) FROM pet WHERE kind IN ('cat', 'dog')"
    """
    if not isinstance(tree, exp.Select) or tree.args.get("where") is None:
        return None
    conditions = _different(tree.args["where"].this)
    wanted = [each for each in conditions if _value_of(each)]
    columns = [str(each.this.sql()).casefold() for each in wanted]
    rivals = [each for each, column in zip(wanted, columns, strict=True) if columns.count(column) > 1]
    if len(rivals) != 2 or any(tree.args.get(clause) for clause in _MORE):
        return None
    others = [each for each in conditions if each not in rivals]
    if all(each.find(exp.AggFunc) for each in tree.expressions):
        either = exp.In(this=rivals[0].this.copy(), expressions=[each.expression.copy() for each in rivals])
        return _where(tree, [either, *others])
    return exp.intersect(*(_where(tree, [rival, *others]) for rival in rivals), copy=False)


def _different(condition: exp.Expr) -> list[exp.Expr]:
    """The conditions joined by AND, each once."""
    parts = condition.flatten() if isinstance(condition, exp.And) else [condition]
    return list(dict.fromkeys(parts))


def _value_of(condition: exp.Expr) -> bool:
    """Whether the condition says which value a column has."""
    return (
        isinstance(condition, exp.EQ)
        and isinstance(condition.this, exp.Column)
        and isinstance(condition.expression, exp.Literal)
    )


def _where(select: exp.Select, conditions: Sequence[exp.Expr]) -> exp.Select:
    """A copy of the query with other conditions."""
    return select.copy().where(*(each.copy() for each in conditions), append=False)


def compare_nulls(tree: exp.Query, schema: Schema, context: QuestionContext) -> exp.Query | None:
    """`= NULL` is never true: what is meant is IS NULL, and IS NOT NULL where `<>` or `!=` stands. A column that is compared
    with itself is one that is not NULL.

    >>> from sqlglot import parse_one
    >>> def tested(sql):
    ...     return compare_nulls(parse_one(sql), Schema((), "sqlite"), QuestionContext("?")).sql()
    >>> tested("SELECT title FROM albums WHERE release_date = NULL")
    'SELECT title FROM albums WHERE release_date IS NULL'
    >>> tested("SELECT title FROM albums WHERE release_date = release_date")
    'SELECT title FROM albums WHERE NOT release_date IS NULL'
    """
    compared = [each for each in tree.find_all(exp.EQ, exp.NEQ) if _is_condition(each)]
    found = [(each, test) for each in compared if (test := _test(each))]
    for each, test in found:
        each.replace(test)
    return tree if found else None


def _test(comparison: exp.Expr) -> exp.Expr | None:
    """The test for NULL that is meant; None if none is."""
    is_equal, side = isinstance(comparison, exp.EQ), _other_side(comparison)
    if side is not None:
        return _is_null(side) if is_equal else exp.Not(this=_is_null(side))
    one, other = comparison.this, comparison.expression
    is_itself = (
        is_equal and isinstance(one, exp.Column) and isinstance(other, exp.Column) and _name(one) == _name(other)
    )
    return exp.Not(this=_is_null(one)) if is_itself else None


def _name(column: exp.Column) -> tuple[str, str]:
    return column.table.lower(), column.name.lower()


def _is_null(side: exp.Expr) -> exp.Expr:
    return exp.Is(this=side.copy(), expression=exp.Null())


def _other_side(comparison: exp.Expr) -> exp.Expr | None:
    """What is compared with NULL; None if nothing is."""
    sides = (comparison.this, comparison.expression)
    return next((side for side, other in (sides, sides[::-1]) if isinstance(other, exp.Null)), None)


def _is_condition(comparison: exp.Expr) -> bool:
    """Whether it stands in a WHERE, a HAVING or an ON, and not in the SET of an UPDATE, for instance."""
    return comparison.find_ancestor(exp.Where, exp.Having, exp.Join) is not None


def compare_years(tree: exp.Query, schema: Schema, context: QuestionContext) -> exp.Query | None:
    """`released = 2019` means the year of the date, and is never true as it stands. A date that is compared as text, as SQLite
    does, is a date all the same.

    >>> from sqlglot import parse_one
    >>> from tools.schema import Column, Table
    >>> schema = Schema((Table("song", (Column("released", "DATE", samples=("2019-05-01",)),)),), "duckdb")
    >>> def by_year(sql):
    ...     return compare_years(parse_one(sql), schema, QuestionContext("?")).sql("duckdb")
    >>> by_year("SELECT COUNT(*) FROM song WHERE released >= 2019")
    'SELECT COUNT(*) FROM song WHERE EXTRACT(YEAR FROM released) >= 2019'
    >>> by_year("SELECT COUNT(*) FROM song WHERE CAST(released AS TEXT) = '2019'")
    'SELECT COUNT(*) FROM song WHERE EXTRACT(YEAR FROM released) = 2019'
    """
    changed = [_by_year(node, schema) for node in list(tree.find_all(*_COMPARISONS))]
    return tree if any(changed) else None


def _by_year(node: exp.Expr, schema: Schema) -> bool:
    """Whether the comparison was changed."""
    years, date = _compared(node), node.this.this if _is_text(node.this) else node.this
    if not isinstance(date, exp.Column) or not years or not all(map(_is_year, years)):
        return False
    year = _year_of(date, schema)
    if year is None:
        return False
    for each in years:
        each.replace(exp.Literal.number(each.name))
    node.this.replace(year)
    return True


def _compared(node: exp.Expr) -> list[exp.Expr]:
    """What the column is compared with."""
    if isinstance(node, exp.In):
        return list(node.expressions)
    return [node.args["low"], node.args["high"]] if isinstance(node, exp.Between) else [node.expression]


def _is_text(node: exp.Expr) -> bool:
    """Whether it is a cast to text."""
    return isinstance(node, exp.Cast) and node.to.is_type(*exp.DataType.TEXT_TYPES)


def _is_year(value: exp.Expr) -> bool:
    return isinstance(value, exp.Literal) and _YEAR.fullmatch(value.name) is not None


def _year_of(name: exp.Column, schema: Schema) -> exp.Expr | None:
    """The year of a column of dates; None for any other column. SQLite and files that DuckDB reads have dates as texts, too."""
    ref = column_ref(name, schema)
    table = schema.table(ref[0]) if ref else None
    column = table.column(ref[1]) if table and ref else None
    if column is None or not all(_ISO_DATE.match(sample) for sample in column.samples):
        return None
    typed = type_kind(column.type) == "time" and column.type.upper() not in ("TIME", "YEAR")
    written = type_kind(column.type) == "text" and bool(column.samples)
    if schema.dialect == "sqlite" and (typed or written):
        return exp.cast(exp.Anonymous(this="STRFTIME", expressions=[exp.Literal.string("%Y"), name.copy()]), "INTEGER")
    if typed:
        return exp.Extract(this=exp.var("YEAR"), expression=name.copy())
    date = exp.TryCast(this=name.copy(), to=exp.DataType.build("DATE"))
    return exp.Extract(this=exp.var("YEAR"), expression=date) if schema.dialect == "duckdb" and written else None


def set_wildcards(tree: exp.Query, schema: Schema, context: QuestionContext) -> exp.Query | None:
    """Gives the only pattern of LIKE the wildcards that the question says: what starts with Orbit is LIKE 'Orbit%'.

    >>> from sqlglot import parse_one
    >>> tree = parse_one("SELECT name FROM item WHERE code LIKE '2'")
    >>> set_wildcards(tree, Schema((), "sqlite"), QuestionContext("Which codes start with 2?")).sql()
    "SELECT name FROM item WHERE code LIKE '2%'"
    """
    forms = [form for words, form in _FORMS if words.search(context.question)]
    likes = list(tree.find_all(exp.Like, exp.ILike))
    if len(forms) != 1 or len(likes) != 1 or not isinstance(likes[0].expression, exp.Literal):
        return None
    text = likes[0].expression.name
    pattern = forms[0].format(text.strip("%"))
    if pattern == text or "%" in text.strip("%") or "_" in text:
        return None
    likes[0].expression.replace(exp.Literal.string(pattern))
    return tree


def add_genders(tree: exp.Query, schema: Schema, context: QuestionContext) -> exp.Query | None:
    """Adds the condition that a question names by a gender alone, "female members", where SQL left it out. The column is not
    used yet, and there is one SELECT, one gender, and one column that has it.

    >>> from sqlglot import parse_one
    >>> from tools.schema import Column, Table
    >>> schema = Schema((Table("member", (Column("name", "TEXT"), Column("sex", "TEXT"))),), "sqlite")
    >>> context = QuestionContext("Female members?", (ValueMatch("member", "sex", "F", "female", 0.9),))
    >>> add_genders(parse_one("SELECT name FROM member"), schema, context).sql()
    "SELECT name FROM member WHERE sex = 'F'"
    """
    named = [match for match in context.values if gender_codes(match.phrase.lower())]
    if not isinstance(tree, exp.Select) or len({match.phrase.lower() for match in named}) != 1:
        return None
    every = sources(tree, schema)
    owned = [
        (source, match) for source in every for match in named if source.table and source.table.name == match.table
    ]
    used = {column.name.lower() for column in tree.find_all(exp.Column)}
    nested = len(list(tree.find_all(exp.Select))) > 1
    if len(owned) != 1 or nested or owned[0][1].column.lower() in used:
        return None
    source, match = owned[0]
    column = exp.column(match.column, table=source.alias if len(every) > 1 else None)
    return tree.where(column.eq(exp.Literal.string(match.value)), dialect=schema.dialect)


def set_bounds(tree: exp.Query, schema: Schema, context: QuestionContext) -> exp.Query | None:
    """Compares each number as the question bounds it: "30 or younger" is `<= 30`, "at least 3" is `>= 3`. Both name the number
    once, and the statement leaves no rows out by NOT or EXCEPT.

    >>> from sqlglot import parse_one
    >>> def bounded(sql, question):
    ...     return set_bounds(parse_one(sql), Schema((), "duckdb"), QuestionContext(question)).sql()
    >>> bounded("SELECT name FROM pilot WHERE age = 25", "Which pilots are aged 25 or older?")
    'SELECT name FROM pilot WHERE age >= 25'
    >>> bounded("SELECT name FROM pilot WHERE pay < (SELECT AVG(pay) FROM pilot)", "Who is dearer than the average?")
    'SELECT name FROM pilot WHERE pay > (SELECT AVG(pay) FROM pilot)'
    """
    bounds = _said_bounds(context.question)
    sides = [bound for bound, pattern in _THAN_AVERAGE if pattern.search(context.question)]
    if not (bounds or sides) or tree.find(exp.Not, exp.Except):
        return None
    changed = [_bounded(tree, number, bound) for number, bound in bounds.items()]
    changed += [_averaged(tree, sides[0])] if len(sides) == 1 else []
    return tree if any(changed) else None


def _said_bounds(question: str) -> dict[str, type[exp.Binary]]:
    """How the question bounds each number, where it says the number once."""
    found: dict[str, set[type[exp.Binary]]] = {}
    for bound, pattern in _PATTERNS:
        for match in pattern.finditer(question):
            found.setdefault(_digits(match["number"]), set()).add(bound)
    said = [_digits(word) for word in re.findall(rf"\b{_NUMBER}", question, re.I)]
    return {number: bounds.pop() for number, bounds in found.items() if len(bounds) == 1 and said.count(number) == 1}


def _digits(number: str) -> str:
    words = {word: str(value) for value, word in enumerate(NUMBER_WORDS)}
    return words.get(number.lower(), number)


def _bounded(tree: exp.Expr, number: str, bound: type[exp.Binary]) -> bool:
    """Whether the one comparison with this number was changed."""
    literals = [literal for literal in tree.find_all(exp.Literal) if literal.name == number]
    node = literals[0].parent if len(literals) == 1 else None
    if type(node) not in _BOUNDED or not isinstance(node, exp.Binary) or node.expression is not literals[0]:
        return False
    if isinstance(node, bound) or not isinstance(node.this, exp.Column | exp.AggFunc | exp.Extract):
        return False
    node.replace(bound(this=node.this, expression=literals[0]))
    return True


def _averaged(tree: exp.Expr, bound: type[exp.Binary]) -> bool:
    """Whether the one comparison with an average was changed."""
    averages = [query for query in tree.find_all(exp.Subquery) if _is_average(query)]
    node = averages[0].parent if len(averages) == 1 else None
    if not isinstance(node, exp.GT | exp.LT) or isinstance(node, bound) or node.expression is not averages[0]:
        return False
    node.replace(bound(this=node.this, expression=node.expression))
    return True


def _is_average(query: exp.Subquery) -> bool:
    shown = query.this.selects if isinstance(query.this, exp.Select) else []
    return len(shown) == 1 and isinstance(shown[0].unalias(), exp.Avg)
