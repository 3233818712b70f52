"""SQL for people: pretty, in words, as CREATE TABLE.

SQL laid out over several lines, for people to read.

Writes a table of a schema as a CREATE TABLE statement that the database's own dialect can read.

Describes a query in words, from its tree: what it takes, from where, under which conditions, in which order.
"""

from collections.abc import Iterator
from contextlib import suppress

from sqlglot import exp, parse_one, transpile
from sqlglot.errors import SqlglotError

from tools.schema import Column, ForeignKey, Table
from tools.sql.spelling import identifier


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
