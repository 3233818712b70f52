"""Says in one sentence what a result says: who leads and with how much, how many there are, or the one value.

The sentence is written from a template, the result and the SQL, because a 135M model must not retype rows. Names of tables and
columns become English words: `list_price` is "list price", one of `albums` is an "album".
"""

import re
from collections.abc import Sequence
from typing import Any

from agent.presentation.shown import MOST_TIED, Shown, ShownColumn, cell_text
from agent.state import Attempt, State
from tools.linking.questions import Meaning
from tools.linking.word_forms import name_words, stem, word_set
from tools.sql.scope import parse_or_nothing

_KEY_WORDS = ("id", "ids", "key", "no", "nr", "code")


def words(name: str) -> str:
    """The words of a name, in lower case unless they are capitals throughout.

    >>> words("list_price"), words("ReactorModel"), words("GDP"), words("area_m2")
    ('list price', 'reactor model', 'GDP', 'area m2')
    """
    if re.fullmatch(r"[A-Z]{2,}", name):
        return name
    return " ".join(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", name).lower().split()) or name


def plural(noun: str) -> str:
    """The plural of a noun, or of the last word of several; a plural stays.

    >>> plural("album"), plural("cities"), plural("order line"), plural("genre"), plural("person")
    ('albums', 'cities', 'order lines', 'genres', 'people')
    >>> plural("taxis"), plural("analysis"), plural("seattle weather"), plural("orders 2024")
    ('taxis', 'analyses', 'rows of seattle weather', 'rows of orders 2024')
    """
    first, _, last = noun.rpartition(" ")
    if last in _UNCOUNTED or last.isdigit():
        return noun if noun.startswith("rows of ") else f"rows of {noun}"
    if stem(last) == last:
        last = _plural_word(last)
    return f"{first} {last}".strip()


def singular(noun: str) -> str:
    """One of them.

    >>> singular("albums"), singular("order lines"), singular("people"), singular("genres")
    ('album', 'order line', 'person', 'genre')
    >>> singular("taxis"), singular("rows of seattle weather")
    ('taxi', 'row of seattle weather')
    """
    if noun.startswith("rows of "):
        return noun.replace("rows", "row", 1)
    first, _, last = noun.rpartition(" ")
    return f"{first} {last[:-1] if _IS_PLURAL.search(last) else stem(last)}".strip()


def counted(count: int, noun: str) -> str:
    """A number of things, whose noun is a plural.

    >>> counted(1, "albums"), counted(1200, "albums")
    ('1 album', '1,200 albums')
    """
    return f"{count:,} {singular(noun) if count == 1 else noun}"


def without_key_word(name: str) -> str:
    """The words of a key's name without "id": `manager_id` is "manager"; empty if nothing is left."""
    own = list(name_words(name))
    while own and own[-1] in _KEY_WORDS:
        own.pop()
    return " ".join(own)


_UNCOUNTED = word_set(
    "weather data information equipment traffic staff inventory music feedback luggage furniture software"
)
_IS_PLURAL = re.compile(r"^(?!axis$|.*sis$).*is$")  # "taxis", unlike "analysis"
_PLURALS = {
    "axis": "axes", "person": "people", "child": "children", "man": "men", "woman": "women", "foot": "feet", "mouse": "mice",
}  # fmt: skip


def _plural_word(word: str) -> str:
    if word in _PLURALS:
        return _PLURALS[word]
    if word.endswith("sis"):
        return word[:-2] + "es"
    if _IS_PLURAL.search(word):
        return word
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search(r"(s|x|z|ch|sh)$", word) else "s")


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
        return f"the {'most' if descending else 'fewest'} {column.counts}"
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


REPEATED = "the model wrote the same query again"
"""The message of an attempt that repeats an earlier one; it says nothing about the database."""

_REASONS = {
    "refused": "The query was refused: only reading is allowed",
    "timeout": "The query took too long",
    "memory": "The query needs more memory than it may use",
    "interrupted": "The query was stopped",
    "connection": "The database cannot be reached",
}


def sentence(state: State, shown: Shown | None, dialect: str) -> str:
    """What the rows say, or why there are none. `shown` is None if no query ran."""
    if shown is None:
        return _failure(state)
    return result_sentence(shown) or _nothing(state["sql"], dialect)


def _nothing(sql: str, dialect: str) -> str:
    """That there are no rows, with the condition that none of them meets."""
    trees = parse_or_nothing(sql, dialect)
    where = trees[0].args.get("where") if len(trees) == 1 else None
    return f"No rows were found where {where.this.sql(dialect)}." if where else "No rows were found."


def asked_back(meanings: Sequence[Meaning]) -> str:
    """The question that asks the asker what is meant: “Lisbon” as the customer's city, or the store's?"""
    first, *others = meanings_in_words(meanings)
    _, _, column = first.partition("'s ")
    if column and all(each.endswith(f"'s {column}") for each in others):
        others = [each.removesuffix(f" {column}") for each in others]
    *most, last = others
    asked = f"{', '.join([first, *most])}, or {last}?"
    return f"“{meanings[0].phrase}” as {asked}" if meanings[0].value else f"Which {meanings[0].phrase}: {asked}"


def meanings_in_words(meanings: Sequence[Meaning]) -> list[str]:
    """What may be meant: "the customer's city". By the names of the schema where the words would be the same."""
    found = [_in_words(one) for one in meanings]
    return found if len(set(found)) == len(found) else [one.label for one in meanings]


def _in_words(meaning: Meaning) -> str:
    table, column = singular(words(meaning.table.rpartition(".")[2])), words(meaning.column)
    return f"the {table}'s {column.removeprefix(f'{table} ')}"


def _failure(state: State) -> str:
    if not state["attempts"]:
        return "No SQL was written for this question."
    own = [each for each in state["attempts"] if (each["error"] or {}).get("message") != REPEATED]
    last = (own or state["attempts"])[-1]
    error = last["error"] or {}
    reason = _REASONS.get(kind_of_error(state, last), "No working SQL was found")
    told = f"{reason} ({error['message']})." if error.get("message") else f"{reason}."
    return f"{told} The last query was: {last['sql']}" if last["sql"] else told


def kind_of_error(state: State, attempt: Attempt) -> str:
    """The kind of an attempt's error. Only what a person wrote or chose is "refused": that the model's own SQL would do more
    than read says nothing about the asker."""
    kind, by_a_person = str((attempt["error"] or {}).get("kind", "")), state["example"] or state["chosen"]
    return "other" if kind == "refused" and attempt["sql"] and not by_a_person else kind
