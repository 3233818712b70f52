"""Follow-ups that change a query's order or shape, or compare former queries; see `adapt_filter` for what they have in common.

Order: sort, keep the first, keep the one that has the most, turn the order. Shape: count, group, another aggregate, or more
columns. `compare_queries` makes one query of several former ones that differ in one value: "which of the two has more?" after a
count for Portugal and one for Germany.
"""

import re
from collections.abc import Mapping, Sequence

from sqlglot import exp

from tools.adapt.adapt_filter import RESULT, Change, Request, aggregates_of, is_date, telling
from tools.linking.word_forms import NUMBER_WORDS, name_stems, stem, word_set
from tools.sql.scope import parse_or_nothing

_MORE = r"more|higher|larger|bigger|greater|most|highest|largest|biggest|greatest"
_LESS = r"fewer|less|lower|smaller|fewest|least|lowest|smallest"
_WHICH = re.compile(
    r"[\s.…]*(?:(?:and|so|but|ok|now)[\s,]+)*(?:which|who)(?: one)?(?: of (?:the|them|those|these)(?: (?P<number>[a-z]+))?"
    rf"(?: [a-z]+)?)? (?:is|are|has|have|had|got|was|were) (?:the )?(?:(?P<more>{_MORE})|(?P<less>{_LESS}))(?: of them)?"
    r"[\s?.!]*",
    re.IGNORECASE,
)
_OF_TWO = ("more", "higher", "larger", "bigger", "greater", "fewer", "less", "lower", "smaller")


def compare_queries(question: str, formers: Sequence[str], dialect: str) -> str | None:
    """The query that answers which of the former ones gives more, or less; None if that is not asked, or not certain.

    `formers`: the SQL of the conversation, the newest last.

    >>> count = "SELECT COUNT(*) FROM customers WHERE country = '{}'"
    >>> formers = [count.format("Portugal"), count.format("Germany")]
    >>> compare_queries("Which of the two has more?", formers, "duckdb")
    "SELECT country FROM customers WHERE country IN ('Portugal', 'Germany') GROUP BY country ORDER BY COUNT(*) DESC LIMIT 1"
    >>> compare_queries("Which of the three has the most?", formers, "duckdb") is None
    True
    """
    found = _WHICH.fullmatch(question)
    number = _number(found) if found else 0
    if found is None or number < 2 or len(formers) < number:
        return None
    asked = [_asked(sql, dialect) for sql in formers[-number:]]
    values = [each[1] for each in asked if each]
    if len(values) < number or len({each[0] for each in asked if each}) > 1 or len(set(values)) < number:
        return None
    return _ranking(formers[-1], values, found["more"] is not None, dialect)


def _number(found: re.Match[str]) -> int:
    """How many former answers are compared; 0 if that is not said."""
    word = (found["number"] or "").lower()
    if word in NUMBER_WORDS:
        return NUMBER_WORDS.index(word)
    return 2 if (found["more"] or found["less"]).lower() in _OF_TWO else 0


def _asked(sql: str, dialect: str) -> tuple[str, str] | None:
    """An aggregate of rows with one text condition: the query without its value, and the value."""
    trees = parse_or_nothing(sql, dialect)
    condition = _condition(trees[0]) if len(trees) == 1 else None
    if condition is None or len(trees[0].expressions) != 1 or len(aggregates_of(trees[0])) != 1:
        return None
    value = str(condition.expression.this)
    condition.set("expression", exp.Placeholder())
    return trees[0].sql(dialect), value


def _condition(tree: exp.Expr) -> exp.EQ | None:
    """The only comparison of a column with a text, in a query without groups and limits."""
    if not isinstance(tree, exp.Select) or any(tree.args.get(part) for part in ("group", "limit", "having", "with_")):
        return None
    where = tree.args.get("where")
    texts = [each for each in where.find_all(exp.EQ) if each.expression.is_string] if where else []
    return texts[0] if len(texts) == 1 and isinstance(texts[0].this, exp.Column) else None


def _ranking(former: str, values: Sequence[str], descending: bool, dialect: str) -> str:
    select = parse_or_nothing(former, dialect)[0]
    condition = _condition(select)
    assert isinstance(select, exp.Select) and condition is not None
    column, measure = condition.this.copy(), aggregates_of(select)[0].copy()
    condition.replace(column.copy().isin(*(exp.Literal.string(value) for value in values)))
    ordered = exp.Ordered(this=measure, desc=descending or None, nulls_first=False)
    ranked = select.select(column, append=False, copy=False).group_by(column.copy(), copy=False)
    return ranked.order_by(ordered, copy=False).limit(1, copy=False).sql(dialect)


_NUMBERS = {word: number for number, word in enumerate(NUMBER_WORDS[:11])}
_LIMIT = re.compile(
    rf"(?:(?:show|give|list|make|keep|what are|what is)(?: me| it| that)? )?"
    r"(?:only |just )?(?:the )?(?:top|first|best) (?P<number>\w+)"
    rf"(?: (?:of {RESULT}|rows|results|ones))?",
    re.IGNORECASE,
)
_SORT = re.compile(
    rf"(?:the same,? )?(?:(?:list|show|give me) {RESULT} )?(?:sort|order|rank|arrange)(?:ed)?(?: {RESULT})?"
    r"\s*(?:by )?(?P<key>.*)",
    re.IGNORECASE,
)
_DOWN = r"highest|largest|biggest|longest|latest|newest|most recent|most expensive|dearest|youngest|best|most|high"
_UP = r"lowest|smallest|shortest|earliest|oldest|cheapest|least expensive|worst|fewest|least|low"
_DESCENDING = re.compile(
    rf"\b(?:in )?(?:descending(?: order)?|desc)\b|\b(?:the )?(?P<word>{_DOWN})(?: ones?| (?P<noun>[a-z]+))? first\b"
    rf"|\b(?:from )?(?:the )?(?P<from>{_DOWN}) to (?:the )?(?:{_UP})\b|\bz to a\b|\bin reverse\b",
    re.IGNORECASE,
)
_ASCENDING = re.compile(
    rf"\b(?:in )?(?:ascending(?: order)?|asc)\b|\b(?:the )?(?P<word>{_UP})(?: ones?| (?P<noun>[a-z]+))? first\b"
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
    r"(?:which|what|who)(?: one| of them| of those)? "
    r"(?:is|are|has|have|had|got|gets|was|were|held|sold|hosted|took|made|received|bought|won|played) (?:the )?"
    r"(?P<word>most|fewest|least|highest|lowest|largest|smallest)(?: of (?:them|all))?",
    re.IGNORECASE,
)
_OPPOSITE = re.compile(rf"(?:the )?(?:ones? with )?(?:the )?(?P<word>{_DOWN}|{_UP})(?: ones?)?", re.IGNORECASE)
_COUNTED = word_set("number count amount total many copy")


def limit(request: Request) -> exp.Query | None:
    """Keeps the first rows: "only the top three".

    Only a sorted list has first rows:

    >>> from tools.adapt.adapt_filter import adapt_query
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

    >>> from tools.adapt.adapt_filter import adapt_query
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
    direction = descending or ascending
    if direction and direction["noun"] and not _is_of_rows(direction["noun"], request):
        return None
    node = _sort_key(request, key, direction, _ALPHABETICAL.search(said) is not None)
    if node is None:
        return None
    ordered = exp.Ordered(this=node, desc=True if descending else None, nulls_first=not descending)
    return request.select.order_by(ordered, append=False, copy=False)


def extreme(request: Request) -> exp.Query | None:
    """Keeps the group with the highest or lowest aggregate: "which one has the most?" after a list of groups.

    The groups are sorted by their count, and the first is kept:

    >>> from tools.adapt.adapt_filter import adapt_query
    >>> from tools.schema import Column, Schema, Table
    >>> shop = Schema((Table("albums", (Column("label", "TEXT"),)),), "sqlite")
    >>> adapt_query("Which one has the most?", "SELECT label, COUNT(*) FROM albums GROUP BY label", (), shop, [extreme])
    'SELECT label FROM albums GROUP BY label ORDER BY COUNT(*) DESC LIMIT 1'
    """
    found = _EXTREME.fullmatch(request.core)
    select, aggregates = request.select, aggregates_of(request.select)
    groups = [each for each in select.expressions if not aggregates_of(each)]
    if not found or len(aggregates) != 1 or not select.args.get("group") or not groups:
        return None
    descending = found["word"].lower() in ("most", "highest", "largest")
    ordered = exp.Ordered(this=aggregates[0].copy(), desc=descending or None, nulls_first=not descending)
    return (
        select.select(*groups, append=False, copy=False)
        .order_by(ordered, append=False, copy=False)
        .limit(1, copy=False)
    )


def opposite(request: Request) -> exp.Query | None:
    """Turns the order of a list that keeps its first rows: "and the fewest?" after what has the most.

    An adjective that compares something else than the order does is left alone:

    >>> from tools.adapt.adapt_filter import adapt_query
    >>> from tools.schema import Column, Schema, Table
    >>> shop = Schema((Table("albums", (Column("title", "TEXT"), Column("price", "REAL"))),), "duckdb")
    >>> dearest = "SELECT title FROM albums ORDER BY price DESC LIMIT 1"
    >>> adapt_query("And the cheapest?", dearest, (), shop, [opposite])
    'SELECT title FROM albums ORDER BY price LIMIT 1'
    >>> adapt_query("And the longest?", dearest, (), shop, [opposite]) is None
    True
    """
    found = _OPPOSITE.fullmatch(request.core)
    order = request.select.args.get("order")
    keys = order.expressions if order and request.select.args.get("limit") else []
    if not found or len(keys) != 1 or not _compares(found["word"].lower(), keys[0].this, request):
        return None
    descending = re.fullmatch(_DOWN, found["word"], re.IGNORECASE) is not None
    if descending == bool(keys[0].args.get("desc")):
        return None
    ordered = exp.Ordered(this=keys[0].this.copy(), desc=descending or None, nulls_first=False)
    return request.select.order_by(ordered, append=False, copy=False)


ORDER_CHANGES: tuple[Change, ...] = (limit, sort, extreme, opposite)


def _compares(adjective: str, key: exp.Expr, request: Request) -> bool:
    """Whether an adjective may compare what the rows are sorted by; "highest" compares anything."""
    if adjective not in _COMPARED and adjective not in _DATES:
        return True
    declared = request.declared(key) if isinstance(key, exp.Column) else None
    words = _COMPARED.get(adjective, frozenset())
    return declared is not None and bool(words & name_stems(key.name) or (adjective in _DATES and is_date(declared)))


def _is_of_rows(noun: str, request: Request) -> bool:
    """Whether a noun is the name of a table that the query reads."""
    return any(stem(noun.lower()) in name_stems(table.name) for table in request.tables.values())


def _sort_key(request: Request, words: str, direction: re.Match[str] | None, alphabetical: bool) -> exp.Expr | None:
    """What to sort by: the column that the words name, the only aggregate, the first column if the order is alphabetical, or
    what the adjective compares.
    """
    aggregates = aggregates_of(request.select)
    counted = len(aggregates) == 1 and re.search(r"\b(?:number|count) of\b", words, re.IGNORECASE)
    if telling(words) - _COUNTED and not counted:
        return request.column(words)
    if len(aggregates) == 1:
        return aggregates[0].copy()
    if alphabetical:
        first: exp.Expr = request.select.expressions[0].unalias()
        return first.copy()
    return compared(request, (direction["word"] or direction["from"] or "").lower()) if direction else None


def compared(request: Request, adjective: str) -> exp.Column | None:
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

    >>> from tools.adapt.adapt_filter import adapt_query
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

    >>> from tools.adapt.adapt_filter import adapt_query
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

    >>> from tools.adapt.adapt_filter import adapt_query
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

    >>> from tools.adapt.adapt_filter import adapt_query
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

    >>> from tools.adapt.adapt_filter import adapt_query
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

    >>> from tools.adapt.adapt_filter import adapt_query
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
