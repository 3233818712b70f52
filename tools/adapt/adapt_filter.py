"""Changes of a query's conditions for which a short second question asks: another value, one more, none, or another number.
See `tools.adapt.adapt_query` for what they have in common."""

import re
from collections.abc import Mapping, Sequence

from sqlglot import exp

from tools.adapt.adapt_query import Change, Request, telling
from tools.linking.match_values import ValueMatch
from tools.linking.word_forms import NUMBER_WORDS, name_stems, split, stem, word_set
from tools.sql.scope import is_number, type_kind

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

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
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

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
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

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
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

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
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

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
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

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
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

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
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
