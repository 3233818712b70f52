"""What is predicted of plans and SQL: right where the plan leaves no choice, harmless where it is nonsense, found by drafts."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.assemble import ModelChoice, load_model
from agent.context import AgentOptions
from agent.conversation import Conversation
from agent.prompts.predicted_text import predicted_plans, predicted_sql, predicted_texts, skeletons
from agent.prompts.slots import Plan, Slots, parse_plan
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.databases.database import Database
from tools.linking.link_schema import Link
from tools.linking.match_values import ValueMatch
from tools.schema import Column, ForeignKey, Schema, Table

LEAD, END = "\nsql: ", "<end>"


def table(name: str, *columns: str, keys: tuple[ForeignKey, ...] = ()) -> Table:
    return Table(name, tuple(Column(column, "TEXT") for column in columns), foreign_keys=keys)


SCHEMA = Schema(
    dialect="sqlite",
    tables=(
        table("singer", "id", "name", "age", "country"),
        table("concert", "id", "year", "first name", "singer", keys=(ForeignKey(("singer",), "singer", ("id",)),)),
    ),
)


def sql(plan: str, question: str = "", *values: tuple[str, str, str]) -> tuple[str, ...]:
    matches = [ValueMatch(table, column, value, value, 1.0) for table, column, value in values]
    return predicted_sql(parse_plan(plan), SCHEMA, matches, question, LEAD, END)


@pytest.mark.parametrize(
    ("plan", "question", "values", "written"),
    [
        ("singer | SELECT COUNT(*) FROM _", "", (), "SELECT COUNT(*) FROM singer"),
        (
            "singer: name, age | SELECT _ FROM _ WHERE _ > _ ORDER BY _ LIMIT _",
            "Which 3 singers are over 40?",
            (),
            "SELECT name FROM singer WHERE age > 3 ORDER BY age LIMIT 40",
        ),
        (
            "singer: country, name | SELECT _ FROM _ WHERE _ = _",
            "Names in France",
            (("singer", "country", "France"),),
            "SELECT name FROM singer WHERE country = 'France'",
        ),
        (
            "singer: name; concert: year | SELECT _, COUNT(*) FROM _, _ WHERE _ = _ GROUP BY _ HAVING COUNT(*) > _",
            "in 2014",
            (),
            "SELECT singer.name, COUNT(*) FROM singer JOIN concert ON concert.singer = singer.id WHERE concert.year = 2014"
            " GROUP BY singer.name HAVING COUNT(*) > 1",
        ),
        (
            "singer: name, id; concert: singer | SELECT _ FROM _ WHERE _ NOT IN (SELECT _ FROM _)",
            "",
            (),
            "SELECT name FROM singer WHERE id NOT IN (SELECT singer FROM concert)",
        ),
        (
            "singer: name, age | SELECT _ FROM _ WHERE _ < (SELECT AVG(_) FROM _)",
            "",
            (),
            "SELECT name FROM singer WHERE age < (SELECT AVG(age) FROM singer)",
        ),
        (
            "singer: name, country | SELECT _ FROM _ WHERE _ = _ INTERSECT SELECT _ FROM _ WHERE _ LIKE _",
            "",
            (("singer", "country", "France"), ("singer", "country", "Cote d'Ivoire")),
            "SELECT name FROM singer WHERE country = 'France' INTERSECT SELECT name FROM singer WHERE country LIKE"
            " '%Cote d''Ivoire%'",
        ),
        (
            'concert: "first name", year | SELECT ANY_VALUE(_) FROM _ WHERE _ BETWEEN _ AND _ AND _ = _',
            "from 2010 to 2014",
            (("concert", "year", "x"),),
            "SELECT ANY_VALUE(\"first name\") FROM concert WHERE year BETWEEN 'x' AND 2010 AND year = 2014",
        ),
    ],
)  # fmt: skip
def test_blanks_are_filled_in_order(
    plan: str, question: str, values: tuple[tuple[str, str, str], ...], written: str
) -> None:
    """The numbers of the second and the last are in the wrong places: a guess may be wrong, and stops nothing."""
    assert sql(plan, question, *values) == (f"\nsql: {written}<end>",)


def test_a_piece_ends_where_nothing_is_known_and_the_last_where_the_statement_does() -> None:
    pieces = sql("singer: name, country, age | SELECT _ FROM _ WHERE _ = _ AND _ = _ GROUP BY _")
    assert pieces == (" GROUP BY name<end>", " AND age =", "\nsql: SELECT name FROM singer WHERE country =")


def test_plans_begin_with_the_likeliest_table_and_go_on_with_another() -> None:
    links = (
        Link("concert", None, 2.0),
        Link("concert", "year", 1.0),
        Link("singer", None, 1.0),
        Link("singer", "age", 0.5),
    )
    assert predicted_plans(links) == (
        "; singer | SELECT",
        "plan: singer | SELECT",
        "; concert: year | SELECT",
        "plan: concert: year | SELECT",
    )


def test_the_most_frequent_skeleton_is_the_last_and_all_end_plans() -> None:
    lines = skeletons("\n").splitlines()
    assert lines[-1] == " | SELECT _ FROM _ WHERE _ = _" and len(set(lines)) == len(lines) == 200
    assert all(parse_plan(f"singer{line}").skeleton == line[3:] for line in lines)


def test_each_step_is_told_its_own() -> None:
    slots = Slots(
        SCHEMA, "sqlite", "How many?", plan="singer | SELECT COUNT(*) FROM _", links=(Link("singer", None, 1.0),)
    )
    assert predicted_texts("plan", slots, "plan: ", END) == (
        (skeletons(END),),
        ("; singer | SELECT", "plan: singer | SELECT"),
    )
    assert predicted_texts("generate", slots, LEAD, END) == ((), ("\nsql: SELECT COUNT(*) FROM singer" + END,))
    assert predicted_texts("refine", slots, LEAD, END) == ((), ())
    assert predicted_texts("generate", Slots(SCHEMA, "sqlite", "How many?", plan="no plan at all"), LEAD, END) == (
        (),
        (),
    )


WORDS = ["SELECT", "FROM", "WHERE", "GROUP BY", "LIMIT", "HAVING", "_", ",", "(", ")", "=", "LIKE", "BETWEEN", "AND", "UNION",
         "COUNT", "DISTINCT", "*", "JOIN", "'", "1"]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=24), st.booleans())
def test_any_skeleton_is_survived(words: list[str], known: bool) -> None:
    """A model in training writes nonsense; nothing but the guess may suffer."""
    tables = parse_plan("singer: name; nowhere: x | S").tables if known else ()
    pieces = predicted_sql(Plan(tables, " ".join(words)), SCHEMA, (), "in 2014", LEAD, END)
    assert all(pieces) and (not pieces or pieces[-1].startswith("\nsql: "))


def test_drafts_find_what_is_predicted_and_the_conversation_does_not(tmp_path: Path, database: Database) -> None:
    """Also: answers are the same without."""
    path = tiny_checkpoint(tmp_path / "tiny", max_position_embeddings=4096)
    loaded = load_model(ModelChoice(str(path), profile="compact", temperature=1.0, decoder="prompt_lookup"))
    tokenizer, answers = loaded.decoder.tokenizer, []
    ends = skeletons(tokenizer.token(min(tokenizer.stop_ids)))
    for predicted in (True, False):
        toolbox = loaded.toolbox(database, AgentOptions(max_attempts=1, predicted_outputs=predicted))
        answers.append(Conversation(toolbox).ask("How many singers are there?").attempts)
        told = [tokenizer.decode(ids, special=True) for ids in toolbox.calls["plan"].options["recall"].sequences]
        assert ([text.startswith("plan: ") for text in told[:1]] == [True]) == predicted
        assert (ends in told) == predicted
        assert ends not in [tokenizer.decode(ids, special=True) for ids in toolbox.recall.sequences]
    assert answers[0] == answers[1]
