"""Says in one sentence what a result says: who leads and with how much, how many there are, or the one value."""

from typing import Any

from agent.graph.presentation.cells import cell_text
from agent.graph.presentation.shown import MOST_TIED, Shown, ShownColumn
from agent.graph.presentation.words import counted, plural, singular
from tools.linking.word_forms import word_set

_UNITS = word_set("seconds minutes hours days weeks months years kg km m2 km2 mb gb percent")
FEW = 6
"""Values that a sentence lists."""


def result_sentence(shown: Shown) -> str:
    """The sentence, without a condition. Empty if there are no rows."""
    if not shown.rows:
        return ""
    if len(shown.columns) == 1:
        return _one_column(shown)
    if len(shown.rows) == 1:
        return f"{_one_row(shown)} {_tied(shown)}".rstrip()
    return _many_rows(shown)


def _one_column(shown: Shown) -> str:
    column, cells = shown.columns[0], [row[0] for row in shown.rows]
    if len(cells) == 1:
        return _value(column, cells[0])
    listed = ", ".join(cell_text(cell, column.kind) for cell in cells[:FEW])
    amount = _amount(shown, column.of or plural(column.heading))
    if column.kind == "other" or column.measure:
        return f"{_amount(shown, 'rows')}: {_ended(column.heading)}"
    if len(cells) <= FEW and not shown.truncated:
        return f"{amount}: {listed}."
    return f"{amount}: {listed} and {_amount(shown, 'more', len(cells) - FEW)}."


def _value(column: ShownColumn, cell: Any) -> str:
    if cell is None:
        return f"There is no {column.heading}."
    if column.counts and isinstance(cell, int):
        return f"{counted(cell, column.counts)}."
    return f"{_upper(column.heading)}: {cell_text(cell, column.kind)}."


def _one_row(shown: Shown) -> str:
    who, measure = _leader(shown), _measure(shown)
    if who is not None and measure is not None and shown.sorting and shown.sorting.only == 1:
        if shown.columns[measure].kind == "time":
            which = "latest" if shown.sorting.descending else "earliest"
            return f"{_cell(shown, 0, who)}: {shown.columns[measure].heading} {_cell(shown, 0, measure)}, the {which}."
        return f"{_cell(shown, 0, who)} has {_most(shown, measure)}: {_cell(shown, 0, measure)}."
    parts = [
        f"{column.heading}: {cell_text(cell, column.kind)}"
        for column, cell in zip(shown.columns, shown.rows[0], strict=True)
        if not (column.is_key and _has_name(shown))
    ]
    return f"{_upper('; '.join(parts))}."


def _tied(shown: Shown) -> str:
    """That others have the place of the only row too, and who they are where they are few."""
    who, names = _leader(shown), list[str]()
    if who is not None:
        names = list(dict.fromkeys(cell_text(row[who], shown.columns[who].kind) for row in shown.tied))
    if not shown.tied or (
        shown.sorting and shown.columns[shown.sorting.place].is_key
    ):  # an order by keys ranks nothing
        return ""
    if len(shown.tied) > MOST_TIED:
        return f"More than {MOST_TIED} share this place."
    if len(names) != len(shown.tied) or len(names) > FEW:
        return f"{len(shown.tied)} share this place."
    return f"{len(names)} share this place: {', '.join(names[:-1])} and {names[-1]}."


def _many_rows(shown: Shown) -> str:
    who, measure = _leader(shown), _measure(shown)
    things = shown.columns[who].of if who is not None else "rows"
    amount = _amount(shown, things or "rows")
    if who is None or measure is None or shown.columns[measure].kind != "amount":
        listed = ", ".join(column.heading for column in shown.columns)
        return f"{amount}: {_ended(listed)}" if len(shown.columns) < FEW else f"{amount}."
    first, column = _first(shown, measure), shown.columns[measure]
    if first is None or shown.rows[first][who] is None:
        return f"{amount} and their {column.heading}."
    cell = _cell(shown, first, measure)
    with_what = f"{cell} {column.counts}" if column.counts else _of_unit(column.heading, cell)
    ascending = shown.sorting is not None and shown.sorting.place == measure and not shown.sorting.descending
    verb = "is lowest" if ascending else "leads"
    return f"{amount}; {_cell(shown, first, who)} {verb} with {with_what}."


def _of_unit(heading: str, cell: str) -> str:
    """A measure with its value: "a price of 9.50", "24 artists", and "a duration of 937 seconds" for a heading with a unit."""
    what, _, unit = heading.rpartition(" ")
    if unit not in _UNITS and singular(heading) != heading == plural(heading):  # an alias that is a count: "artists"
        return f"{cell} {heading}"
    told = f"{what} of {cell} {unit}" if what and unit in _UNITS else f"{heading} of {cell}"
    return f"{'an' if told[0] in 'aeiou' else 'a'} {told}"


def _first(shown: Shown, measure: int) -> int | None:
    """The row that leads: the first of rows sorted by the measure, otherwise the only one with the largest. None if several
    have it, or if rows that are not here might have more.
    """
    if shown.sorting is not None and shown.sorting.place == measure:
        first, second = shown.rows[0][measure], shown.rows[1][measure]
        return 0 if first is not None and first != second else None
    cells = [row[measure] for row in shown.rows]
    known = [cell for cell in cells if cell is not None]
    if shown.truncated or not shown.columns[measure].measure or not known:
        return None
    largest = max(known)
    return cells.index(largest) if known.count(largest) == 1 else None


def _most(shown: Shown, measure: int) -> str:
    assert shown.sorting is not None
    column, descending = shown.columns[measure], shown.sorting.descending
    if column.counts:
        return f"{'most' if descending else 'fewest'} {column.counts}"
    if column.heading.startswith(("highest ", "lowest ", "earliest ", "latest ")):
        return f"the {column.heading}"
    return f"the {'highest' if descending else 'lowest'} {column.heading}"


def _leader(shown: Shown) -> int | None:
    """The column that says who: the first one that names things."""
    return next((place for place, column in enumerate(shown.columns) if column.is_label), None)


def _measure(shown: Shown) -> int | None:
    """The column that says how much: the one that the rows are sorted by, otherwise the only computed one."""
    if shown.sorting is not None and shown.columns[shown.sorting.place].kind in ("amount", "time"):
        return shown.sorting.place
    computed = [place for place, column in enumerate(shown.columns) if column.measure]
    return computed[0] if len(computed) == 1 else None


def _has_name(shown: Shown) -> bool:
    return any(column.is_label for column in shown.columns)


def _amount(shown: Shown, things: str, count: int | None = None) -> str:
    number = len(shown.rows) if count is None else count
    if things in ("rows", "more"):
        text = f"{number:,} {things if number != 1 or things == 'more' else 'row'}"
    else:
        text = counted(number, things)
    return f"More than {text}" if shown.truncated and count is None else text


def _cell(shown: Shown, row: int, place: int) -> str:
    return cell_text(shown.rows[row][place], shown.columns[place].kind)


def _ended(text: str) -> str:
    """With the full stop of a sentence, also behind a heading such as "paid?"."""
    return f"{text.rstrip('?!.')}."


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
