"""Synonyms of a question's words lead to the names that mean the same, but not if the names have the words themselves."""

from pathlib import Path

import pytest

import tools.linking.word_forms
from tools.linking.link_schema import link
from tools.linking.word_forms import other_words
from tools.schema import Column, Schema, Table


def schema(**tables: str) -> Schema:
    made = [Table(name, tuple(Column(each, "TEXT") for each in names.split())) for name, names in tables.items()]
    return Schema(tuple(made), "sqlite")


def best_column(question: str, of: Schema) -> str:
    return next(f"{found.table}.{found.column}" for found in link(of, question) if found.column)


@pytest.mark.parametrize(
    ("question", "want"),
    [
        ("Which nations have the most airlines?", "airports.country"),
        ("List the surnames of all pupils.", "student.LName"),
        ("forenames, please", "student.Fname"),
        ("What is the altitude of JFK?", "airports.elevation"),
        ("Each student's date of birth", "student.birthday"),
    ],
)
def test_another_word_for_a_name_is_a_link_to_it(question: str, want: str) -> None:
    assert best_column(question, schema(student="id LName Fname birthday", airports="code country elevation")) == want


def test_a_word_that_a_name_has_means_itself() -> None:
    of = schema(people="id nation country")
    links = {found.column: found.score for found in link(of, "people of each nation") if found.column}
    assert "nation" in links and "country" not in links
    assert other_words(["nation"], {"nation"}) == []
    assert ("country",) in other_words(["nation"], {"country"})


def test_the_longest_phrase_counts_and_its_words_no_more() -> None:
    assert other_words(["family", "name"], {"name", "last"}) == [("last", "name"), ("surname",)]
    assert other_words(["zebra", "of"], set()) == []


def test_every_line_is_a_group_of_at_least_two_phrases_of_few_words() -> None:
    lines = Path(tools.linking.word_forms.__file__).with_name("thesaurus.txt").read_text(encoding="utf-8").splitlines()
    groups = [line.split(", ") for line in lines if not line.startswith("#")]
    assert len(groups) > 300
    assert all(len(set(group)) == len(group) > 1 for group in groups)
    assert all(0 < len(phrase.split()) <= tools.linking.word_forms.LONGEST for group in groups for phrase in group)
