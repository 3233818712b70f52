"""The schema of files that was read before, on disk: the same files in a later process need not be looked through again.

It lies among the kept values and is bound by the same rules (`tools.databases.choices`). It belongs to files of data as they
were, to the engine that read them, and to the code that reads schemas.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import ormsgpack
from pydantic import TypeAdapter, ValidationError

from tools.databases.choices import LARGEST_BYTES, SUFFIX, identity_of, read_file, write_file
from tools.schema import Column, ForeignKey, Schema, Table

_Column = tuple[str, str, bool, bool, str, list[str], list[str]]
_Key = tuple[list[str], str, list[str]]
_Table = tuple[str, list[_Column], list[_Key], str, int | None, list[str], list[str]]
_STORED = TypeAdapter(tuple[str, list[_Table], list[str]])


@dataclass(frozen=True, slots=True)
class SchemaCache:
    """Where the schema of one database is kept. files: see `tools.databases.choices.identity_of`."""

    folder: Path
    files: str

    def read(self, reader: str) -> Schema | None:
        """The schema as `reader`, the name of a database's class, read it; None where it is not there or damaged."""
        try:
            dialect, tables, own_types = _STORED.validate_python(
                ormsgpack.unpackb(read_file(self._path(reader))), strict=False
            )
        except (OSError, ValueError, ValidationError):
            return None
        return Schema(tuple(map(_table, tables)), dialect, frozenset(own_types))

    def write(self, reader: str, schema: Schema) -> None:
        """Keep it. Where that is not possible it is read again next time."""
        stored = (schema.dialect, list(map(_stored, schema.tables)), sorted(schema.own_types))
        with suppress(OSError, ormsgpack.MsgpackEncodeError):
            data = ormsgpack.packb(stored)
            if len(data) <= LARGEST_BYTES:
                write_file(self._path(reader), data)

    def _path(self, reader: str) -> Path:
        code = identity_of(sorted(Path(__file__).parent.glob("**/*.py")))
        key = hashlib.sha256(repr((self.files, reader, code)).encode()).hexdigest()[:32]
        return self.folder / f"{key}{SUFFIX}"


def _stored(table: Table) -> _Table:
    columns = [
        (each.name, each.type, each.primary_key, each.nullable, each.comment, list(each.samples), sorted(each.made_of))
        for each in table.columns
    ]
    keys = [(list(key.columns), key.ref_table, list(key.ref_columns)) for key in table.foreign_keys]
    return table.name, columns, keys, table.comment, table.row_count, sorted(table.made_of), list(table.parents)


def _table(stored: _Table) -> Table:
    name, columns, keys, comment, row_count, made_of, parents = stored
    return Table(
        name,
        tuple(map(_column, columns)),
        tuple(ForeignKey(tuple(own), table, tuple(theirs)) for own, table, theirs in keys),
        comment,
        row_count,
        _words(made_of),
        tuple(parents),
    )


def _column(stored: _Column) -> Column:
    name, type_, primary_key, nullable, comment, samples, made_of = stored
    return Column(name, type_, primary_key, nullable, comment, tuple(samples), _words(made_of))


def _words(stored: Sequence[str]) -> frozenset[str]:
    return frozenset(stored)
