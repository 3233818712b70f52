"""Templates for superlatives over numbers and dates; which end a word means depends on what the column measures."""

from collections.abc import Iterator, Mapping, Sequence

from eval.datasets.templates.asked import Asked, Author, q
from eval.datasets.templates.labels import participle
from eval.datasets.variants.wording import plural
from tools.linking.word_forms import word_set
from tools.schema import Column, Table

Ends = Mapping[str, Sequence[str]]  # words by the direction in which they sort first

# By the last words of a label that fit, the first entry wins.
_MEANINGS: Sequence[tuple[frozenset[str], Ends]] = (
    (word_set("height elevation"), {"DESC": ("tallest", "highest"), "ASC": ("shortest", "lowest")}),
    (word_set("age"), {"DESC": ("oldest",), "ASC": ("youngest",)}),
    (word_set("weight"), {"DESC": ("heaviest",), "ASC": ("lightest",)}),
    (
        word_set("price cost costs fee fees"),
        {"DESC": ("most expensive", "priciest"), "ASC": ("cheapest", "least expensive")},
    ),
    (word_set("salary wage income"), {"DESC": ("best-paid", "highest-paid"), "ASC": ("worst-paid", "lowest-paid")}),
    (word_set("length"), {"DESC": ("longest",), "ASC": ("shortest",)}),
    (word_set("duration runtime"), {"DESC": ("longest",), "ASC": ("shortest",)}),
    (word_set("area size capacity population acreage"), {"DESC": ("largest", "biggest"), "ASC": ("smallest",)}),
    (word_set("speed horsepower"), {"DESC": ("fastest",), "ASC": ("slowest",)}),
    (word_set("rating stars"), {"DESC": ("best-rated", "highest-rated"), "ASC": ("worst-rated", "lowest-rated")}),
    (word_set("depth"), {"DESC": ("deepest",), "ASC": ("shallowest",)}),
    (word_set("distance"), {"DESC": ("longest", "farthest"), "ASC": ("shortest", "nearest")}),
)
_BORN: Ends = {"DESC": ("youngest",), "ASC": ("oldest",)}
_FOUNDED: Ends = {"DESC": ("newest",), "ASC": ("oldest",)}
_DATED: Ends = {"DESC": ("most recent", "latest"), "ASC": ("earliest",)}
_BIRTH = word_set("birth born birthday dob birthdate")
_BEGUN = word_set("founded opened built opening founding established construction built")
_OF_SEVERAL = word_set("start end from to begin begins ends expiry expiration")

_OF_ITSELF = frozenset(
    (
        "date",
        "year",
        "release date",
        "release year",
        "publication date",
        "year of publication",
        "order date",
        "invoice date",
    )
)

_ONE = (
    "What is the {name} of the {word} {one}?",
    "Which {one} is the {word}? Show the {name}.",
    "Find the {name} of the {word} {one}.",
    "Give me the {word} {one}'s {name}.",
    "Show the {name} of the {one} that is the {word}.",
)
_SEVERAL = (
    "What are the {names} of the {n} {word} {many}?",
    "List the {names} of the {n} {word} {many}.",
    "Show the {n} {word} {many} by {name}.",
)
_ONE_PLAIN = (
    "Which {one} has the {word} {label}? Show the {name}.",
    "What is the {name} of the {one} with the {word} {label}?",
    "Find the {name} of the {one} that has the {word} {label}.",
    "Show the {name} of the {one} whose {label} is the {word}.",
)
_SEVERAL_PLAIN = (
    "What are the {names} of the {n} {many} with the {word} {label}?",
    "List the {names} of the {n} {many} that have the {word} {label}.",
)
_VALUE = {
    "DESC": ("What is the {highest} {label} of any {one}?", "What is the maximum {label} among the {many}?"),
    "ASC": ("What is the {lowest} {label} of any {one}?", "What is the minimum {label} among the {many}?"),
}
_ORDERED = (
    "List the {names} of all {many}, {first} first.",
    "Show the {names} of the {many}, the {first} first.",
    "What are the {names} of all {many}, sorted with the {first} first?",
)
_HAPPENED = {
    "ASC": ("Which {one} was {done} first? Show the {name}.", "What is the {name} of the {one} that was {done} first?"),
    "DESC": (
        "Which {one} was {done} last? Just the {name}.",
        "What is the {name} of the most recently {done} {one}?",
        "Show the {name} of the {one} that was {done} last.",
    ),
}
_NUMBERS = {2: "two", 3: "three", 5: "five"}
_HIGH: Ends = {"DESC": ("highest", "greatest", "largest"), "ASC": ("lowest", "smallest")}
_MANY: Ends = {"DESC": ("most",), "ASC": ("fewest",)}
_FIGURED = word_set("class status address series less plus hours")


def superlatives(author: Author) -> Iterator[Asked]:
    """Questions on each measure and date of each table whose rows have names."""
    for table in author.tables:
        name = author.labels.name(table)
        if name is not None:
            for column in author.labels.measures(table):
                yield from _measured(author, table, name, column)
            for column in author.labels.dates(table)[:2]:
                yield from _dated(author, table, name, column)


def meaning(label: str) -> Ends | None:
    """The words for the two ends of a measure; None if only `highest` and `lowest` fit."""
    last = label.split()[-1:]
    return next((ends for words, ends in _MEANINGS if words & set(last)), None)


def _measured(author: Author, table: Table, name: Column, column: Column) -> Iterator[Asked]:
    label = author.labels.column(table, column.name)
    ends = meaning(label)
    plain = ends is None or author.rng.random() < 0.35
    counted = label.endswith("s") and not _FIGURED & set(label.split()) and meaning(label) is None
    for direction, words in (_plain(counted) if plain else ends or {}).items():
        yield from _ordered(author, table, name, column, direction, author.rng.choice(tuple(words)), plain)
    direction = author.rng.choice(("DESC", "ASC"))
    text = author.worded(
        _VALUE[direction], **_words(author, table, name), label=label, highest="highest", lowest="lowest"
    )
    yield Asked(text, f"SELECT {'MAX' if direction == 'DESC' else 'MIN'}({q(column.name)}) FROM {q(table.name)}")


def _plain(counted: bool) -> Ends:
    return _MANY if counted else _HIGH


def _dated(author: Author, table: Table, name: Column, column: Column) -> Iterator[Asked]:
    label = author.labels.column(table, column.name)
    said = set(label.split())
    if said & _OF_SEVERAL or not _sorts_by_time(author, table, column):
        return
    ends = _BORN if said & _BIRTH else _FOUNDED if said & _BEGUN else _DATED
    plain = ends is _DATED and label not in _OF_ITSELF
    for direction, words in ends.items():
        yield from _ordered(author, table, name, column, direction, author.rng.choice(tuple(words)), plain)
        done = participle(label)
        if done and author.distinct_top(table, column.name, direction):
            text = author.worded(_HAPPENED[direction], **_words(author, table, name), done=done)
            ordered = f"SELECT {q(name.name)} FROM {q(table.name)} ORDER BY {q(column.name)} {direction}"
            yield Asked(text, f"{ordered} LIMIT 1", table.name)


def _sorts_by_time(author: Author, table: Table, column: Column) -> bool:
    """Whether sorting the cells sorts by time: years, or dates that begin with the year."""
    values = [str(value) for value in author.values(table, column.name)]
    return len(values) > 2 and all(value[:4].isdigit() and (len(value) == 4 or value[4:5] == "-") for value in values)


def _words(author: Author, table: Table, name: Column) -> dict[str, str]:
    label = author.labels.column(table, name.name)
    return {"one": author.labels.one(table), "many": author.labels.many(table), "name": label, "names": plural(label)}


def _ordered(
    author: Author, table: Table, name: Column, column: Column, direction: str, word: str, plain: bool
) -> Iterator[Asked]:
    """The first, the first few, and for a word of its own all in that order. `plain`: the word needs the column's label."""
    parts = {**_words(author, table, name), "word": word, "label": author.labels.column(table, column.name)}
    ordered = f"SELECT {q(name.name)} FROM {q(table.name)} ORDER BY {q(column.name)} {direction}"
    if author.distinct_top(table, column.name, direction):
        wordings: Sequence[str] = (
            _ONE_PLAIN[:3] if plain and word in ("most", "fewest") else _ONE_PLAIN if plain else _ONE
        )
        yield Asked(author.worded(wordings, **parts), f"{ordered} LIMIT 1", table.name)
    count = author.rng.choice(tuple(_NUMBERS))
    if author.distinct_top(table, column.name, direction, count):
        number = author.rng.choice((str(count), _NUMBERS[count]))
        wordings = _SEVERAL_PLAIN if plain else _SEVERAL
        yield Asked(author.worded(wordings, **parts, n=number), f"{ordered} LIMIT {count}", table.name)
    if not plain and author.rng.random() < 0.5:
        yield Asked(author.worded(_ORDERED, **parts, first=word), ordered)
