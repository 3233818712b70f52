"""The schema browser: tables that unfold into columns with types, keys and samples."""

from tools.schema import Column, Schema, Table
from ui.views.words import counted, html


def schema_html(schema: Schema, name: str) -> str:
    """A filter box and a list of tables; a click on a name copies it."""
    tables = "".join(_table(table) for table in schema.tables)
    return (
        f'<div class="schema" data-schema><p class="source"><b>{html(name)}</b> <small>{html(schema.dialect)}, '
        f"{counted(len(schema.tables), 'table')}</small></p>"
        '<input type="search" data-filter placeholder="find a table or column" aria-label="find a table or column">'
        f"{tables}</div>"
    )


def _table(table: Table) -> str:
    rows = "" if table.row_count is None else f" <small>{counted(table.row_count, 'row')}</small>"
    refers = {name: key.ref_table for key in table.foreign_keys for name in key.columns}
    columns = "".join(_column(column, refers.get(column.name)) for column in table.columns)
    comment = f"<p><small>{html(table.comment)}</small></p>" if table.comment else ""
    words = html(" ".join([table.name, *(column.name for column in table.columns)]).casefold())
    return (
        f'<details data-words="{words}"><summary><code>{html(table.name)}</code>{rows}</summary>'
        f"{comment}<ul>{columns}</ul></details>"
    )


def _column(column: Column, refers: str | None) -> str:
    key = '<abbr title="primary key">key</abbr> ' if column.primary_key else ""
    to = f'<abbr title="refers to {html(refers)}">→ {html(refers)}</abbr> ' if refers else ""
    samples = f'<span class="samples">{html(", ".join(column.samples))}</span>' if column.samples else ""
    name = html(column.name)
    return (
        f'<li><button type="button" data-copy="{name}" title="copy the name" aria-label="{name}: copy the name">'
        f"<code>{name}</code></button> "
        f"<small>{html(column.type.lower())}</small> {key}{to}{samples}</li>"
    )
