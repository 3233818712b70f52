"""Follow-ups that change a query's filters, and what all changes have in common (`Request`, `adapt_query`).

Editing the former query instead of writing a new one follows EditSQL (Zhang et al., 2019).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from tools.linking.match_values import ValueMatch
from tools.linking.word_forms import NUMBER_WORDS, STOP_WORDS, name_stems, split, stem, word_set
from tools.schema import Column, Schema, Table
from tools.sql.scope import is_number, parse_or_nothing, type_kind

_LEAD = re.compile(
    r"[\s.…]*(?:(?:and|but|so|now|then|also|ok|okay|please|or|no|plus|great|thanks|sorry|i meant?|what about|how about"
    r"|can you|could you)\b"
    r"[\s,]*)+|(?:and |ok |now )?(?:let's )?(?:go )?back to [^:,.]*[:,.]\s*(?:and\b)?\s*",
    re.IGNORECASE,
)
_TAIL = re.compile(
    r"(?:[\s,]+(?:please|instead(?: of [\w ]+)?|rather(?: than [\w ]+)?|then|now|thanks|thank you))*[\s.?!]*$",
    re.IGNORECASE,
)
RESULT = r"(?:them|these|those|that|it|this|the (?:list|result|results|rows|answer|ones))"
_EMPTY = word_set(
    "keep limit restrict narrow filter instead too also well please only just thing what how again ok okay no one ones where "
    "whose"
)
_LABELS = word_set("name title")
_OF_A_KIND = word_set("address value")
_TELLING = word_set("name number")  # stop words elsewhere, but names of columns here


@dataclass(frozen=True)
class Request:
    """A second question about a former query's result: its words, and what it names in the schema and the data."""

    text: str
    values: tuple[ValueMatch, ...]
    schema: Schema
    select: exp.Select

    @cached_property
    def core(self) -> str:
        """The words of the request without "and", "please" and punctuation at the ends."""
        text = re.sub(r"\be-mail", "email", self.text, flags=re.IGNORECASE)
        led = _LEAD.match(text)
        return _TAIL.sub("", text[led.end() :] if led else text).strip()

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The tables of the query's own FROM and JOIN clauses, by their aliases."""
        joins = [self.select.args.get("from_"), *(self.select.args.get("joins") or ())]
        entries = [part.this for part in joins if part is not None and isinstance(part.this, exp.Table)]
        found = ((entry.alias_or_name, self.schema.table(entry.name)) for entry in entries)
        return {alias: table for alias, table in found if table is not None}

    @property
    def columns(self) -> Iterator[tuple[str, Table, Column]]:
        """Every column of these tables, with its table and the table's alias."""
        for alias, table in self.tables.items():
            yield from ((alias, table, column) for column in table.columns)

    def column(self, words: str) -> exp.Column | None:
        """The one column of the query's tables that these words name best; None if there is none, or several.

        Every word must occur in the column's or its table's name, except that "the e-mail address" may be `email`.
        """
        wanted = telling(words)
        scored = [
            (len(wanted & names) / len(names | wanted), alias, column.name)
            for alias, table, column in self.columns
            if not _is_unsaid_key(names := name_stems(column.name), wanted)
            and names & wanted
            and wanted <= names | name_stems(table.name) | _OF_A_KIND
        ]
        best = max((score for score, _, _ in scored), default=0.0)
        named = [(alias, name) for score, alias, name in scored if score == best]
        return self.reference(*named[0]) if len(named) == 1 else None

    def label(self, words: str) -> exp.Column | None:
        """The name or title of the table that these words name; the table is joined by its foreign key if necessary."""
        wanted = telling(words) - _LABELS
        named = [table for table in self.schema.tables if wanted and wanted == name_stems(table.name)]
        label = next((c for c in named[0].columns if name_stems(c.name) & _LABELS), None) if len(named) == 1 else None
        if label is None:
            return None
        alias = next((alias for alias, table in self.tables.items() if table.name == named[0].name), None)
        return self.reference(alias, label.name) if alias else self._joined(named[0], label)

    def column_of_parent(self, words: str) -> exp.Column | None:
        """The one column with exactly this name in the tables to which the query's tables refer; its table is joined.

        Such a join repeats no row: each row has at most one parent.
        """
        wanted, read = telling(words), {table.name for table in self.tables.values()}
        parents = {key.ref_table for table in self.tables.values() for key in table.foreign_keys} - read
        tables = [table for table in self.schema.tables if table.name in parents]
        found = [(table, own) for table in tables for own in table.columns if wanted and name_stems(own.name) == wanted]
        return self._joined(*found[0]) if len(found) == 1 else None

    @property
    def rows_of(self) -> Table | None:
        """The table whose rows the query's rows are: the one that refers to the others, to which none of them refers."""
        tables = list(self.tables.values())
        referred = {key.ref_table for table in tables for key in table.foreign_keys}
        own = [table for table in tables if table.name not in referred]
        return own[0] if len(own) == 1 else None

    def _joined(self, other: Table, label: Column) -> exp.Column | None:
        keys = [(alias, k) for alias, t in self.tables.items() for k in t.foreign_keys if k.ref_table == other.name]
        if len(keys) != 1:
            return None
        for column in self.select.find_all(exp.Column):
            if not column.table and len(self.tables) == 1:
                column.set("table", exp.to_identifier(keys[0][0]))
        alias, key = keys[0]
        pairs = zip(key.columns, key.ref_columns, strict=True)
        on = exp.and_(*(exp.column(a, alias).eq(exp.column(b, other.name)) for a, b in pairs))
        self.select.join(exp.to_table(other.name), on=on, copy=False)
        return exp.column(label.name, table=other.name)

    def reference(self, alias: str, name: str) -> exp.Column:
        """A column as the query writes it: with its table if there are several."""
        quoted = exp.to_identifier(name, quoted=not name.isidentifier())
        return exp.column(quoted, table=alias if len(self.tables) > 1 else None)

    @property
    def dates(self) -> list[exp.Column]:
        """The dates and times among the columns, as the query writes them."""
        return [self.reference(alias, own.name) for alias, _, own in self.columns if is_date(own)]

    @property
    def dates_of_rows(self) -> list[exp.Column]:
        """The dates and times of the table whose rows the query's rows are."""
        table = self.rows_of
        return [self.reference(a, own.name) for a, each, own in self.columns if is_date(own) and each is table]

    def year_of(self, date: exp.Column) -> exp.Expr:
        """The year of a date, in the query's dialect; SQLite gives it as text."""
        if self.schema.dialect == "sqlite":
            return exp.Anonymous(this="STRFTIME", expressions=[exp.Literal.string("%Y"), date])
        return exp.Extract(this=exp.var("YEAR"), expression=date)

    def declared(self, column: exp.Column) -> Column | None:
        """The schema's entry of a column that the query names."""
        name = column.name.casefold()
        found = (own for alias, _, own in self.columns if own.name.casefold() == name and column.table in ("", alias))
        return next(found, None)


Change = Callable[[Request], exp.Query | None]
"""The changed query, or None where the rule does not apply. It may change the request's own tree."""


def adapt_query(
    question: str, former: str, values: Sequence[ValueMatch], schema: Schema, changes: Sequence[Change]
) -> str | None:
    """The former query as the question changes it, in the schema's dialect; None if no rule is certain.

    A certain change, and a word that no column has:

    >>> from tools.adapt.adapt_order import ORDER_CHANGES
    >>> shop = Schema((Table("albums", (Column("title", "TEXT"), Column("price", "REAL"))),), "sqlite")
    >>> adapt_query("Sort them by price.", "SELECT title FROM albums", (), shop, ORDER_CHANGES)
    'SELECT title FROM albums ORDER BY price'
    >>> adapt_query("Sort them by colour.", "SELECT title FROM albums", (), shop, ORDER_CHANGES) is None
    True
    """
    trees = parse_or_nothing(former, schema.dialect)
    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select) or select.args.get("with_"):
        return None
    for change in changes:
        changed = change(Request(question, tuple(values), schema, select.copy()))
        if changed is not None and changed != select:
            return changed.sql(schema.dialect)
    return None


def _is_unsaid_key(names: frozenset[str], wanted: frozenset[str]) -> bool:
    """Whether a column is a key that was not asked for, such as `genre_id` for "genre": the asker means the genre's name."""
    return "id" in names and "id" not in wanted


def aggregates_of(select: exp.Expr) -> list[exp.AggFunc]:
    """The aggregates that a query, or one of its expressions, selects. ANY_VALUE is none: it stands for a column."""
    listed = select.expressions if isinstance(select, exp.Select) else [select]
    return [node for each in listed for node in each.find_all(exp.AggFunc) if not isinstance(node, exp.AnyValue)]


def is_date(column: Column) -> bool:
    """Whether a column is declared as a date or a time."""
    return column.type.upper().startswith(("DATE", "TIMESTAMP"))


def telling(text: str) -> frozenset[str]:
    """The stems of the words that carry meaning."""
    keys = (word.key for word in split(text))
    return frozenset(stem(key) for key in keys if key not in STOP_WORDS | _EMPTY or stem(key) in _TELLING)


SURE = 0.9  # score of a value match that a condition is made from
_NARROWING = re.compile(
    r"\b(?:only|just|those|ones|them|keep|limit|restrict|narrow|filter|where|whose)\b", re.IGNORECASE
)
_WITHOUT = re.compile(
    r"(?:just |only |but )?(?:(?:those|these|them|the ones|all|show) )?"
    r"(?:without|except(?: for)?|excluding|exclude|not|leave out|remove|drop|skip|ignore)\b",
    re.IGNORECASE,
)
_HAVING = re.compile(
    r"(?:(?:only|just|keep)(?: only)? )?(?:those|these|them|the ones|ones)?(?: who| that| which)?"
    r" ?(?:have|has|had|with|get|gets)(?P<no> no)? (?:an? |the |any )?(?P<column>[\w -]+)",
    re.IGNORECASE,
)
_BOTH = re.compile(r"\b(?:both|also|as well|too|or|either|together)\b", re.IGNORECASE)
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
_THOSE = (
    r"(?:(?:just|only|keep)(?: only)? )?(?:those|these|them|the ones|ones)?(?: (?:that|which|who))?"
    r"(?: (?:were|are|was|is))?"
)
_SOME_YEARS = re.compile(
    rf"{_THOSE} ?(?P<verb>[a-z]+)? ?(?P<when>in|from|after|since|before)(?P<start> the (?:start|beginning) of)?"
    r" (?P<year>(?:19|20)\d\d)",
    re.IGNORECASE,
)
_BOUND = re.compile(
    rf"{_THOSE} ?(?:with (?:an? )?)?(?P<what>[a-z ]+?)? ?(?P<than>more than|less than|over|under|above|below|at least|at most)"
    r" (?P<number>\d+(?:\.\d+)?)(?: (?P<noun>[a-z ]+))?",
    re.IGNORECASE,
)
_COMPARISONS: Mapping[str, type[exp.Binary]] = (
    dict.fromkeys(("more", "over", "above", "after"), exp.GT)
    | dict.fromkeys(("less", "under", "below", "before"), exp.LT)
    | {"least": exp.GTE, "since": exp.GTE, "most": exp.LTE}
    | dict.fromkeys(("in", "from"), exp.EQ)
)
_MORE_OR_LESS = re.compile(
    r"\b(?:more|less|fewer|over|under|above|below|least|most|than|after|before|since|not)\b", re.IGNORECASE
)
_FIRST = re.compile(r"\b(?:first|top|last|best)\b", re.IGNORECASE)
_PRIZED = re.compile(r"\bcosts?\b|\beuros?\b|€", re.IGNORECASE)
_MEASURES = word_set("euro minute second metre star copy over under more less")


def other_value(request: Request) -> exp.Query | None:
    """Replaces the value of a filtered column: "and in France?" after Germany.

    The value was found in the column that the query compares:

    >>> found = ValueMatch("customers", "country", "France", "France", 1.0)
    >>> shop = Schema((Table("customers", (Column("country", "TEXT"),)),), "sqlite")
    >>> adapt_query("And in France?", "SELECT COUNT(*) FROM customers WHERE country = 'Germany'", [found], shop, [other_value])
    "SELECT COUNT(*) FROM customers WHERE country = 'France'"
    """
    named = _one_phrase(request)
    for condition in _filters(request.select):
        match = next((value for value in named if _is_of(value, condition.this, request)), None)
        if match and not _BOTH.search(request.text) and not _WITHOUT.match(request.core):
            condition.set("expression", exp.Literal.string(match.value))
            return request.select
    return None


def one_more_value(request: Request) -> exp.Query | None:
    """Adds a condition on a column that has none yet: "only those from Lisbon", "without the downloads".

    The value was found in a column without a condition:

    >>> found = ValueMatch("customers", "city", "Lisbon", "Lisbon", 1.0)
    >>> shop = Schema((Table("customers", (Column("name", "TEXT"), Column("city", "TEXT"))),), "sqlite")
    >>> adapt_query("Only those from Lisbon.", "SELECT name FROM customers", [found], shop, [one_more_value])
    "SELECT name FROM customers WHERE city = 'Lisbon'"
    """
    excluded = _WITHOUT.match(request.core) is not None
    if not (excluded or _NARROWING.search(request.text)) or request.select.args.get("limit"):
        return None
    owned = [
        (alias, v) for v in _one_phrase(request) for alias, table in request.tables.items() if table.name == v.table
    ]
    taken = {condition.this.name.casefold() for condition in _filters(request.select)}
    if len({(alias, value.column) for alias, value in owned}) != 1 or owned[0][1].column.casefold() in taken:
        return None
    alias, value = owned[0]
    compare = exp.NEQ if excluded else exp.EQ
    condition = compare(this=request.reference(alias, value.column), expression=exp.Literal.string(value.value))
    return request.select.where(condition, copy=False)


def something_there(request: Request) -> exp.Query | None:
    """Keeps rows with or without a value in a column: "only those with a comment", "without a label".

    The column may be empty:

    >>> shop = Schema((Table("albums", (Column("title", "TEXT"), Column("label", "TEXT"))),), "sqlite")
    >>> adapt_query("Only those without a label.", "SELECT title FROM albums", (), shop, [something_there])
    'SELECT title FROM albums WHERE label IS NULL'
    """
    left_out = _WITHOUT.match(request.core)
    found = left_out or _HAVING.fullmatch(request.core)
    if not found or (request.values and _one_phrase(request)) or request.select.args.get("limit"):
        return None
    column = request.column(request.core[found.end() :] if left_out else found["column"])
    declared = request.declared(column) if column is not None else None
    if column is None or declared is None:
        return None
    absent = bool(left_out or found["no"])
    if declared.type.upper().startswith("BOOL"):
        return request.select.where(exp.not_(column) if absent else column, copy=False)
    missing = exp.Is(this=column, expression=exp.Null())
    return request.select.where(missing if absent else exp.not_(missing), copy=False) if declared.nullable else None


def other_number(request: Request) -> exp.Query | None:
    """Replaces the only year, or the only other number: "and in 2021?", "what about over 30?".

    The query has one year, and so does the question:

    >>> shop = Schema((Table("albums", (Column("title", "TEXT"), Column("year", "INTEGER"))),), "sqlite")
    >>> adapt_query("And in 2021?", "SELECT title FROM albums WHERE year = 2020", (), shop, [other_number])
    'SELECT title FROM albums WHERE year = 2021'
    """
    text = re.sub(r"\w+", lambda found: _digits(found[0]), request.core)
    numbers = re.findall(r"\d+(?:\.\d+)?", text)
    if len(numbers) != 1 or _FIRST.search(text) or telling(text) - {numbers[0]} - _MEASURES:
        return None
    literals = [each for each in request.select.find_all(exp.Literal) if each.find_ancestor(exp.Where, exp.Having)]
    if _YEAR.fullmatch(numbers[0]):
        return _moved(request.select, literals, int(numbers[0]))
    same = [
        each for each in literals if re.fullmatch(r"\d+(?:\.\d+)?", str(each.this)) and not _YEAR.fullmatch(each.this)
    ]
    if len(same) != 1:
        return None
    same[0].set("this", numbers[0])
    return request.select


def _digits(word: str) -> str:
    return str(NUMBER_WORDS.index(word.lower())) if word.lower() in NUMBER_WORDS else word


def _moved(select: exp.Select, literals: Sequence[exp.Literal], year: int) -> exp.Query | None:
    """The query with all years of its conditions shifted by the same amount, whether they are one year or its bounds."""
    years = sorted({int(found) for each in literals for found in _YEAR.findall(str(each.this))})
    if not years or len(years) > 2 or years[-1] - years[0] > 1:
        return None
    for each in literals:
        each.set("this", _YEAR.sub(lambda found: str(int(found[0]) + year - years[0]), str(each.this)))
    return select


def some_years(request: Request) -> exp.Query | None:
    """Adds a condition on the year of the only date: "only those from 2020", "the ones opened after 2015", "just in 2020".

    The table has one date; where several tables are joined, the one whose rows are joined to the others':

    >>> shop = Schema((Table("albums", (Column("title", "VARCHAR"), Column("released", "DATE"))),), "duckdb")
    >>> adapt_query("Only those released after 2015.", "SELECT title FROM albums", (), shop, [some_years])
    'SELECT title FROM albums WHERE EXTRACT(YEAR FROM released) > 2015'
    """
    found = _SOME_YEARS.fullmatch(request.core)
    dates = request.dates if len(request.dates) == 1 else request.dates_of_rows
    if not found or len(dates) != 1 or not _is_of_date(found["verb"] or "", dates[0].name):
        return None
    if found["start"] and found["when"].lower() == "in":
        return None
    if request.select.args.get("limit") or _YEAR.search(str(request.select.args.get("where") or "")):
        return None
    year = request.year_of(dates[0])
    if request.schema.dialect == "sqlite":
        year = exp.cast(year, "int")
    when = "since" if found["start"] and found["when"].lower() in ("from", "after") else found["when"].lower()
    compare = _COMPARISONS[when]
    return request.select.where(compare(this=year, expression=exp.Literal.number(found["year"])), copy=False)


def bound(request: Request) -> exp.Query | None:
    """Adds a bound on a number: "only those that cost more than 20 euros", "the ones with a rating under 3".

    What costs something has a price:

    >>> shop = Schema((Table("albums", (Column("title", "TEXT"), Column("price", "REAL"))),), "sqlite")
    >>> adapt_query("Only those that cost more than 20 euros.", "SELECT title FROM albums", (), shop, [bound])
    'SELECT title FROM albums WHERE price > 20'
    """
    found = _BOUND.fullmatch(request.core)
    words = re.sub(r"\bcosts?\b", "price", found["what"] or found["noun"] or "") if found else ""
    column = request.column(words) if words and not _PRIZED.search(request.text) else _priced(request)
    if not found or column is None or request.select.args.get("limit"):
        return None
    condition = _COMPARISONS[found["than"].lower().split()[-1 if found["than"].lower().startswith("at") else 0]]
    return request.select.where(condition(this=column, expression=exp.Literal.number(found["number"])), copy=False)


def equal_number(request: Request) -> exp.Query | None:
    """Adds a number that a column must equal: "just the ones with capacity 40", "what about those with 35 as price?".

    The word before the number names a column:

    >>> shop = Schema((Table("albums", (Column("title", "TEXT"), Column("rating", "INTEGER"))),), "sqlite")
    >>> adapt_query("Just the ones with rating 5.", "SELECT title FROM albums", (), shop, [equal_number])
    'SELECT title FROM albums WHERE rating = 5'
    """
    numbers = re.findall(r"\b\d+(?:\.\d+)?\b", request.core)
    if len(numbers) != 1 or not _NARROWING.search(request.text) or _MORE_OR_LESS.search(request.core):
        return None
    column = request.column(request.core.replace(numbers[0], " "))
    declared = request.declared(column) if column is not None else None
    if column is None or declared is None or request.select.args.get("limit"):
        return None
    literal = exp.Literal.number(numbers[0]) if is_number(type_kind(declared.type)) else exp.Literal.string(numbers[0])
    return request.select.where(exp.EQ(this=column, expression=literal), copy=False)


FILTER_CHANGES: tuple[Change, ...] = (
    other_value,
    one_more_value,
    something_there,
    other_number,
    some_years,
    bound,
    equal_number,
)


def _is_of_date(verb: str, name: str) -> bool:
    """Whether a date's name has a verb: `release_date` and `released_on` are when something was released."""
    forms = (verb, verb.removesuffix("d"), verb.removesuffix("ed"))
    return not telling(verb) or any(telling(form) <= name_stems(name) for form in forms if form)


def _priced(request: Request) -> exp.Column | None:
    """The only price of the query's tables, if the question speaks of money."""
    if not _PRIZED.search(request.text):
        return None
    prices = [
        (alias, column.name) for alias, _, column in request.columns if name_stems(column.name) & word_set("price cost")
    ]
    return request.reference(*prices[0]) if len(prices) == 1 else None


def _one_phrase(request: Request) -> list[ValueMatch]:
    """The matches of the phrase, if the request consists of nothing else; otherwise none."""
    sure = [value for value in request.values if value.score >= SURE]
    phrases = {value.phrase for value in sure}
    if len(phrases) != 1:
        return []
    said = telling(request.core) - frozenset(stem(word.key) for word in split(phrases.pop()))
    return [value for value in sure if said <= name_stems(value.column) | name_stems(value.table)]


def _filters(select: exp.Select) -> list[exp.EQ]:
    """The query's own conditions that compare a column with a text."""
    where = select.args.get("where")
    found = where.find_all(exp.EQ) if where else ()
    return [each for each in found if isinstance(each.this, exp.Column) and each.expression.is_string]


def _is_of(value: ValueMatch, column: exp.Column, request: Request) -> bool:
    """Whether a value was found in the column that a condition compares, and is not the one it has."""
    if column.name.casefold() != value.column.casefold():
        return False
    return value.table in [table.name for alias, table in request.tables.items() if column.table in ("", alias)]
