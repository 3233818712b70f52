"""The dialect in which the model writes. Where that is not the database's, its SQL is translated before it is checked, and
prompts show the conversation's SQL as the model would have written it."""

from functools import partial

from agent.graph.toolbox import Toolbox
from agent.graph.vote import same_sql
from tools.sql.dialects.duckdb_to_sqlite import duckdb_to_sqlite
from tools.sql.dialects.sqlite_to_duckdb import sqlite_to_duckdb


def model_dialect(toolbox: Toolbox) -> str:
    """The dialect that prompts name and grammars allow."""
    return toolbox.profile.dialect(toolbox.database.dialect)


def translated(toolbox: Toolbox, sql: str) -> str:
    """The model's SQL in the database's dialect. It stays as it is where it means the same there, and where it cannot be read,
    so that checking says why."""
    dialect = toolbox.database.dialect
    if model_dialect(toolbox) == dialect:
        return sql

    def found() -> str:
        try:
            translation = sqlite_to_duckdb(sql, toolbox.database.schema(), exactly=False)
        except ValueError:
            return sql
        return sql if same_sql(sql, translation, dialect) else translation

    return toolbox.optional("translate", found, sql)


def as_written(toolbox: Toolbox, sql: str) -> str:
    """SQL of the database in the model's dialect."""
    if model_dialect(toolbox) == toolbox.database.dialect:
        return sql
    return toolbox.optional("translate", partial(duckdb_to_sqlite, sql), sql)
