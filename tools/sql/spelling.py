"""How a name is spelled in a dialect: in quotes where its letters or a keyword ask for them."""

import re
from functools import cache
from pkgutil import resolve_name

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect, NormalizationStrategy

from tools.schema import Column, Schema, Table
from tools.sql.scope import common_table, enclosing, full_name, owner

_PLAIN = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_FOLDED = {NormalizationStrategy.LOWERCASE: str.lower, NormalizationStrategy.UPPERCASE: str.upper}


def identifier(name: str, dialect: str) -> str:
    """The name as a statement writes it.

    >>> identifier("Users", "postgres"), identifier("users", "postgres"), identifier("Users", "duckdb")
    ('"Users"', 'users', 'Users')
    >>> identifier("home town", "mysql"), identifier("order", "duckdb")
    ('`home town`', '"order"')
    """
    return exp.to_identifier(name, quoted=needs_quotes(name, dialect)).sql(dialect)


def needs_quotes(name: str, dialect: str) -> bool:
    """Whether the name means something else without quotes, or nothing: by its signs, its capitals, or as a keyword."""
    fold = _FOLDED.get(Dialect.get_or_raise(dialect).normalization_strategy)
    is_folded = fold is not None and fold(name) != name
    return not _PLAIN.fullmatch(name) or is_folded or name.upper() in _keywords(dialect)


_RESERVED = {
    "postgres": ("sqlalchemy.dialects.postgresql.base:RESERVED_WORDS",),
    "mysql": (
        "sqlalchemy.dialects.mysql.reserved_words:RESERVED_WORDS_MYSQL",
        "sqlalchemy.dialects.mysql.reserved_words:RESERVED_WORDS_MARIADB",
    ),
}


@cache
def _keywords(dialect: str) -> frozenset[str]:
    """What is no name without quotes; for dialects whose reserved words nobody lists, all that has a meaning."""
    if dialect in _RESERVED:
        return frozenset(word.upper() for place in _RESERVED[dialect] for word in resolve_name(place))
    return frozenset(Dialect.get_or_raise(dialect).tokenizer().KEYWORDS)


def spelled_names(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Spells names as the schema does, in quotes where the dialect needs them, and names that the query makes all alike.

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> user = Table("user", (Column("Name", "TEXT"), Column("age", "INTEGER")))
    >>> from_sqlite("SELECT t1.name AS Who, AGE FROM USER AS T1 ORDER BY who", Schema((user,), "postgres"))
    'SELECT T1."Name" AS Who, age FROM "user" AS T1 ORDER BY Who NULLS FIRST'
    """
    names: list[tuple[object, _Name]] = []
    for column in tree.find_all(exp.Column):
        if not column.is_star:
            names.append((column.this, _of_column(column, schema)))
        if column.table:
            names.append((column.args["table"], _of_source(column, schema)))
    names += [(table.this, _of_table(table, schema)) for table in tree.find_all(exp.Table)]
    names += [(alias.this, _made(alias.name, schema)) for alias in tree.find_all(exp.TableAlias) if alias.this]
    names += [(alias.args["alias"], _made(alias.alias, schema)) for alias in tree.find_all(exp.Alias)]
    for node, (name, quoted) in names:
        if isinstance(node, exp.Identifier):
            node.set("this", name)
            node.set("quoted", quoted)
    return tree


_Name = tuple[str, bool]  # as it is spelled, and whether in quotes


def _kept(name: str, schema: Schema) -> _Name:
    """A name of the schema."""
    return name, needs_quotes(name, schema.dialect)


def _made(name: str, schema: Schema) -> _Name:
    """A name that the query makes: its case means nothing, so that it is not held by quotes."""
    return name, not _PLAIN.fullmatch(name) or name.upper() in _keywords(schema.dialect)


def _of_column(column: exp.Column, schema: Schema) -> _Name:
    source, wanted = owner(column, schema), column.name.casefold()
    origin = source.columns.get(wanted) if source else None
    if isinstance(origin, Column):
        return _kept(origin.name, schema)
    if origin is not None:
        return _of_output(origin, schema)
    named = (item for select in enclosing(column) for item in select.expressions if isinstance(item, exp.Alias))
    alias = next((item.alias for item in named if item.alias.casefold() == wanted), None)
    if alias is None and column.this.args.get("quoted"):
        return column.name, True  # nothing that is known, perhaps a text in double quotes
    return _made(alias or column.name, schema)


def _of_output(item: exp.Expr, schema: Schema) -> _Name:
    """What an entry of the SELECT list of an inner query is called outside of it."""
    return _of_column(item, schema) if isinstance(item, exp.Column) else _made(item.alias_or_name, schema)


def _of_source(column: exp.Column, schema: Schema) -> _Name:
    source = owner(column, schema)
    if source is None:
        return _made(column.table, schema)
    is_called_so = source.table is not None and source.alias.casefold() in (
        source.table.name.casefold(), *(part.casefold() for part in source.table.path[-1:])
    )  # fmt: skip
    return _kept(_own_name(source.table, source.alias), schema) if is_called_so else _made(source.alias, schema)


def _of_table(table: exp.Table, schema: Schema) -> _Name:
    cte = common_table(table)
    if cte is not None:
        return _made(cte.alias, schema)
    known = schema.table(full_name(table)) if isinstance(table.this, exp.Identifier) else None
    return _kept(_own_name(known, table.name), schema) if known else _made(table.name, schema)


def _own_name(table: Table | None, written: str) -> str:
    """The schema's spelling of the name that is written: the bare one, or the last part of the path."""
    names = (table.name, *table.path[-1:]) if table else ()
    return next((name for name in names if name.casefold() == written.casefold()), written)
