"""Templates for flags, coded values and states, and for the choice of tables.

Templates for flags, coded values and states in the words that people use, and for two conditions at once.

Templates for the choice of tables: counts of each, the same question with and without a second table, look-up tables, and
chains of three and four tables.
"""

from collections.abc import Iterator, Mapping, Sequence

from tools.linking.word_forms import word_set
from tools.schema import Column, Table
from training.templates.labels import Asked, Author, Key, literal, q
from training.variants.mistakes import plural, with_article

_YES = word_set("y yes t true 1")
_NO = word_set("n no f false 0")
_FLAG_WORDS = word_set("yn y n tf t f flag ind indicator is has yes no or true false")
_STATES = word_set("status state outcome result")
_SEXES: Mapping[str, Sequence[str]] = {
    "m": ("male",),
    "male": ("male",),
    "f": ("female",),
    "female": ("female",),
}
_QUALITIES = ("ed", "able", "ible", "active", "current", "official")
FEW = 8  # values of a column that classifies

_YES_WORDED = {
    "is": (
        "Which {many} are {label}? Show their {name}.",
        "List the {names} of the {label} {many}.",
        "Find the {names} of {many} that are {label}.",
    ),
    "has": (
        "Which {many} have {label}? Show their {name}.",
        "List the {names} of the {many} with {label}.",
        "Find the {names} of all {many} that have {label}.",
    ),
}
_NO_WORDED = {
    "is": (
        "Which {many} are not {label}? Show their {name}.",
        "List the {names} of the {many} that are not {label}.",
        "Find the {names} of {many} which are not {label}.",
    ),
    "has": (
        "Which {many} have no {label}? Show their {name}.",
        "List the {names} of the {many} without {label}.",
        "Find the {names} of all {many} that do not have {label}.",
    ),
}
_COUNT_FLAG = {
    ("is", True): (
        "How many {many} are {label}?",
        "How many {label} {many} are there?",
        "Count the {many} that are {label}.",
    ),
    ("is", False): ("How many {many} are not {label}?", "Count the {many} that are not {label}."),
    ("has", True): ("How many {many} have {label}?", "Count the {many} with {label}."),
    ("has", False): ("How many {many} have no {label}?", "Count the {many} without {label}."),
}
_VALUED = (
    "How many {many} have the {label} {value}?",
    "How many {many} have {value} as their {label}?",
    "Count the {many} whose {label} is {value}.",
    "What is the number of {many} with {label} {value}?",
)
_LISTED = (
    "Which {many} have the {label} {value}? Show their {name}.",
    "What are the {names} of the {many} whose {label} is {value}?",
    "List the {names} of all {many} with {label} {value}.",
    "Show the {name} of each {one} that has {value} as its {label}.",
)
_NOT_VALUED = (
    "What are the {names} of the {many} whose {label} is not {value}?",
    "List the {names} of all {many} except those with {label} {value}.",
    "Show the {name} of each {one} that has another {label} than {value}.",
)
_ADJECTIVE = (
    "How many {value} {many} are there?",
    "Count the {value} {many}.",
    "What is the number of {value} {many}?",
)
_PER = (
    "How many {many} are there for each {label}?",
    "Show each {label} and the number of {many} with it.",
    "For each {label}, count the {many}.",
    "What is the number of {many} by {label}?",
)
_BOTH = (
    "What are the {names} of the {many} whose {label} is {value} and whose {measure} is {comparison} {number}?",
    "List the {names} of {many} with {label} {value} and {a_measure} {comparison} {number}.",
    "Which {many} have the {label} {value} and {a_measure} of {comparison} {number}? Show their {name}.",
)
_TWO = {
    "AND": (
        "How many {many} have the {label} {value} and the {other} {other_value}?",
        "Count the {many} whose {label} is {value} and whose {other} is {other_value}.",
        "How many {many} are there with {label} {value} and {other} {other_value}?",
    ),
    "OR": (
        "How many {many} have the {label} {value} or the {other} {other_value}?",
        "Count the {many} whose {label} is {value} or whose {other} is {other_value}.",
    ),
}


def conditions(author: Author) -> Iterator[Asked]:
    """Questions on each table's flags and columns with few values, and on two of its columns."""
    for table in author.tables:
        for column in table.columns:
            yield from _flagged(author, table, column)
        classes = _classes(author, table)
        for column, values in classes[:4]:
            yield from _classified(author, table, column, values)
        yield from _two(author, table, classes)


def _words(author: Author, table: Table) -> dict[str, str]:
    name = author.labels.name(table)
    label = author.labels.column(table, name.name) if name else ""
    return {"one": author.labels.one(table), "many": author.labels.many(table), "name": label, "names": plural(label)}


def _classes(author: Author, table: Table) -> list[tuple[Column, list[str]]]:
    """The columns with few values that repeat and are no flags."""
    found = []
    for column in author.labels.texts(table):
        values = author.classes(table, column.name, FEW)
        if values and not _is_flag(values) and (table.row_count or 0) > len(values):
            found.append((column, values))
    return found


def _is_flag(values: Sequence[object]) -> bool:
    folded = {str(value).casefold() for value in values}
    return len(folded) == 2 and bool(folded & _YES) and bool(folded & _NO)


def _flagged(author: Author, table: Table, column: Column) -> Iterator[Asked]:
    """Both values of a yes/no column, said as `are {label}` or `have {label}`."""
    values, label = author.values(table, column.name, 3), author.labels.column(table, column.name)
    plain = " ".join(word for word in label.split() if word not in _FLAG_WORDS)
    known = " ".join(author.labels.column(table, column.name).split())
    if column.primary_key or not plain or plain in ("gender", "sex") or not _is_flag(values):
        return
    verb = "is" if plain.split()[0].endswith("ed") or plain.endswith(_QUALITIES) or known.startswith("is ") else "has"
    name, words = author.labels.name(table), {**_words(author, table), "label": plain}
    for value in values:
        positive = str(value).casefold() in _YES
        where = f"FROM {q(table.name)} WHERE {q(column.name)} = {literal(value)}"
        yield Asked(author.worded(_COUNT_FLAG[verb, positive], **words), f"SELECT COUNT(*) {where}")
        if name is not None:
            worded = author.worded((_YES_WORDED if positive else _NO_WORDED)[verb], **words)
            yield Asked(worded, f"SELECT {q(name.name)} {where}", table.name)


def _classified(author: Author, table: Table, column: Column, values: Sequence[str]) -> Iterator[Asked]:
    value, label = author.rng.choice(values), author.labels.column(table, column.name)
    where, name = f"WHERE {q(column.name)} = {literal(value)}", author.labels.name(table)
    words = {**_words(author, table), "label": label, "value": author.rng.choice((value, value, value.lower()))}
    sex = label in ("gender", "sex")
    said = author.rng.choice(_SEXES.get(value.casefold(), (value,))) if sex else value.lower()
    adjective = sex or (label.split()[-1] in _STATES and value.isalpha())
    counted = author.worded(_ADJECTIVE, **{**words, "value": said}) if adjective else author.worded(_VALUED, **words)
    yield Asked(counted, f"SELECT COUNT(*) FROM {q(table.name)} {where}")
    per = f"SELECT {q(column.name)}, COUNT(*) FROM {q(table.name)} GROUP BY {q(column.name)}"
    yield Asked(author.worded(_PER, **words), per)
    if name is not None:
        shown = f"SELECT {q(name.name)} FROM {q(table.name)} "
        yield Asked(author.worded(_LISTED, **words), shown + where, table.name)
        unlike = f"WHERE {q(column.name)} <> {literal(value)}"
        yield Asked(author.worded(_NOT_VALUED, **words), shown + unlike, table.name)


def _two(author: Author, table: Table, classes: Sequence[tuple[Column, Sequence[str]]]) -> Iterator[Asked]:
    """Two conditions: a value and a number, and two values."""
    labels, name = author.labels, author.labels.name(table)
    measures = labels.measures(table)
    if classes and measures and name is not None:
        column, values = author.rng.choice(classes)
        measure, value = author.rng.choice(measures), author.rng.choice(values)
        numbers = sorted(v for v in author.values(table, measure.name) if isinstance(v, int | float))
        middle = numbers[len(numbers) // 2] if numbers else 0
        number = int(middle) if float(middle).is_integer() else middle
        sign, comparison = author.rng.choice(((">", "more than"), ("<", "less than")))
        words = {**_words(author, table), "label": labels.column(table, column.name), "value": value}
        label = labels.column(table, measure.name)
        said = {"measure": label, "a_measure": with_article(label), "comparison": comparison, "number": str(number)}
        where = f"WHERE {q(column.name)} = {literal(value)} AND {q(measure.name)} {sign} {literal(number)}"
        yield Asked(
            author.worded(_BOTH, **words, **said), f"SELECT {q(name.name)} FROM {q(table.name)} {where}", table.name
        )
    if len(classes) > 1:
        (one, own), (other, others) = author.rng.sample(list(classes), 2)
        value, second = author.rng.choice(own), author.rng.choice(others)
        joiner = author.rng.choice(tuple(_TWO))
        words = {**_words(author, table), "label": labels.column(table, one.name), "value": value}
        said = {"other": labels.column(table, other.name), "other_value": second}
        where = f"WHERE {q(one.name)} = {literal(value)} {joiner} {q(other.name)} = {literal(second)}"
        yield Asked(author.worded(_TWO[joiner], **words, **said), f"SELECT COUNT(*) FROM {q(table.name)} {where}")


_COUNT = (
    "How many {many} are there?",
    "Count the {many}.",
    "What is the total number of {many}?",
    "How many {many} do we have?",
    "Find the number of {many}.",
    "Tell me how many {many} there are in total.",
)
_LIST = (
    "What is the {label} of each {one}?",
    "Show the {label} of every {one}.",
    "List the {labels} of all {many}.",
    "For each {one}, give me the {label}.",
)
_LIST_WITH = (
    "What are the {label} and the {parent} {name} of each {one}?",
    "Show the {label} of every {one} together with the {name} of its {parent}.",
    "List the {labels} of all {many}, each with its {parent}'s {name}.",
    "For each {one}, give me the {label} and the {name} of the {parent}.",
)
_LIST_KEY = (
    "What are the {label} and the {key} of each {one}?",
    "Show the {label} and the {key} of every {one}.",
    "List the {labels} and {key}s of all {many}.",
    "For each {one}, give me the {label} and the {key}.",
)
_OF = (
    "What are the {labels} of the {many} whose {parent} {name} is {value}?",
    "Show the {label} of each {one} that belongs to the {parent} {value}.",
    "List the {labels} of {many} with the {parent} {name} {value}.",
    "Find the {labels} of all {many} of the {parent} called {value}.",
)
_COUNT_OF = (
    "How many {many} have the {parent} {name} {value}?",
    "How many {many} belong to the {parent} {value}?",
    "Count the {many} of the {parent} called {value}.",
)
_CHAIN = (
    "What are the {labels} of the {many} that belong to a {middle} of the {parent} {value}?",
    "Show the {label} of each {one} whose {middle}'s {parent} is {value}.",
    "List the {labels} of all {many} whose {middle} has the {parent} {value}.",
    "Find the {labels} of {many} where the {parent} of the {middle} is {value}.",
)
_CHAIN_EACH = (
    "How many {many} are there for each {parent}? Show the {parent} {name} and the number.",
    "Show the {name} of each {parent} and the number of {many} that belong to it.",
    "For each {parent}, give the {name} and count its {many}.",
)
MOST_CHAINS = 12


def tables(author: Author) -> Iterator[Asked]:
    """Questions on each table, each foreign key, and each chain of keys."""
    for table in author.tables:
        yield Asked(author.worded(_COUNT, many=author.labels.many(table)), f"SELECT COUNT(*) FROM {q(table.name)}")
    keys = author.labels.references()
    for key in keys:
        yield from _contrast(author, key)
    chains = [(a, b) for a in keys for b in keys if a.parent.name == b.child.name and b.parent.name != a.child.name]
    longer = [(*chain, c) for chain in chains for c in keys if chain[-1].parent.name == c.child.name]
    longer = [chain for chain in longer if len({key.child.name for key in chain} | {chain[-1].parent.name}) == 4]
    for some in (chains, longer):
        for chain in author.rng.sample(some, min(MOST_CHAINS, len(some))):
            yield from _chained(author, chain)


def _shown(author: Author, table: Table) -> Column | None:
    """The column that a question about the table's rows asks for: mostly the name."""
    name = author.labels.name(table)
    others = [*author.labels.texts(table), *author.labels.measures(table), *author.labels.dates(table)]
    if name is not None and (not others or author.rng.random() < 0.5):
        return name
    return author.rng.choice(others) if others else None


def _contrast(author: Author, key: Key) -> Iterator[Asked]:
    """The same question with and without what the parent knows, and with the key that stands in the child itself."""
    labels = author.labels
    name, shown = labels.name(key.parent), _shown(author, key.child)
    if name is None or shown is None:
        return
    parts = _table_words(author, key.child, shown, key.parent, name.name)
    child, key_label = q(key.child.name), labels.column(key.child, key.column)
    own = f"{child}.{q(shown.name)}"
    yield Asked(author.worded(_LIST, **parts), f"SELECT {q(shown.name)} FROM {child}")
    yield Asked(
        author.worded(_LIST_WITH, **parts), f"SELECT {own}, {q(key.parent.name)}.{q(name.name)} FROM {path([key])}"
    )
    if key_label.split()[-1] in ("id", "code", "number"):
        worded = author.worded(_LIST_KEY, **parts, key=key_label)
        yield Asked(worded, f"SELECT {q(shown.name)}, {q(key.column)} FROM {child}")
    for value in author.values(key.parent, name.name)[:1]:
        where = f"FROM {path([key])} WHERE {q(key.parent.name)}.{q(name.name)} = {literal(value)}"
        yield Asked(author.worded(_OF, **parts, value=str(value)), f"SELECT {own} {where}", key.child.name)
        yield Asked(author.worded(_COUNT_OF, **parts, value=str(value)), f"SELECT COUNT(*) {where}")


def _table_words(author: Author, table: Table, shown: Column, parent: Table, name: str) -> dict[str, str]:
    labels, label = author.labels, author.labels.column(table, shown.name)
    return {
        "one": labels.one(table),
        "many": labels.many(table),
        "label": label,
        "labels": plural(label),
        "parent": labels.one(parent),
        "name": labels.column(parent, name),
    }


def path(chain: Sequence[Key]) -> str:
    """FROM over a chain of keys, from the first child to the last parent."""
    joined = q(chain[0].child.name)
    for key in chain:
        here, there = q(key.child.name), q(key.parent.name)
        joined += f" JOIN {there} ON {here}.{q(key.column)} = {there}.{q(key.id)}"
    return joined


def _chained(author: Author, chain: Sequence[Key]) -> Iterator[Asked]:
    """A condition on the last table for a column of the first, and a count for each row of the last."""
    first, last = chain[0].child, chain[-1].parent
    name, shown = author.labels.name(last), _shown(author, first)
    if name is None or shown is None:
        return
    parts = {**_table_words(author, first, shown, last, name.name), "middle": author.labels.one(chain[-1].child)}
    end = f"{q(last.name)}.{q(name.name)}"
    found = author.rows(f"SELECT {end} FROM {path(chain)} GROUP BY {end} ORDER BY COUNT(*) DESC, {end} LIMIT 5")
    values = [row[0] for row in found if isinstance(row[0], str) and 0 < len(row[0]) <= 30]
    if values:
        value = author.rng.choice(values)
        sql = f"SELECT {q(first.name)}.{q(shown.name)} FROM {path(chain)} WHERE {end} = {literal(value)}"
        yield Asked(author.worded(_CHAIN, **parts, value=value), sql, first.name)
        grouped = f"SELECT {end}, COUNT(*) FROM {path(chain)} GROUP BY {q(last.name)}.{q(chain[-1].id)}"
        yield Asked(author.worded(_CHAIN_EACH, **parts), grouped)
