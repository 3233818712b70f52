"""The table of rewrite rules, and those that change clauses.

A rule gets what its stage is about, and returns it changed, or None if it has nothing to change:

- `values`: the cell values found in the question. SQL that compares with one that is dropped is planned again.
- `constraints`: what the grammar demands of plan and SQL while the model writes them.
- `sql`: the tree of a written statement. The tree is the rule's own.

Rules of a stage run in the table's order. Two rows of one name are one rule that acts in two stages. A statement's rules run
before the model is asked again; a rule does not guess, and only repairs that run are kept. Training replaces rules: a mistake
of the model is first a matter of its training data.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeVar

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.databases.database import Database
from tools.linking.mentions import (
    Places,
    QuestionContext,
    counted_columns,
    drop_unmeant,
    mentioned_columns,
    mentioned_roles,
    unshared,
)
from tools.linking.word_forms import name_words
from tools.repair.literals import (
    add_genders,
    compare_nulls,
    compare_years,
    move_literals,
    separate_values,
    set_bounds,
    set_wildcards,
)
from tools.repair.names import repair_names, spell_names
from tools.result import Limits, QueryError
from tools.schema import Schema
from tools.sql.join_graph import identifiers
from tools.sql.scope import FromItem, column_ref, one_value, owner, parse_or_nothing, sources, type_kind

Known = set[tuple[str, str]]  # columns whose value a group fixes, as (alias, name) in lower case

_DOWN = re.compile(
    r"\b(?:descending|desc|reverse(?:d)? (?:alphabetical )?order|(?:from )?(?:high|large|old)(?:est)? to)\b", re.I
)
_UP = re.compile(
    r"\b(?:ascending|asc|alphabetical(?:ly)?|lexicographical(?:ly)?|(?:from )?(?:low|small|young)(?:est)? to)\b", re.I
)
_MOST = re.compile(r"\b(?:most|highest|largest|biggest|greatest|maximum|top)\b", re.I)
_LEAST = re.compile(r"\b(?:least|fewest|lowest|smallest|minimum)\b", re.I)
_AMBIGUOUS = re.compile(r"rank|position|place|date|year|time|birth|day|level|order|grade", re.I)  # 1 may be the highest
_EARLY = re.compile(r"\b(?:oldest|earliest)\b", re.I)
_LATE = re.compile(r"\b(?:newest|latest|most recent(?:ly)?)\b", re.I)
_OLD, _YOUNG = re.compile(r"\boldest\b", re.I), re.compile(r"\byoungest\b", re.I)
_BORN = frozenset({"birth", "birthday", "birthdate", "dob"})
_DATED = _BORN | {"date", "year"}
_RECENT = re.compile(r"\b(?:most|least) (?:recent|common|popular|\w+ly)\b|\bat (?:most|least)\b", re.I)


def set_direction(tree: exp.Query, schema: Schema, context: QuestionContext) -> exp.Query | None:
    """Sets the direction of the only ORDER BY to what the question says, if its words allow one direction only.

    Superlatives count only where LIMIT takes the first row, and the key is one for which more is higher:

    >>> from sqlglot import parse_one
    >>> def turned(sql, question):
    ...     tree = set_direction(parse_one(sql), Schema((), "sqlite"), QuestionContext(question))
    ...     return tree and tree.sql("sqlite")
    >>> turned("SELECT name FROM singer ORDER BY age LIMIT 1", "Who has the highest age?")
    'SELECT name FROM singer ORDER BY age DESC LIMIT 1'
    >>> turned("SELECT title FROM song ORDER BY year DESC LIMIT 1", "What is the oldest song?")
    'SELECT title FROM song ORDER BY year LIMIT 1'
    >>> turned("SELECT name FROM song ORDER BY rank LIMIT 1", "The song of highest rank?")  # 1 may be the highest
    """
    orders = list(tree.find_all(exp.Order))
    if len(orders) != 1 or len(orders[0].expressions) != 1:
        return None
    key = orders[0].expressions[0]
    wanted = _said_descending(context.question, key, schema, limited=tree.find(exp.Limit) is not None)
    if wanted is None or bool(key.args.get("desc")) == wanted:
        return None
    key.set("desc", wanted or None)
    if schema.dialect == "sqlite":
        key.set("nulls_first", not wanted)  # SQLite's own order, so that nothing is written about it
    return tree


def _said_descending(question: str, key: exp.Expr, schema: Schema, limited: bool) -> bool | None:
    """Whether the question says descending; None unless all its words say the same."""
    down, up = bool(_DOWN.search(question)), bool(_UP.search(question))
    if not (down or up) and limited:
        down, up = _superlative(question, key.this, schema)
    return down if down != up else None


def _superlative(question: str, key: exp.Expr, schema: Schema) -> tuple[bool, bool]:
    """Whether a superlative of the question says that the first row has the highest key, or the lowest."""
    words = set(name_words(key.name)) if isinstance(key, exp.Column) else set()
    if _is_dated(key, schema):
        young = bool(words & _BORN) and bool(_YOUNG.search(question))
        return young or bool(_LATE.search(question)), bool(_EARLY.search(question))
    if _RECENT.search(question) or _AMBIGUOUS.search(key.sql()):
        return False, False
    old, young = ("age" in words and bool(word.search(question)) for word in (_OLD, _YOUNG))
    return old or bool(_MOST.search(question)), young or bool(_LEAST.search(question))


def _is_dated(key: exp.Expr, schema: Schema) -> bool:
    """Whether the key is a column of dates or years."""
    ref = column_ref(key, schema) if isinstance(key, exp.Column) else None
    table = schema.table(ref[0]) if ref else None
    column = table.column(ref[1]) if table and ref else None
    typed = column is not None and type_kind(column.type) == "time"
    return isinstance(key, exp.Column) and (typed or not _DATED.isdisjoint(name_words(key.name)))


def sum_counted(tree: exp.Query, schema: Schema, context: QuestionContext) -> exp.Query | None:
    """Adds up the column that "how many" or "the most" asks for, in place of the only COUNT: beds are the sum of `beds`, and no
    number of rows. It is one column, unused, of a table in the same FROM; the COUNT is shown without groups, or sorts groups.

    >>> from sqlglot import parse_one
    >>> from tools.schema import Column, Table
    >>> schema = Schema((Table("room", (Column("beds", "INTEGER"), Column("decor", "TEXT"))),), "sqlite")
    >>> tree = parse_one("SELECT COUNT(*) FROM room WHERE decor = 'modern'")
    >>> sum_counted(tree, schema, QuestionContext("How many beds are modern?")).sql()
    "SELECT SUM(beds) FROM room WHERE decor = 'modern'"
    """
    counts = list(tree.find_all(exp.Count))
    select = _counting(counts[0]) if len(counts) == 1 else None
    if select is None:
        return None
    places = [place for each in counted_columns(schema, context.question, context.values) for place in each]
    if len(places) != 1:
        return None
    table, column = places[0]
    every = sources(select, schema)
    own = [(source, source.table) for source in every if source.table and source.table.name.lower() == table]
    if len(own) != 1 or any(name.name.lower() == column for name in tree.find_all(exp.Column)):
        return None
    source, owner = own[0]
    spelled = next(each.name for each in owner.columns if each.name.lower() == column)
    counts[0].replace(exp.Sum(this=exp.column(spelled, table=source.alias if len(every) > 1 else None)))
    return tree


def _counting(count: exp.Expr) -> exp.Select | None:
    """The query without groups that shows the COUNT, or the one with groups that is sorted by it."""
    if isinstance(count.parent, exp.Ordered):
        sorted_ = count.parent_select
        return sorted_ if isinstance(sorted_, exp.Select) and sorted_.args.get("group") else None
    shown = count.parent
    return shown if isinstance(shown, exp.Select) and not shown.args.get("group") else None


def set_groups(tree: exp.Query, schema: Schema, context: QuestionContext) -> exp.Query | None:
    """Groups a query by the table whose columns it shows with aggregates, where its groups fix none of that table's columns:
    a name whose rows fall into several groups, and several of whose values fall into one, would be any one of them.

    >>> from sqlglot import parse_one
    >>> from tools.schema import Column, ForeignKey, Table
    >>> store = Table("store", (Column("id", "INTEGER", primary_key=True), Column("name", "TEXT")))
    >>> columns = Column("boss", "INTEGER"), Column("store", "INTEGER")
    >>> clerk = Table("clerk", columns, (ForeignKey(("store",), "store", ("id",)),))
    >>> tree = parse_one("SELECT store.name, COUNT(*) FROM clerk JOIN store ON clerk.store = store.id GROUP BY clerk.boss")
    >>> set_groups(tree, Schema((store, clerk), "sqlite"), QuestionContext("?")).sql()
    'SELECT store.name, COUNT(*) FROM clerk JOIN store ON clerk.store = store.id GROUP BY store.id'
    """
    changed = [_regrouped(select, schema) for select in list(tree.find_all(exp.Select))]
    return tree if any(changed) else None


def _regrouped(select: exp.Select, schema: Schema) -> bool:
    """Whether the query's groups were changed."""
    group: exp.Group = select.args.get("group") or exp.Group()
    keys = group.expressions
    shown = [column for item in select.expressions if isinstance(column := one_value(item), exp.Column)]
    owners = [owner(column, schema) for column in [*keys, *shown] if isinstance(column, exp.Column)]
    if not keys or not shown or len(owners) < len(keys) + len(shown) or None in owners:
        return False
    aliases = [source.alias.casefold() for source in owners if source]
    of = aliases[-1]
    tables = {source.alias.casefold(): source for source in sources(select, schema)}
    if of in aliases[: len(keys)] or {*aliases[len(keys) :]} != {of} or not {*aliases} <= {*tables}:
        return False
    equal = _equal(select, schema)
    known = _fixed({_named(alias, key) for alias, key in zip(aliases, keys, strict=False)}, equal, tables.values())
    if any(alias == of for alias, _ in known):
        return False
    key = _key(tables[of], equal) or shown[-1]
    group.set("expressions", [key.copy()])
    return True


def _named(alias: str, column: exp.Expr) -> tuple[str, str]:
    return alias, column.name.casefold()


def _equal(select: exp.Select, schema: Schema) -> list[tuple[exp.Column, exp.Column, str, str]]:
    """The pairs of columns that joins and conditions make equal, each with the aliases of their tables."""
    conditions: Iterable[exp.Expr] = filter(
        None, [select.args.get("where"), *(join.args.get("on") for join in select.args.get("joins") or [])]
    )
    found = []
    for node in (each for on in conditions for each in on.find_all(exp.EQ)):
        left, right = node.this, node.expression
        if isinstance(left, exp.Column) and isinstance(right, exp.Column):
            first, second = owner(left, schema), owner(right, schema)
            if first and second:
                found.append((left, right, first.alias.casefold(), second.alias.casefold()))
    return found


def _fixed(
    known: Known, equal: Sequence[tuple[exp.Column, exp.Column, str, str]], tables: Collection[FromItem]
) -> Known:
    """All columns that are fixed where those in `known` are: those that joins make equal to one, and a row's whose key is."""
    before: Known = set()
    while known != before:
        before = set(known)
        for left, right, first, second in equal:
            pair = {_named(first, left), _named(second, right)}
            known = known | pair if pair & known else known
        for source in tables:
            alias = source.alias.casefold()
            columns = source.table.columns if source.table else ()
            primary = {(alias, column.name.casefold()) for column in columns if column.primary_key}
            if primary and primary <= known:
                known = known | {(alias, column.name.casefold()) for column in columns}
    return known


def _key(source: FromItem, equal: Sequence[tuple[exp.Column, exp.Column, str, str]]) -> exp.Expr | None:
    """What tells the rows of a table apart: its primary key, or the column by which it is joined."""
    primary = [column.name for column in source.table.columns if column.primary_key] if source.table else []
    if len(primary) == 1:
        return exp.column(primary[0], source.alias, quoted=not primary[0].isidentifier())
    alias = source.alias.casefold()
    ends = [end for left, right, first, second in equal for end, of in ((left, first), (right, second)) if of == alias]
    return ends[0] if ends else None


_identifiers = lru_cache(maxsize=16)(identifiers)


@dataclass(frozen=True, slots=True)
class QuestionConstraints:
    """All names are in lower case."""

    sure: tuple[Places, ...] = ()  # of each set the plan names one column or, with "" for a column, one table
    shadowed: Places = frozenset()  # columns that the plan may not name
    roles: Places = frozenset()  # foreign keys whose roles were said: joins follow them
    identifiers: Places = (
        frozenset()
    )  # columns that are not added up, nor compared by `<` or tested unless they were said
    dated: bool = False  # whether date columns are compared with texts only if the question has digits

    def of_plans(self) -> "QuestionConstraints":
        """Those that the grammar of plans reads."""
        return QuestionConstraints(sure=self.sure, shadowed=self.shadowed)

    def of_sql(self) -> "QuestionConstraints":
        """Those that the grammar of SQL reads."""
        return replace(self, sure=(), shadowed=frozenset())

    def requiring(self, places: Iterable[Places]) -> "QuestionConstraints":
        """These, and that the plan has something of each set."""
        return replace(self, sure=tuple(dict.fromkeys((*self.sure, *places))))


def values_required(schema: Schema, context: QuestionContext) -> QuestionConstraints:
    """The constraints before any rule: the plan has a column for each value that the question surely names."""
    every = frozenset((table.name.lower(), column.name.lower()) for table in schema.tables for column in table.columns)
    return QuestionConstraints().requiring(filter(None, (places & every for places in context.sure())))


def require_named(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """The plan names the columns whose names the question says in full, and none that they shadow."""
    found = mentioned_columns(schema, context.question, context.values)
    if not (found.named or found.shadowed):
        return None
    return replace(constraints.requiring(found.named), shadowed=found.shadowed)


def require_counted(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """The plan has a table with the column of which "how many" asks the sum."""
    counted = counted_columns(schema, context.question, context.values)
    return constraints.requiring(map(_tables, counted)) if counted else None


def follow_roles(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """Joins follow the keys whose roles the question says, and the plan has their tables."""
    roles = mentioned_roles(schema, context.question)
    required = constraints.requiring(_tables({place}) for place in sorted(unshared(roles)))
    return replace(required, roles=roles) if roles else None


def spare_identifiers(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """Identifiers are neither amounts nor, unless the question names them, tested."""
    return replace(constraints, identifiers=_identifiers(schema))


def bind_dates(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """A date column is compared with dates."""
    return replace(constraints, dated=True)


def _tables(places: Iterable[tuple[str, str]]) -> Places:
    return frozenset((table, "") for table, _ in places)


Stage = Literal["values", "constraints", "sql"]
Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Rule:
    """`apply(subject, schema, context)`: the changed subject, or None if nothing changes. `doc`: what holds after it."""

    name: str
    stage: Stage
    apply: Callable[[Any, Schema, QuestionContext], Any]
    doc: str


RULES = (
    Rule("meant", "values", drop_unmeant, "A plain word of the schema is no cell value."),
    Rule("named", "constraints", require_named, "A plan names the columns whose names the question says in full."),
    Rule("counted", "constraints", require_counted, "It has the table of the column that 'how many beds' adds up."),
    Rule("roles", "constraints", follow_roles, "Joins follow the foreign key whose role is said: a destination."),
    Rule("keys", "constraints", spare_identifiers, "Identifiers are not added up, measured, or tested unless named."),
    Rule("dates", "constraints", bind_dates, "A date column is compared with texts only if the question has digits."),
    Rule("dates", "sql", compare_years, "A date is compared with a year by its year."),
    Rule("literals", "sql", move_literals, "A literal stands at the column that holds it, in all spellings that it has there."),
    Rule("intersections", "sql", separate_values, "No column has two values at once: an INTERSECT, or an IN."),
    Rule("nulls", "sql", compare_nulls, "NULL is tested by IS NULL."),
    Rule("grouped", "sql", set_groups, "Groups fix what is shown with aggregates."),
    Rule("counted", "sql", sum_counted, "'How many beds' is the sum of the beds."),
    Rule("genders", "sql", add_genders, "A gender that is named is a condition."),
    Rule("direction", "sql", set_direction, "ORDER BY has the direction that the question says."),
    Rule("bounds", "sql", set_bounds, "'30 or younger' is <= 30."),
    Rule("wildcards", "sql", set_wildcards, "LIKE has the wildcards of 'starts with'."),
    Rule("spelling", "sql", spell_names, "Names are written as the schema writes them."),
)
RULE_NAMES = tuple(dict.fromkeys(rule.name for rule in RULES))


def rules_of(stage: Stage, context: QuestionContext) -> tuple[Rule, ...]:
    """The rules of a stage that are not switched off."""
    return tuple(rule for rule in RULES if rule.stage == stage and rule.name not in context.without)


def applied(rules: Sequence[Rule], subject: Subject, schema: Schema, context: QuestionContext) -> Subject:
    """What the rules make of it, one after the other."""
    for rule in rules:
        changed = rule.apply(subject, schema, context)
        subject = subject if changed is None else changed
    return subject


def repair_query(
    sql: str, database: Database, context: QuestionContext, limits: Limits
) -> tuple[str, QueryError | None]:
    """The query, and the error that is left, if any.

    The rules of the stage "sql" rewrite its tree together. What they make is bound once; only if that fails, each rule has to
    run by itself. Names that do not resolve are repaired if the engine rejects the query.
    """
    schema, rules = database.schema(), rules_of("sql", context)

    def runs(text: str) -> bool:
        return database.explain(text, limits) is None

    better = rewritten(sql, schema, context, rules)
    if better is not None and runs(better):
        return better, None
    error = database.explain(sql, limits)
    if error is None:
        return (sql if better is None else _one_by_one(sql, schema, context, rules, runs)), None
    named = repair_names(sql, error, schema)
    if named is None or not runs(named):
        return sql, error
    better = rewritten(named, schema, context, rules)
    if better is None or runs(better):
        return better or named, None
    return _one_by_one(named, schema, context, rules, runs), None


def rewritten(sql: str, schema: Schema, context: QuestionContext, rules: Sequence[Rule]) -> str | None:
    """The query after these rules, in their order; None if none of them changes it, or it is not one query."""
    trees = parse_or_nothing(sql, schema.dialect)
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        return None
    tree = trees[0]
    try:
        for rule in rules:
            changed = rule.apply(tree.copy(), schema, context)  # a rule may leave traces in a tree that it gives up
            tree = tree if changed is None else changed
        return None if tree is trees[0] else tree.sql(schema.dialect)
    except (
        RecursionError,
        AttributeError,
        SqlglotError,
    ):  # nested a hundred deep; `DATETIME()` cannot be written for DuckDB
        return None


def _one_by_one(
    sql: str, schema: Schema, context: QuestionContext, rules: Sequence[Rule], runs: Callable[[str], bool]
) -> str:
    """The query after those rules whose results run."""
    for rule in rules:
        better = rewritten(sql, schema, context, [rule])
        sql = better if better is not None and runs(better) else sql
    return sql
