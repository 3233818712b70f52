"""Changes of a query's shape for which a short second question asks: count, sort, limit, group, another aggregate, or more
columns. See `tools.adapt.adapt_query` for what they have in common."""

import re
from collections.abc import Mapping

from sqlglot import exp

from tools.adapt.adapt_query import Change, Request, is_date, telling
from tools.linking.word_forms import NUMBER_WORDS, name_stems, word_set

_NUMBERS = {word: number for number, word in enumerate(NUMBER_WORDS[:11])}
_RESULT = r"(?:them|these|those|that|it|this|the (?:list|result|results|rows|answer|ones))"
_COUNT = re.compile(
    rf"(?:so )?how many(?: of {_RESULT})?(?: (?:is|are|was|were|do we have))?(?: (?:that|there|they|those|these|it|of them))?"
    rf"(?: in (?:total|all)| altogether)?|(?:just )?count {_RESULT}"
    rf"|(?:just )?(?:give me |show )?(?:the|their) (?:number|count)(?: of {_RESULT})?",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    rf"(?:(?:show|give|list|make|keep|what are|what is)(?: me| it| that)? )?"
    r"(?:only |just )?(?:the )?(?:top|first|best) (?P<number>\w+)"
    rf"(?: (?:of {_RESULT}|rows|results|ones))?",
    re.IGNORECASE,
)
_SORT = re.compile(
    rf"(?:the same,? )?(?:(?:list|show|give me) {_RESULT} )?(?:sort|order|rank|arrange)(?:ed)?(?: {_RESULT})?"
    r"\s*(?:by )?(?P<key>.*)",
    re.IGNORECASE,
)
_DOWN = r"highest|largest|biggest|longest|latest|newest|most recent|most expensive|dearest|youngest|best|most|high"
_UP = r"lowest|smallest|shortest|earliest|oldest|cheapest|least expensive|worst|fewest|least|low"
_DESCENDING = re.compile(
    rf"\b(?:in )?(?:descending(?: order)?|desc)\b|\b(?:the )?(?P<word>{_DOWN})(?: ones?)? first\b"
    rf"|\b(?:from )?(?:the )?(?P<from>{_DOWN}) to (?:the )?(?:{_UP})\b|\bz to a\b|\bin reverse\b",
    re.IGNORECASE,
)
_ASCENDING = re.compile(
    rf"\b(?:in )?(?:ascending(?: order)?|asc)\b|\b(?:the )?(?P<word>{_UP})(?: ones?)? first\b"
    rf"|\b(?:from )?(?:the )?(?P<from>{_UP}) to (?:the )?(?:{_DOWN})\b|\ba to z\b",
    re.IGNORECASE,
)
_ALPHABETICAL = re.compile(r"\b(?:in )?alphabetical(?:ly)?(?: order)?\b", re.IGNORECASE)
# What adjectives compare, as words of column names; dates are recognised by their type.
_COMPARED: Mapping[str, frozenset[str]] = (
    dict.fromkeys(("longest", "shortest"), word_set("length duration second minute height distance"))
    | dict.fromkeys(("most expensive", "least expensive", "dearest", "cheapest"), word_set("price cost fee"))
    | dict.fromkeys(("largest", "biggest", "smallest"), word_set("size area population capacity"))
)
_DATES = ("latest", "newest", "most recent", "earliest", "oldest", "youngest")
_EXTREME = re.compile(
    r"(?:which|what|who)(?: one| of them| of those)? (?:is|are|has|have|had|got|gets|was|were) (?:the )?"
    r"(?P<word>most|fewest|least|highest|lowest|largest|smallest)(?: of (?:them|all))?",
    re.IGNORECASE,
)
_GROUP = re.compile(
    rf"(?:(?:show|split|break|group|give|divide|do|list|count|what is)(?: me)? )?"
    rf"(?:(?:{_RESULT}|the same) )?(?:down |up |out )?"
    r"(?:by|per|for each|for every|in each)(?: each)? (?P<key>[\w' -]+)",
    re.IGNORECASE,
)
_AGGREGATE = re.compile(
    r"(?:(?:what is|what's|what was|show|give me|tell me) )?(?:the )?(?P<kind>average|mean|highest|maximum|max|largest|lowest"
    r"|minimum|min|smallest|total|sum)(?: one)?(?: of (?:them|those|these))?(?: (?P<column>[\w' ]+))?",
    re.IGNORECASE,
)
_AGGREGATES: Mapping[str, type[exp.AggFunc]] = (
    dict.fromkeys(("average", "mean"), exp.Avg)
    | dict.fromkeys(("highest", "maximum", "max", "largest"), exp.Max)
    | dict.fromkeys(("lowest", "minimum", "min", "smallest"), exp.Min)
    | dict.fromkeys(("total", "sum"), exp.Sum)
)
_COLUMNS = re.compile(
    r"(?P<what>what (?:is|are|was|were) )?(?P<add>(?:show|list|give|add|include|tell)(?: me)? )?(?:also )?"
    r"(?:(?:their|its|his|her|the) )?(?P<names>[\w' ,-]+?)(?P<too>[, ]+(?:too|as well|also))?",
    re.IGNORECASE,
)


def count(request: Request) -> exp.Query | None:
    """Counts the rows of the result: "how many is that?".

    The rows of the list are counted, under the same condition:

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
    >>> shop = Schema((Table("albums", (Column("title", "TEXT"), Column("label", "TEXT"))),), "sqlite")
    >>> adapt_query("How many is that?", "SELECT title FROM albums WHERE label = 'Tidal Wax'", (), shop, [count])
    "SELECT COUNT(*) FROM albums WHERE label = 'Tidal Wax'"
    """
    select = request.select
    if not _COUNT.fullmatch(request.core) or (_aggregates(select) and not select.args.get("group")):
        return None
    if any(select.args.get(part) for part in ("limit", "distinct", "group", "having")):
        return exp.select(exp.Count(this=exp.Star())).from_(select.subquery("answer"))
    select.set("order", None)
    return select.select(exp.Count(this=exp.Star()), append=False, copy=False)


def limit(request: Request) -> exp.Query | None:
    """Keeps the first rows: "only the top three".

    Only a sorted list has first rows:

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
    >>> shop = Schema((Table("albums", (Column("title", "TEXT"), Column("price", "REAL"))),), "sqlite")
    >>> adapt_query("Only the top three.", "SELECT title FROM albums ORDER BY price DESC", (), shop, [limit])
    'SELECT title FROM albums ORDER BY price DESC LIMIT 3'
    """
    found = _LIMIT.fullmatch(request.core)
    word = found["number"].lower() if found else ""
    number = _NUMBERS.get(word) or (int(word) if word.isdigit() else 0)
    return request.select.limit(number, copy=False) if number and request.select.args.get("order") else None


def sort(request: Request) -> exp.Query | None:
    """Sorts the rows by a column, or by the only aggregate: "sort them by price", "newest first".

    The words name a column and a direction:

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
    >>> shop = Schema((Table("albums", (Column("title", "TEXT"), Column("price", "REAL"))),), "sqlite")
    >>> adapt_query("Sort them by price, highest first.", "SELECT title FROM albums", (), shop, [sort])
    'SELECT title FROM albums ORDER BY price DESC'
    """
    found = _SORT.fullmatch(request.core)
    whole = _DESCENDING.fullmatch(request.core) or _ASCENDING.fullmatch(request.core)
    if not (found or whole):
        return None
    said = found["key"] if found else request.core
    descending, ascending = _DESCENDING.search(said), _ASCENDING.search(said)
    key = _ALPHABETICAL.sub("", _ASCENDING.sub("", _DESCENDING.sub("", said)))
    node = _sort_key(request, key, descending or ascending, _ALPHABETICAL.search(said) is not None)
    if node is None:
        return None
    ordered = exp.Ordered(this=node, desc=True if descending else None, nulls_first=not descending)
    return request.select.order_by(ordered, append=False, copy=False)


def extreme(request: Request) -> exp.Query | None:
    """Keeps the group with the highest or lowest aggregate: "which one has the most?" after a list of groups.

    The groups are sorted by their count, and the first is kept:

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
    >>> shop = Schema((Table("albums", (Column("label", "TEXT"),)),), "sqlite")
    >>> adapt_query("Which one has the most?", "SELECT label, COUNT(*) FROM albums GROUP BY label", (), shop, [extreme])
    'SELECT label FROM albums GROUP BY label ORDER BY COUNT(*) DESC LIMIT 1'
    """
    found = _EXTREME.fullmatch(request.core)
    select, aggregates = request.select, _aggregates(request.select)
    groups = [each for each in select.expressions if not each.find(exp.AggFunc)]
    if not found or len(aggregates) != 1 or not select.args.get("group") or not groups:
        return None
    descending = found["word"].lower() in ("most", "highest", "largest")
    ordered = exp.Ordered(this=aggregates[0].copy(), desc=descending or None, nulls_first=not descending)
    return (
        select.select(*groups, append=False, copy=False)
        .order_by(ordered, append=False, copy=False)
        .limit(1, copy=False)
    )


def group(request: Request) -> exp.Query | None:
    """Groups the only aggregate by a column, instead of the column by which it is grouped, if there is one.

    An average of all albums becomes one for each label:

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
    >>> shop = Schema((Table("albums", (Column("label", "TEXT"), Column("price", "REAL"))),), "sqlite")
    >>> adapt_query("And by label?", "SELECT AVG(price) FROM albums", (), shop, [group])
    'SELECT label, AVG(price) FROM albums GROUP BY label'
    """
    found = _GROUP.fullmatch(request.core)
    select, aggregates = request.select, _aggregates(request.select)
    key = _group_key(request, found["key"]) if found else None
    grouped = select.args.get("group")
    former = grouped.expressions if grouped else []
    if key is None or len(aggregates) != 1 or len(former) > 1 or select.args.get("limit"):
        return None
    kept = [each for each in select.expressions if each.find(exp.AggFunc)]
    key_last = bool(former) and select.expressions[0] is kept[0]
    select.set("expressions", [*kept, key.copy()] if key_last else [key.copy(), *kept])
    order = select.args.get("order")
    select.set("order", order if order and order.find(exp.AggFunc) else None)
    return select.group_by(key, append=False, copy=False)


def aggregate(request: Request) -> exp.Query | None:
    """Replaces the aggregate of a column by another one: "and the highest?" after an average.

    The column stays the same:

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
    >>> shop = Schema((Table("albums", (Column("price", "REAL"),)),), "sqlite")
    >>> adapt_query("And the highest?", "SELECT AVG(price) FROM albums", (), shop, [aggregate])
    'SELECT MAX(price) FROM albums'
    """
    found = _AGGREGATE.fullmatch(request.core)
    nodes = _aggregates(request.select)
    if not found or len(nodes) != 1:
        return None
    measured = isinstance(nodes[0], exp.Avg | exp.Max | exp.Min | exp.Sum)
    column = request.column(found["column"]) if found["column"] else nodes[0].this.copy() if measured else None
    if not isinstance(column, exp.Column):
        return None
    nodes[0].replace(_AGGREGATES[found["kind"].lower()](this=column))
    return request.select


def columns(request: Request) -> exp.Query | None:
    """Lists more columns of the rows: "show their e-mail addresses too"; or other columns: "what are their names?".

    The word 'too' keeps the columns that are listed:

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
    >>> shop = Schema((Table("albums", (Column("title", "TEXT"), Column("price", "REAL"))),), "sqlite")
    >>> adapt_query("Show the price too.", "SELECT title FROM albums", (), shop, [columns])
    'SELECT title, price FROM albums'
    """
    found = _COLUMNS.fullmatch(request.core)
    select = request.select
    if not found or select.args.get("group") or not (found["what"] or found["add"] or found["too"]):
        return None
    if _NO_COLUMNS.search(found["names"]):
        return None
    parts = [part for part in re.split(r",|\band\b", found["names"]) if part.strip()]
    named = [request.column(part) or request.label(part) for part in parts]
    added = [each for each in named if each is not None]
    counts = _aggregates(select)
    if len(added) != len(named) or not added or (counts and not isinstance(counts[0], exp.Count)):
        return None
    return select.select(*added, append=not (found["what"] or counts), copy=False)


SHAPE_CHANGES: tuple[Change, ...] = (count, limit, sort, extreme, group, aggregate, columns)
_NO_COLUMNS = re.compile(rf"\b(?:{'|'.join(_AGGREGATES)}|number|count|it|that|for|per|by)\b", re.IGNORECASE)
_COUNTED = word_set("number count amount total many copy")


def _aggregates(select: exp.Select) -> list[exp.AggFunc]:
    """The aggregates that the query selects."""
    return [node for each in select.expressions for node in each.find_all(exp.AggFunc)]


def _sort_key(request: Request, words: str, direction: re.Match[str] | None, alphabetical: bool) -> exp.Expr | None:
    """What to sort by: the column that the words name, the only aggregate, the first column if the order is alphabetical, or
    what the adjective compares.
    """
    aggregates = _aggregates(request.select)
    counted = len(aggregates) == 1 and re.search(r"\b(?:number|count) of\b", words, re.IGNORECASE)
    if telling(words) - _COUNTED and not counted:
        return request.column(words)
    if len(aggregates) == 1:
        return aggregates[0].copy()
    if alphabetical:
        first: exp.Expr = request.select.expressions[0].unalias()
        return first.copy()
    return _compared(request, (direction["word"] or direction["from"] or "").lower()) if direction else None


def _compared(request: Request, adjective: str) -> exp.Column | None:
    """The one column that an adjective may compare; among the selected ones, if there are any."""
    words = _COMPARED.get(adjective, frozenset())
    fitting = [
        request.reference(alias, column.name)
        for alias, _, column in request.columns
        if words & name_stems(column.name) or (adjective in _DATES and is_date(column))
    ]
    selected = [each for each in fitting if any(each.name == other.name for other in request.select.expressions)]
    choice = selected or fitting
    return choice[0] if len(choice) == 1 else None


def _group_key(request: Request, words: str) -> exp.Expr | None:
    """The column that the words name, or the year of the only date."""
    column = request.column(words) or request.label(words)
    if column is not None or words.strip().lower() != "year":
        return column
    date = _compared(request, "newest")
    return None if date is None else request.year_of(date)
