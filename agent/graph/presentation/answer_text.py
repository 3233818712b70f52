"""Writes the one-sentence answer from a template, the result and the SQL: a 135M model must not retype rows."""

from collections.abc import Sequence

from agent.graph.presentation.result_sentence import result_sentence
from agent.graph.presentation.shown import Shown
from agent.graph.presentation.words import singular, words
from agent.state import Attempt, State
from tools.linking.ambiguity import Meaning
from tools.sql.parse_quietly import parse_or_nothing

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
