"""The grammar of a plan (`agent.plan`): tables and columns that exist, each once, then `|` and the skeleton.

In the skeleton `_` stands for names and literals; only its words and its parentheses are checked, for it is a sketch.
"""

from dataclasses import replace
from functools import lru_cache

from agent.grammar.functions import FUNCTIONS
from agent.grammar.notation import Symbol
from agent.grammar.scope import Catalog, Relation, Scope, Source
from agent.grammar.terminals import Action, End, Names, Step
from agent.grammar.words import WordSet, lowered, plain_set
from agent.plan import quoted_name
from tools.schema import Schema

PLAN = """
statement = planned ({table_left} ';' planned)* '|' SELECT piece piece* <end>
planned = <table> ({column_left} ':' <column> ({column_left} ',' <column>)*)?
piece = <word> | '(' piece* ')' | ',' | '*' | '=' | '!=' | '<>' | '<' | '<=' | '>' | '>=' | calc
calc = '+' | '-' | '/' | '//' | '%' | '||'
"""

_WORDS = """
    _ all and any any_value as asc between bigint boolean by case cast cross current_date current_timestamp date datetime
    day decimal desc distinct double else end escape except exists extract false filter first float following from full
    glob group having hour ilike in inner int integer intersect interval is join last left like limit minute month not
    null nulls numeric offset or order outer over partition preceding quarter real recursive right rows second select
    text then time timestamp true try_cast unbounded union using varchar week when where with year
"""


def plan_catalog(schema: Schema) -> Catalog:
    """The schema's tables, for plans."""
    columns = ((table.name, tuple(column.name for column in table.columns)) for table in schema.tables)
    return Catalog(
        tuple(Relation(name, names, len(names)) for name, names in columns),
        "plan",
        FUNCTIONS["sqlite"] | FUNCTIONS["duckdb"],
    )


@lru_cache(maxsize=4096)
def _spelled(names: tuple[str, ...]) -> WordSet:
    """Names as the prompt writes them. Of two that differ in case alone, the first."""
    return WordSet({lowered(quoted_name(name)): (name.lower(), quoted_name(name)) for name in reversed(names)})


def _tables_left(scope: Scope) -> tuple[str, ...]:
    taken = {source.alias for source in scope.sources}
    return tuple(table.name for table in scope.catalog.tables if table.key not in taken)


def _columns_left(scope: Scope) -> tuple[str, ...]:
    return tuple(name for name in scope.sources[-1].relation.spelled if name.lower() not in scope.bare)


def _take_table(scope: Scope, key: str) -> Step | None:
    relation = next(table for table in scope.catalog.tables if table.key == key)
    return (), replace(scope, sources=(*scope.sources, Source(key, relation)), bare=frozenset())


def _take_column(scope: Scope, key: str) -> Step | None:
    return (), replace(scope, bare=scope.bare | {key})


@lru_cache(maxsize=4)
def _sketch_words(functions: frozenset[str]) -> WordSet:
    return plain_set(functions.union(_WORDS.split()))


PLAN_TERMINALS: dict[str, Symbol] = {
    "end": End(),
    "table": Names(lambda scope: _spelled(_tables_left(scope)), _take_table),
    "column": Names(lambda scope: _spelled(_columns_left(scope)), _take_column),
    "word": Names(lambda scope: _sketch_words(frozenset(scope.catalog.functions)), lambda scope, key: ((), scope)),
}
PLAN_ACTIONS: dict[str, Symbol] = {
    "table_left": Action(lambda scope: scope if _tables_left(scope) else None),
    "column_left": Action(lambda scope: scope if _columns_left(scope) else None),
}
