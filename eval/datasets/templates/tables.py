"""Templates for the choice of tables: counts of each, the same question with and without a second table, look-up tables, and
chains of three and four tables."""

from collections.abc import Iterator, Sequence

from eval.datasets.templates.asked import Asked, Author, literal, q
from eval.datasets.templates.labels import Key
from eval.datasets.variants.wording import plural
from tools.schema import Column, Table

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
    parts = _words(author, key.child, shown, key.parent, name.name)
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


def _words(author: Author, table: Table, shown: Column, parent: Table, name: str) -> dict[str, str]:
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
    parts = {**_words(author, first, shown, last, name.name), "middle": author.labels.one(chain[-1].child)}
    end = f"{q(last.name)}.{q(name.name)}"
    found = author.rows(f"SELECT {end} FROM {path(chain)} GROUP BY {end} ORDER BY COUNT(*) DESC, {end} LIMIT 5")
    values = [row[0] for row in found if isinstance(row[0], str) and 0 < len(row[0]) <= 30]
    if values:
        value = author.rng.choice(values)
        sql = f"SELECT {q(first.name)}.{q(shown.name)} FROM {path(chain)} WHERE {end} = {literal(value)}"
        yield Asked(author.worded(_CHAIN, **parts, value=value), sql, first.name)
        grouped = f"SELECT {end}, COUNT(*) FROM {path(chain)} GROUP BY {q(last.name)}.{q(chain[-1].id)}"
        yield Asked(author.worded(_CHAIN_EACH, **parts), grouped)
