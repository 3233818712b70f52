"""The grammars as text: of SQL, and of a plan.

Operators have one precedence, because a mask need not know how an expression groups. What matters is how an expression
starts: a bare number in ORDER BY is a position, a bare column in SELECT is exported under its name. An action that may
fail comes before the word that leads to it, so that no word leads to a dead end. Repetitions that people keep short have
a limit (sources of FROM, conditions joined by AND, terms of a sum): a small model that has lost its way would otherwise
repeat itself up to the length limit.

With facts, each table must join with those before it, and for each value that the question surely names, the plan must
name a column that holds it. While such a column is missing, `MOST_COLUMNS` and `MOST_TABLES` limit what else is planned.

In the skeleton, `_` stands for names and literals. It is a sketch, so only its words and its parentheses are checked.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from agent.grammar.actions import never, room
from agent.grammar.facts import Facts
from agent.grammar.notation import Action, End, Names, Step, Symbol
from agent.grammar.scope import Catalog, FromItem, Relation, Scope, relations_of
from agent.grammar.words import FUNCTIONS, WordSet, lowered, plain_set
from agent.prompts.slots import quoted_name
from tools.schema import ColumnRef, Schema

COMMON = """
statement = query ';'? <end>
query = ({deeper} WITH cte ({room} ',' cte)*)? arm (order? limit? | compound compound* output_order? limit?)
cte = <cte_name> AS {cte_query} '(' query ')' {close} {bind_cte}
arm = SELECT {arm} DISTINCT? item ({another} ',' item)* {listed} (FROM source join* {joined} where? group? | {no_from})
compound = {room} (UNION ALL? {compound} | (INTERSECT | EXCEPT) {alike}) arm

item = {item} ({star} '*' | <starred> | <new_starred> | entry {about} item_rest | other {silent} tail named?)
entry = <entry_column> | <entry_qualifier> | <new_entry_qualifier>
item_rest = named | {name_column} | more named?
named = AS <output_alias>

source = <table> | {from_query} '(' query ')' {close} <placed>
join = {join} ({product} (',' {comma} source | CROSS JOIN source) | joined)
join_kind = (INNER | LEFT OUTER? | RIGHT OUTER? | FULL OUTER?)?
condition = ON {on} <join_on> | {sharing} USING '(' <shared> ')'
more_conditions = ({further} AND expr)?

where = {where} WHERE expr
group = GROUP BY {group} group_key ({room} ',' group_key)* {grouped} ({having} HAVING expr)?
group_key = <position> | sortable
order = {order} ORDER BY order_key ({room} ',' order_key)*
order_key = (<position> | sortable) direction
output_order = {room} ORDER BY output_key ({room} ',' output_key)*
output_key = (<output_position> | <output>) direction
direction = (ASC | DESC)? (NULLS (FIRST | LAST))?

expr = {room} NOT expr | operand tail
tail = more?
more = {further} term {silent} tail | {compared} compared joint? | joint
term = calc operand | {apart} ('-' | '/') operand
compared = compare arith | IS NOT? NULL | negatable | NOT negatable
joint = {further} (AND | OR) expr
negatable = {measured} BETWEEN arith AND arith | IN members | matching
arith = (column | <told>) ({further} term)*
text = (column | <pattern>) ({further} term)*
compare = '=' | '!=' | '<>' | {measured} ('<' | '<=' | '>' | '>=')
members = {member_query} '(' query ')' {close} | '(' arith ({room} ',' arith)* ')'
tested = {room} column {about} compared joint?
operand = column {about} | other {silent}
column = <column> | <qualifier> | <new_qualifier>
other = literal | keyed | '-' (<number> | column | keyed)
computed = keyed | NULL | CURRENT_DATE | CURRENT_TIMESTAMP | TRUE | FALSE
keyed = <function> | case | cast | {any_query} EXISTS '(' query ')' {close} | subquery | {enter} '(' expr ')' {leave}
subquery = {one_column} '(' query ')' {close}
sortable = column {about} tail | sorted {silent} tail
sorted = <function> | case | cast | subquery | {enter} '(' sortable ')' {leave}
case = {enter} CASE expr? when ({room} when)* (ELSE expr)? END {leave}
when = WHEN expr THEN expr
cast = {enter} CAST '(' argument AS type ')' {leave}
argument = {room} expr | {brief} operand

window = OVER '(' (PARTITION BY expr ({room} ',' expr)*)? (ORDER BY frame_key ({room} ',' frame_key)*)? ')'
filter = FILTER '(' WHERE expr ')'
frame_key = expr direction
"""

SQLITE = """
joined = join_kind JOIN source ({unbound} | condition)
limit = {room} LIMIT <number> (OFFSET <number> | ',' <number>)?
literal = <number> | <string> | NULL | TRUE | FALSE | CURRENT_DATE | CURRENT_TIMESTAMP
type = INTEGER | INT | REAL | TEXT | FLOAT | DOUBLE | NUMERIC | BIGINT | DATE | DATETIME | (DECIMAL | VARCHAR) precision?
precision = '(' <number> (',' <number>)? ')'
matching = LIKE text (ESCAPE <escape>)? | GLOB {silent} arith
calc = '+' | '*' | '%' | '||'
moment = {dated} column {about} <spelled> | (<function> | cast) ({further} term {silent})* <since> | subquery | instant
instant = <instant> (',' <string>)* | CURRENT_DATE | CURRENT_TIMESTAMP
glued = '||' operand {silent} ('||' operand {silent})*
"""

DUCKDB = """
joined = join_kind JOIN source condition
limit = {room} LIMIT <number> (OFFSET <number>)?
literal = <number> | <string> | NULL | TRUE | FALSE | CURRENT_DATE | CURRENT_TIMESTAMP | (DATE | TIMESTAMP) <string> | interval
typed = '::' type
interval = INTERVAL (<string> unit? | <number> unit)
unit = SECOND | MINUTE | HOUR | DAY | WEEK | MONTH | QUARTER | YEAR
type = INTEGER | INT | BIGINT | DOUBLE | REAL | FLOAT | TEXT | VARCHAR | DATE | TIMESTAMP | TIME | BOOLEAN | DECIMAL precision?
precision = '(' <number> ',' <number> ')'
matching = (LIKE | ILIKE) text (ESCAPE <escape>)?
calc = '+' | '*' | '//' | '%' | '||'
operand = (column {about} | other {silent}) ({room} {silent} typed)*
more = ({room} {silent} typed | {further} term {silent}) tail | {compared} compared joint? | joint
cast = {enter} ((CAST | TRY_CAST) '(' argument AS type | EXTRACT '(' unit FROM expr) ')' {leave}
"""


PLAN = """
statement = planned ({table_left} ';' planned)* {covered} '|' SELECT piece ({room} piece)* <end>
planned = <table> ({column_left} ':' <column> ({column_left} ',' <column>)*)?
piece = <word> | '(' ({room} piece)* ')' | ',' | '*' | '=' | '!=' | '<>' | '<' | '<=' | '>' | '>=' | calc
calc = '+' | '-' | '/' | '//' | '%' | '||'
"""

MOST_COLUMNS, MOST_TABLES = 3, 3  # columns of a table, and tables of the plan, while a value is missing
_WORDS = """
    _ all and any as asc between bigint boolean by case cast cross current_date current_timestamp date datetime
    day decimal desc distinct double else end escape except exists extract false filter first float following from full
    glob group having hour ilike in inner int integer intersect interval is join last left like limit minute month not
    null nulls numeric offset or order outer over partition preceding quarter real recursive right rows second select
    text then time timestamp true try_cast unbounded union using varchar week when where with year
"""


def plan_catalog(schema: Schema, facts: Facts | None = None) -> Catalog:
    """The schema's tables as a catalog for plans."""
    return Catalog(
        relations_of(schema),
        "plan",
        FUNCTIONS.get(schema.dialect) or FUNCTIONS["sqlite"] | FUNCTIONS["duckdb"],
        facts,
    )


@lru_cache(maxsize=4096)
def _spelled(names: tuple[str, ...]) -> WordSet:
    """Names as the prompt writes them. Of two that differ only in case, the first."""
    return WordSet({lowered(quoted_name(name)): (name.lower(), quoted_name(name)) for name in reversed(names)})


def _missing(scope: Scope) -> list[frozenset[ColumnRef]]:
    """For each value that no column of the plan holds yet: the columns that hold it."""
    facts = scope.catalog.facts
    return [places for places in facts.constraints.sure if not places & scope.planned] if facts else []


def _untaken(scope: Scope) -> tuple[Relation, ...]:
    taken = {source.alias for source in scope.sources}
    return tuple(table for table in scope.catalog.tables if table.key not in taken)


def _tables_left(scope: Scope) -> tuple[str, ...]:
    """The tables that may come next: those that join and, once there are `MOST_TABLES`, those that lead to a missing value."""
    able, facts = _untaken(scope), scope.catalog.facts
    if facts is None or not scope.sources:
        return tuple(table.name for table in able)
    here = frozenset(source.alias for source in scope.sources)
    wanted = {table for places in _missing(scope) for table, _ in places}
    near = [table for table in able if _follows(scope, facts, here, table, wanted)] or able
    if wanted and len(scope.sources) >= MOST_TABLES:
        leading = [t for t in near if t.key in wanted] or [
            t for t in near if any(facts.joins.between(t.key, one) for one in wanted)
        ]
        near = leading or near
    return tuple(table.name for table in near)


def _follows(scope: Scope, facts: Facts, here: frozenset[str], table: Relation, wanted: set[str]) -> bool:
    """Whether a table may come after those that are `here`: it joins with one of them or, if that is so, with no table at all.
    A table that is wanted may come as well if it has a column that is planned, since it may be the other half of a set.
    """
    half = table.key in wanted and any(column in table.columns for _, column in scope.planned)
    return half or facts.joins.adjoins(here, table.key)


def _columns_left(scope: Scope) -> tuple[str, ...]:
    table, facts = scope.sources[-1].relation, scope.catalog.facts
    shadowed = facts.constraints.shadowed if facts else frozenset()
    named = scope.bare.union(column for place, column in shadowed if place == table.key)
    left = tuple(name for name in table.spelled if name.lower() not in named)
    missing = _missing(scope)
    if not missing or len(scope.bare) < MOST_COLUMNS:
        return left
    return tuple(name for name in left if any((table.key, name.lower()) in places for places in missing))


def _take_table(scope: Scope, key: str) -> Step | None:
    relation = next(table for table in scope.catalog.tables if table.key == key)
    sources, planned = (*scope.sources, FromItem(key, relation)), scope.planned | {(key, "")}
    return (), replace(scope, sources=sources, bare=frozenset(), planned=planned)


def _take_column(scope: Scope, key: str) -> Step | None:
    place = (scope.sources[-1].relation.key, key)
    return (), replace(scope, bare=scope.bare | {key}, planned=scope.planned | {place})


def table_left(scope: Scope) -> Scope | None:
    """Require that another table may come: there is one, and tables to come hold the missing values."""
    to_come = {table.key for table in _untaken(scope)}
    possible = all(any(table in to_come for table, _ in places) for places in _missing(scope))
    return scope if to_come and possible else None


def column_left(scope: Scope) -> Scope | None:
    """Require that another column may come."""
    return scope if _columns_left(scope) else None


def covered(scope: Scope) -> Scope | None:
    """Require that the tables are complete: no value is missing."""
    return None if _missing(scope) else scope


@lru_cache(maxsize=16)
def _sketch_words(functions: frozenset[str]) -> WordSet:
    return plain_set(functions.union(_WORDS.split()))


PLAN_TERMINALS: dict[str, Symbol] = {
    "end": End(),
    "table": Names(lambda scope: _spelled(_tables_left(scope)), _take_table),
    "column": Names(lambda scope: _spelled(_columns_left(scope)), _take_column),
    "word": Names(lambda scope: _sketch_words(frozenset(scope.catalog.functions)), lambda scope, key: ((), scope)),
}


def _if_missing(verb: Callable[[Scope], Scope | None]) -> Action:
    """The action; a long plan goes on only for what is missing."""
    return Action(verb, landing=lambda scope: verb(scope) if _missing(scope) else None)


PLAN_ACTIONS: dict[str, Symbol] = {
    "covered": Action(covered),
    "room": Action(room, landing=never),
    **{verb.__name__: _if_missing(verb) for verb in (table_left, column_left)},
}
