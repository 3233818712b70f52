"""Tables that fit the terminal they are printed in, and are complete where a program reads them."""

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from app.shared.terminal.terminal_text import shown

NARROWEST = 12
"""Characters to which a column of text may shrink before others are left out."""
_BESIDE = 3  # characters between two columns
_UNBOUNDED = 100_000


def console() -> Console:
    """stdout; without a width where it is no terminal."""
    import sys

    return Console() if sys.stdout.isatty() else Console(width=_UNBOUNDED)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[bool] = ()) -> None:
    """Print every row. `right`: which columns are aligned at the right; by default those that hold numbers alone. Text is
    wrapped; columns for which the terminal is too narrow are left out, and a line says which.
    """
    out = console()
    texts = [[shown(name) for name in columns], *([cell_of(cell) for cell in row] for row in rows)]
    at_right = list(right) or [_is_numeric([row[place] for row in rows]) for place in range(len(columns))]
    kept = _fitting(texts, at_right, out.width)
    table = Table(header_style="bold", row_styles=["", "dim"])
    for place in range(kept):
        whole = at_right[place] or _widest(texts, place) <= NARROWEST
        justify: JustifyMethod = "right" if at_right[place] else "left"
        table.add_column(Text(texts[0][place]), justify=justify, no_wrap=whole, overflow="fold")
    for row in texts[1:]:
        table.add_row(*map(Text, row[:kept]))
    out.print(table)
    if kept < len(columns):
        left_out = ", ".join(texts[0][kept:])
        told = f"{len(columns) - kept} of {len(columns)} columns do not fit here: {left_out} (--json prints all)"
        out.print(Text(told), style="dim", highlight=False)


def cell_of(value: Any) -> str:
    """A cell as plain text, without terminal control characters."""
    return "" if value is None else shown(str(value))


def _is_numeric(cells: Sequence[Any]) -> bool:
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in known)


def _fitting(texts: Sequence[Sequence[str]], at_right: Sequence[bool], width: int) -> int:
    """How many columns, from the left, fit when texts are wrapped; one at least."""
    used = 1
    for place in range(len(texts[0])):
        widest = _widest(texts, place)
        used += _BESIDE + (widest if at_right[place] else min(widest, NARROWEST))
        if used > width:
            return max(1, place)
    return len(texts[0])


def _widest(texts: Sequence[Sequence[str]], place: int) -> int:
    return max(cell_len(line) for row in texts for line in row[place].split("\n"))
