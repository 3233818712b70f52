"""Writes a table of a schema as a CREATE TABLE statement that the database's own dialect can read."""

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect

from tools.schema import Column, ForeignKey, Table


def create_table(table: Table, dialect: str) -> str:
    """The statement, with comments and sample values behind `--`. Names are quoted where they must be.

    >>> print(create_table(Table("pet shop", (Column("id", "INTEGER", primary_key=True), Column("order", "TEXT"))), "duckdb"))
    CREATE TABLE "pet shop" (
      id INTEGER,
      "order" TEXT,
      PRIMARY KEY (id)
    );
    """
    lines = [(f"{_name(each.name, dialect)} {one_line(each.type)}".rstrip(), _note(each)) for each in table.columns]
    if keys := [each.name for each in table.columns if each.primary_key]:
        lines.append((f"PRIMARY KEY ({_names(keys, dialect)})", ""))
    lines += [(_foreign_key(key, dialect), "") for key in table.foreign_keys]
    body = "\n".join(
        f"  {text}{',' if number < len(lines) else ''}{note}" for number, (text, note) in enumerate(lines, 1)
    )
    about = f"-- {one_line(table.comment)}\n" if table.comment else ""
    return f"{about}CREATE TABLE {'.'.join(_name(part, dialect) for part in table.name.split('.'))} (\n{body}\n);"


def one_line(text: str) -> str:
    """The text without line ends, so that it cannot leave a comment."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _foreign_key(key: ForeignKey, dialect: str) -> str:
    there = f"{_name(key.ref_table, dialect)} ({_names(key.ref_columns, dialect)})"
    return f"FOREIGN KEY ({_names(key.columns, dialect)}) REFERENCES {there}"


def _names(names: tuple[str, ...] | list[str], dialect: str) -> str:
    return ", ".join(_name(name, dialect) for name in names)


def _name(name: str, dialect: str) -> str:
    is_plain = (
        exp.SAFE_IDENTIFIER_RE.match(name) and name.upper() not in Dialect.get_or_raise(dialect).tokenizer().KEYWORDS
    )
    return exp.to_identifier(name, quoted=not is_plain).sql(dialect)


def _note(column: Column) -> str:
    samples = "e.g. " + ", ".join(map(one_line, column.samples)) if column.samples else ""
    parts = [part for part in (one_line(column.comment), samples) if part]
    return f"  -- {'; '.join(parts)}" if parts else ""
