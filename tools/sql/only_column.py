"""The one column in FROM that is wanted, as SQL."""

from collections.abc import Callable, Sequence

from sqlglot import exp

from tools.schema import Column, Table
from tools.sql.scope import FromItem


def only_column(
    every: Sequence[FromItem], is_wanted: Callable[[Table, Column], bool]
) -> tuple[Table, exp.Column] | None:
    """The only column that is wanted among all of FROM's sources, and its table; None where there is none, or several.

    It names its source where there are several.
    """
    found = [
        (source.table, column.name, source.alias)
        for source in every
        if source.table
        for column in source.table.columns
        if is_wanted(source.table, column)
    ]
    if len(found) != 1:
        return None
    table, name, alias = found[0]
    identifier = exp.to_identifier(name, quoted=not name.isidentifier())
    return table, exp.column(identifier, alias if len(every) > 1 else None)
