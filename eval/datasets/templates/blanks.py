"""Templates for columns that are empty or filled: artists without a website, customers whose city is not known."""

from collections.abc import Iterator

from eval.datasets.templates.asked import Asked, Author, q
from eval.datasets.templates.labels import participle
from eval.datasets.variants.wording import plural, with_article
from tools.schema import Column, Table

_COUNTED = {
    "NULL": (
        "How many {many} have no {label}?",
        "How many {many} are there without {a_label}?",
        "Count the {many} whose {label} is not known.",
        "For how many {many} is the {label} missing?",
        "What is the number of {many} with no {label}?",
    ),
    "NOT NULL": (
        "How many {many} have {a_label}?",
        "Count the {many} with {a_label}.",
        "For how many {many} is the {label} known?",
        "How many {many} are there whose {label} is given?",
    ),
}
_LISTED = {
    "NULL": (
        "What are the {names} of the {many} without {a_label}?",
        "List the {names} of all {many} that have no {label}.",
        "Which {many} have no {label}? Show their {name}.",
        "Show the {name} of each {one} whose {label} is unknown.",
        "{many} with a missing {label}: {names} please",
    ),
    "NOT NULL": (
        "What are the {names} of the {many} that have {a_label}?",
        "List the {names} of {many} whose {label} is known.",
        "Which {many} have {a_label}? Show their {name}.",
    ),
}
_HAPPENED = {  # for columns such as returned_on
    "NULL": (
        "How many {many} have not been {done} yet?",
        "Count the {many} that were never {done}.",
        "How many {many} were not {done}?",
    ),
    "NOT NULL": ("How many {many} have been {done}?", "Count the {many} that were {done}."),
}
_VALUES = ("Which {labels} are there?", "What are the different {labels} of the {many}?", "List all {labels} we have.")
MOST = 4  # columns of a table
SHORTEST = 3  # letters of a label that people would say


def blanks(author: Author) -> Iterator[Asked]:
    """Questions on columns that need not be filled. Their results may be empty: the cells of test data often are."""
    for table in author.tables:
        columns = _fillable(author, table)
        for column in author.rng.sample(columns, min(MOST, len(columns))):
            yield from _blank(author, table, column)


def _fillable(author: Author, table: Table) -> list[Column]:
    labels, name = author.labels, author.labels.name(table)
    columns = [*labels.texts(table), *labels.measures(table), *labels.dates(table)]
    free = [column for column in columns if column.nullable and column != name and not column.primary_key]
    return [column for column in free if len(labels.column(table, column.name)) >= SHORTEST]


def _blank(author: Author, table: Table, column: Column) -> Iterator[Asked]:
    labels, name = author.labels, author.labels.name(table)
    label = labels.column(table, column.name)
    named = labels.column(table, name.name) if name else ""
    parts = {"one": labels.one(table), "many": labels.many(table), "name": named, "names": plural(named)}
    parts |= {"label": label, "a_label": with_article(label), "labels": plural(label)}
    done = participle(label)
    for state in ("NULL", "NOT NULL"):
        where = f"FROM {q(table.name)} WHERE {q(column.name)} IS {state}"
        wordings = _HAPPENED[state] if done else _COUNTED[state]
        yield Asked(author.worded(wordings, **parts, done=done), f"SELECT COUNT(*) {where}", may_be_empty=True)
        if name is not None and not done:
            text = author.worded(_LISTED[state], **parts)
            yield Asked(text, f"SELECT {q(name.name)} {where}", may_be_empty=True)
    if column in labels.texts(table):
        distinct = f"SELECT DISTINCT {q(column.name)} FROM {q(table.name)}"
        yield Asked(author.worded(_VALUES, **parts), distinct, may_be_empty=True)
