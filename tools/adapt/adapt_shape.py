"""Changes of a query's shape for which a short second question asks: count, group, another aggregate, or more
columns. See `tools.adapt.adapt_query` for what they have in common."""

import re
from collections.abc import Mapping

from sqlglot import exp

from tools.adapt.adapt_order import compared
from tools.adapt.adapt_query import RESULT, Change, Request, aggregates_of, telling
from tools.linking.word_forms import NUMBER_WORDS, name_stems, stem

_COUNT = re.compile(
    rf"(?:so )?how many(?: of {RESULT})?(?: (?:is|are|was|were|do we have))?(?: (?:that|there|they|those|these|it|of them))?"
    rf"(?: in (?:total|all)| altogether)?|(?:just )?count {RESULT}"
    rf"|(?:just )?(?:give me |show )?(?:the|their) (?:number|count)(?: of {RESULT})?",
    re.IGNORECASE,
)
_GROUP = re.compile(
    rf"(?:(?:how (?:does|do) {RESULT} (?=break|split|divide))?(?:show|split|break|group|give|divide|do|list|count|what is)"
    rf"(?: me)? )?(?:(?:{RESULT}|(?P<same>the same(?: top (?P<first>\w+)| list| ranking)?(?:,? but)?)) )?(?:down |up |out )?"
    r"(?:by|per|for each|for every|in each)(?: each)? (?P<key>[\w' -]+)",
    re.IGNORECASE,
)
_NAMED = re.compile(  # the names of what is grouped by: "by store, with the store's name"
    r"(?:[\s,.?;(]+(?:(?:with|by|show|give me|i(?:'d| would) like|using)\s+)?|\s+(?:with|by)\s+)"
    r"(?:(?:the|its|their)\s+)?(?:(?P<owner>\w+)(?:['’]s)?\s+)?names?(?:\s+please)?\)?",
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
_WHEN = re.compile(
    r"(?:(?:show|list|give|add|include|tell)(?: me)? )?(?:also )?(?:the (?:day|date|time)s? )?(?:when |on which |that )?"
    r"(?:each(?: of them)?|they|he|she|it|these|those)(?: was| were| got| has| have)? (?P<verb>[a-z]+)"
    r"(?:[, ]+(?:too|as well|also))?",
    re.IGNORECASE,
)
_HOW_MANY_EACH = re.compile(
    r"(?:(?:show|list|give|add|include|tell)(?: me)? )?(?:also )?(?:how many|the number of) (?P<noun>[a-z]+)"
    r" (?:each(?: of them| one)?|they(?: each)?) (?:has|have|had|got)(?:[, ]+(?:too|as well|also))?",
    re.IGNORECASE,
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
    if not _COUNT.fullmatch(request.core) or (aggregates_of(select) and not select.args.get("group")):
        return None
    if any(select.args.get(part) for part in ("limit", "distinct", "group", "having")):
        return exp.select(exp.Count(this=exp.Star())).from_(select.subquery("answer"))
    select.set("order", None)
    return select.select(exp.Count(this=exp.Star()), append=False, copy=False)


def group(request: Request) -> exp.Query | None:
    """Groups the only aggregate by a column, instead of the column by which it is grouped, if there is one.

    An average of all albums becomes one for each label:

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
    >>> shop = Schema((Table("albums", (Column("label", "TEXT"), Column("price", "REAL"))),), "sqlite")
    >>> adapt_query("And by label?", "SELECT AVG(price) FROM albums", (), shop, [group])
    'SELECT label, AVG(price) FROM albums GROUP BY label'
    """
    found, named = _group_words(request.core)
    select, aggregates = request.select, aggregates_of(request.select)
    key = _group_key(request, found["key"], named) if found else None
    grouped = select.args.get("group")
    former = grouped.expressions if grouped else []
    kept = [each for each in select.expressions if aggregates_of(each)]
    if not found or key is None or len(former) > 1 or (select.args.get("limit") and not _keeps_limit(found, select)):
        return None
    if len(aggregates) != 1 and not (found["same"] and not kept):
        return None
    key_last = bool(former and kept) and select.expressions[0] is kept[0]
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
    nodes = aggregates_of(request.select)
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
    counts = aggregates_of(select)
    if len(added) != len(named) or not added or (counts and not isinstance(counts[0], exp.Count)):
        return None
    return select.select(*added, append=not (found["what"] or counts), copy=False)


def dates_too(request: Request) -> exp.Query | None:
    """Lists the day on which something happened to the rows, too: "add the day they were hired".

    The date's name has the verb:

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
    >>> staff = Schema((Table("employees", (Column("name", "TEXT"), Column("hired_on", "DATE"))),), "sqlite")
    >>> adapt_query("Add the day each of them was hired.", "SELECT name FROM employees", (), staff, [dates_too])
    'SELECT name, hired_on FROM employees'
    """
    found = _WHEN.fullmatch(request.core)
    verb = telling(found["verb"]) if found else frozenset()
    dates = [date for date in request.dates if verb and verb <= name_stems(date.name)]
    if len(dates) != 1 or request.select.args.get("group") or aggregates_of(request.select):
        return None
    return request.select.select(dates[0], copy=False)


def counts_too(request: Request) -> exp.Query | None:
    """Counts the rows of each group, too: "show how many albums each of them has".

    The noun is the table whose rows are grouped:

    >>> from tools.adapt.adapt_query import adapt_query
    >>> from tools.schema import Column, Schema, Table
    >>> shop = Schema((Table("albums", (Column("label", "TEXT"),)),), "sqlite")
    >>> former = "SELECT label FROM albums GROUP BY label ORDER BY COUNT(*) DESC LIMIT 3"
    >>> adapt_query("Show how many albums each of them has, too.", former, (), shop, [counts_too])
    'SELECT label, COUNT(*) FROM albums GROUP BY label ORDER BY COUNT(*) DESC LIMIT 3'
    """
    found = _HOW_MANY_EACH.fullmatch(request.core)
    table = request.rows_of
    if not found or table is None or stem(found["noun"].lower()) not in name_stems(table.name):
        return None
    if aggregates_of(request.select) or not request.select.args.get("group"):
        return None
    return request.select.select(exp.Count(this=exp.Star()), copy=False)


SHAPE_CHANGES: tuple[Change, ...] = (count, group, aggregate, columns, dates_too, counts_too)
_NO_COLUMNS = re.compile(rf"\b(?:{'|'.join(_AGGREGATES)}|number|count|it|that|for|per|by)\b", re.IGNORECASE)


def _group_words(core: str) -> tuple[re.Match[str] | None, bool]:
    """The words of a request to group, without those that ask for the names of what it is grouped by; and if there are such."""
    for tail in _NAMED.finditer(core):
        found = _GROUP.fullmatch(re.sub(r",? please$", "", core[: tail.start()]))
        if tail.end() == len(core) and found and telling(tail["owner"] or "") <= telling(found["key"]):
            return found, True
    return _GROUP.fullmatch(core), False


def _keeps_limit(found: re.Match[str], select: exp.Select) -> bool:
    """Whether the same number of groups is asked for: "the same top five, but by city"."""
    said = (found["first"] or "").lower()
    number = str(NUMBER_WORDS.index(said)) if said in NUMBER_WORDS else said
    kept = select.args["limit"].expression
    return bool(select.args.get("group") and found["same"]) and number in ("", kept.name if kept else "")


def _group_key(request: Request, words: str, named: bool) -> exp.Expr | None:
    """The column that the words name, the name of what they name, or the year of the only date. `named`: a name is wanted."""
    column = (None if named else request.column(words)) or request.label(words)
    if column is None and not named:
        column = request.column_of_parent(words)
    if column is not None or words.strip().lower() != "year":
        return column
    date = compared(request, "newest")
    return None if date is None else request.year_of(date)
