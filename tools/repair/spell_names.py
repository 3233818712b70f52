"""Names are written as the schema writes them. A model under a grammar may write `aLBUMS`, which engines read as `albums`."""

from sqlglot import exp

from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing

_FOLDING = ("sqlite", "duckdb")  # where a name in quotes means the same in capitals and in small letters


def spell_names(sql: str, schema: Schema) -> str | None:
    """The statement with the schema's spelling of tables and columns; None if nothing changes.

    >>> from tools.schema import Column, Table
    >>> schema = Schema((Table("albums", (Column("title", "TEXT"),)),), "sqlite")
    >>> spell_names("SELECT aLBUMS.Title FROM aLBUMS AS T1 WHERE T1.title = 'ALBUMS'", schema)
    "SELECT albums.title FROM albums AS T1 WHERE T1.title = 'ALBUMS'"
    """
    trees = parse_or_nothing(sql, schema.dialect) if schema.dialect in _FOLDING else []
    if len(trees) != 1:
        return None
    spelled = _spellings(schema)
    found = [each for each in _names(trees[0]) if each.name not in spelled.get(each.name.lower(), (each.name,))]
    for each in found:
        each.set("this", spelled[each.name.lower()][0])
    return trees[0].sql(schema.dialect) if found else None


def _spellings(schema: Schema) -> dict[str, list[str]]:
    """The names of tables and columns by their small letters."""
    spellings: dict[str, list[str]] = {}
    for table in schema.tables:
        for name in (table.name, *(column.name for column in table.columns)):
            spellings.setdefault(name.lower(), []).append(name)
    return spellings


def _names(tree: exp.Expr) -> list[exp.Identifier]:
    """The identifiers of tables and columns; aliases stay as they are where they are made."""
    places = [table.parts for table in tree.find_all(exp.Table)] + [
        column.parts for column in tree.find_all(exp.Column)
    ]
    return [part for parts in places for part in parts if isinstance(part, exp.Identifier)]
