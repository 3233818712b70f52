"""How SQL is written: names with and without schemas, statements over several lines or in words, tables as CREATE TABLE."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name

from sqlglot import exp, parse_one, transpile
from sqlglot.dialects.dialect import Dialect, NormalizationStrategy
from sqlglot.errors import SqlglotError

from tools.schema import Column, ForeignKey, Schema, Table
from tools.sql.scope import common_table, enclosing, full_name, owner, parse_or_nothing

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


@dataclass(frozen=True, slots=True)
class Qualified:
    """`text`, and its edits: `(place in the statement that was given, length there, length in text)`, in order."""

    text: str
    edits: tuple[tuple[int, int, int], ...] = ()

    def origin(self, place: int | None) -> int | None:
        """Where the word that stands at `place` in `text` stood in the statement that was given."""
        if place is None:
            return None
        shift = 0
        starts = []
        for start, old, new in self.edits:
            starts.append(start + shift)
            shift += new - old
        at = bisect_right(starts, place) - 1
        if at < 0:
            return place
        start, old, new = self.edits[at]
        inside = place - starts[at]
        return start + (min(inside, max(old - 1, 0)) if inside < new else inside - new + old)


def qualified(sql: str, schema: Schema) -> Qualified:
    """The statement with every bare name of a table outside the default schema spelled out; all else stays as it is written.

    >>> users = Table("users", (Column("name", "TEXT"),), path=("sales", "users"))
    >>> qualified("SELECT users.name FROM users", Schema((users,), "duckdb")).text
    'SELECT users.name FROM sales.users'
    """
    places = {table.name.casefold(): table for table in schema.tables if table.path}
    if not places:
        return Qualified(sql)
    text, edits = sql, []
    for found in sorted(_bare_tables(sql, schema.dialect, places), key=lambda each: -each.this.meta["start"]):
        start, end = found.this.meta["start"], found.this.meta["end"] + 1
        spelled = _spelled(found, places[found.name.casefold()], schema.dialect)
        text = text[:start] + spelled + text[end:]
        edits.append((start, end - start, len(spelled)))
    return Qualified(text, tuple(reversed(edits)))


def _bare_tables(sql: str, dialect: str, places: Mapping[str, Table]) -> list[exp.Table]:
    trees = parse_or_nothing(sql, dialect)
    return [
        table
        for tree in trees
        for table in tree.find_all(exp.Table)
        if isinstance(table.this, exp.Identifier)
        and "start" in table.this.meta
        and not (table.args.get("db") or table.args.get("catalog"))
        and table.name.casefold() in places
        and common_table(table) is None
    ]


def _spelled(found: exp.Table, table: Table, dialect: str) -> str:
    """The path; with the bare name as alias where columns are called by a name that the path does not end with."""
    path = ".".join(identifier(part, dialect) for part in table.path)
    is_called = found.alias or table.path[-1].casefold() == found.name.casefold()
    return path if is_called else f"{path} AS {identifier(found.name, dialect)}"


def bare(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """The tree with the bare names of tables outside the default schema, as prompts show them.

    >>> users = Table("users", (Column("name", "TEXT"),), path=("sales", "users"))
    >>> bare(parse_one("SELECT name FROM sales.users"), Schema((users,), "duckdb")).sql()
    'SELECT name FROM users'
    """
    for found in list(tree.find_all(exp.Table)):
        table = schema.table(full_name(found)) if found.args.get("db") else None
        if table is not None and table.path and isinstance(found.this, exp.Identifier):
            if not found.alias and found.name.casefold() != table.name.casefold():
                found.set("alias", exp.TableAlias(this=exp.to_identifier(found.name)))
            found.set("this", exp.to_identifier(table.name, quoted=found.this.args.get("quoted")))
            found.set("db", None)
            found.set("catalog", None)
    for column in tree.find_all(exp.Column):
        if column.args.get("db") and any(table.path for table in schema.tables):
            column.set("db", None)
    return tree


def pretty_sql(sql: str, dialect: str, *, over_lines: bool = True) -> str:
    """The statement with a line for each clause, or in one line; as it is where the parser does not know it.

    >>> print(pretty_sql("SELECT name FROM albums WHERE price > 5", "sqlite"))
    SELECT
      name
    FROM albums
    WHERE
      price > 5
    """
    with suppress(SqlglotError, RecursionError):
        return transpile(sql, read=dialect, write=dialect, pretty=over_lines, normalize_functions=False)[0]
    return sql


def create_table(table: Table, dialect: str) -> str:
    """The statement, with comments and sample values behind `--`. Names are quoted where they must be.

    >>> print(create_table(Table("pet shop", (Column("id", "INTEGER", primary_key=True), Column("order", "TEXT"))), "duckdb"))
    CREATE TABLE "pet shop" (
      id INTEGER,
      "order" TEXT,
      PRIMARY KEY (id)
    );
    """
    lines = [
        (f"{identifier(each.name, dialect)} {one_line(each.type)}".rstrip(), _note(each)) for each in table.columns
    ]
    if keys := [each.name for each in table.columns if each.primary_key]:
        lines.append((f"PRIMARY KEY ({_names(keys, dialect)})", ""))
    lines += [(_foreign_key(key, dialect), "") for key in table.foreign_keys]
    body = "\n".join(
        f"  {text}{',' if number < len(lines) else ''}{note}" for number, (text, note) in enumerate(lines, 1)
    )
    about = f"-- {one_line(table.comment)}\n" if table.comment else ""
    return f"{about}CREATE TABLE {'.'.join(identifier(part, dialect) for part in table.path or (table.name,))} (\n{body}\n);"


def one_line(text: str) -> str:
    """The text without line ends, so that it cannot leave a comment."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _foreign_key(key: ForeignKey, dialect: str) -> str:
    there = f"{identifier(key.ref_table, dialect)} ({_names(key.ref_columns, dialect)})"
    return f"FOREIGN KEY ({_names(key.columns, dialect)}) REFERENCES {there}"


def _names(names: tuple[str, ...] | list[str], dialect: str) -> str:
    return ", ".join(identifier(name, dialect) for name in names)


def _note(column: Column) -> str:
    samples = "e.g. " + ", ".join(map(one_line, column.samples)) if column.samples else ""
    parts = [part for part in (one_line(column.comment), samples) if part]
    return f"  -- {'; '.join(parts)}" if parts else ""


_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Sum: "the sum of", exp.Avg: "the average of", exp.Min: "the smallest", exp.Max: "the largest",
}  # fmt: skip


def in_words(sql: str, dialect: str) -> str:
    """A description of one or a few sentences; empty if the text cannot be parsed as one query.

    Conditions stay SQL; text that is no query gives no words:

    >>> in_words("SELECT country, AVG(age) FROM singer WHERE age > 20 GROUP BY country", "sqlite")
    'Takes country and the average of age from singer. Only rows where age > 20. One row for each country.'
    >>> in_words("SELECT DISTINCT name FROM singer ORDER BY age DESC LIMIT 3", "sqlite")
    'Takes different name from singer. Sorted by age, largest first. At most 3 rows.'
    >>> in_words("no query", "sqlite")
    ''
    """
    try:
        tree = parse_one(sql, dialect=dialect)
    except (SqlglotError, RecursionError):
        return ""
    return " ".join(_query(tree, dialect))


def _query(tree: exp.Expr, dialect: str) -> Iterator[str]:
    if isinstance(tree, exp.SetOperation):
        joined = {"union": "Together with", "except": "Without", "intersect": "Only where also in"}
        yield from _query(tree.left, dialect)
        yield f"{joined.get(tree.key, 'And')} this:"
        yield from _query(tree.right, dialect)
        return
    if isinstance(tree, exp.Subquery):
        yield from _query(tree.this, dialect)
        return
    if isinstance(tree, exp.Select):
        yield from _select(tree, dialect)


def _select(select: exp.Select, dialect: str) -> Iterator[str]:
    columns = _listed([_column(each, dialect) for each in select.expressions])
    tables = _listed(_tables(select, dialect))
    different = "different " if select.args.get("distinct") else ""
    yield f"Takes {different}{columns}{f' from {tables}' if tables else ''}."
    if where := select.args.get("where"):
        yield f"Only rows where {where.this.sql(dialect)}."
    if group := select.args.get("group"):
        by = [_grouping(each, select).sql(dialect) for each in group.expressions]
        yield f"One row for each {_listed(by) if by else 'combination of the columns that are not computed'}."
    if having := select.args.get("having"):
        yield f"Only groups where {having.this.sql(dialect)}."
    if order := select.args.get("order"):
        yield f"Sorted by {_listed([_sorting(each, dialect) for each in order.expressions])}."
    if limit := select.args.get("limit"):
        most = limit.expression.sql(dialect) if limit.expression else "some"
        yield "Only the first row." if most == "1" else f"At most {most} rows."


def _grouping(key: exp.Expr, select: exp.Select) -> exp.Expr:
    """What the rows are grouped by: GROUP BY 1 means the first column."""
    number = int(key.name) if isinstance(key, exp.Literal) and key.name.isdigit() else 0
    return select.expressions[number - 1].unalias() if 0 < number <= len(select.expressions) else key


def _tables(select: exp.Select, dialect: str) -> list[str]:
    origin = select.args.get("from_")
    sources = [origin.this] if origin else []
    names = [_source(each, dialect) for each in sources]
    for join in select.args.get("joins") or []:
        condition = join.args.get("on")
        matched = f" (matched where {condition.sql(dialect)})" if condition else ""
        kept = ", keeping rows without a match" if join.side in ("LEFT", "FULL") else ""
        names.append(_source(join.this, dialect) + matched + kept)
    return names


def _source(source: exp.Expr, dialect: str) -> str:
    if isinstance(source, exp.Table):
        return source.name
    return "a query of its own" if isinstance(source, exp.Subquery) else source.sql(dialect)


def _column(column: exp.Expr, dialect: str) -> str:
    inner = column.unalias()
    while isinstance(inner, exp.AnyValue | exp.IgnoreNulls):  # any of several equal values is that value
        inner = inner.this
    if isinstance(inner, exp.Star):
        return "all columns"
    if isinstance(inner, exp.Count):
        of = inner.this
        if of is None or isinstance(of, exp.Star):
            return "the number of rows"
        different = isinstance(of, exp.Distinct)
        counted = ", ".join(each.sql(dialect) for each in of.expressions) if different else of.sql(dialect)
        return f"the number of {'different ' if different else ''}{counted}"
    word = _FUNCTIONS.get(type(inner))
    return f"{word} {inner.this.sql(dialect)}" if word else inner.sql(dialect)


def _sorting(ordered: exp.Expr, dialect: str) -> str:
    descending = isinstance(ordered, exp.Ordered) and ordered.args.get("desc")
    return f"{_column(ordered.this, dialect)}, {'largest' if descending else 'smallest'} first"


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""
