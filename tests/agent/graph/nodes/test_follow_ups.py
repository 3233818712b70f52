"""Guards conversations through the graph: what the prompt of a later question shows, and which reading is taken.

Guards asking back: only askers who can choose are offered the meanings of an unclear question, and a choice settles it.

What linking finds reaches the prompt, less what a question hardly means.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.context import AgentContext, AgentOptions
from agent.conversation import Conversation, Retry, records
from agent.nodes.link import ENGLISH_ONLY
from agent.observe.events import Answered, Unclear, from_json, to_json
from agent.prompts.profiles import load_profile
from app.ask.ask import follow
from app.shared.process import MachineTurn
from tests.agent.conftest import ScriptedModel, Talk
from tools.databases.database import Database
from tools.databases.open_database import open_database

COUNT = "SELECT COUNT(*) FROM singer WHERE country = 'France'"
ALL = "SELECT COUNT(*) FROM singer"
CONCERTS = "SELECT COUNT(*) FROM concert"
PLAN = "singer | SELECT COUNT(*) FROM _"


def _prompt(conversation: Conversation, step: str = "plan") -> str:
    return str(conversation.toolbox.calls[step].messages[0].text)


def _names(conversation: Conversation, question: str) -> list[str]:
    return [step["name"] for step in conversation.ask(question).steps]


def test_a_question_that_stands_by_itself_gets_the_prompt_of_a_first_one(talk: Talk) -> None:
    """The history made the model write the former SQL again: 12 of 84 right in one chat, 65 asked afresh."""
    alone = talk(PLAN, CONCERTS)
    alone.ask("How many concerts are there?")
    later = talk(PLAN, COUNT, PLAN, CONCERTS)
    later.ask("How many singers are from France?")
    answer = later.ask("How many concerts are there?")
    assert (answer.rows, answer.continues) == ([[3]], None)
    for step in ("plan", "generate"):
        assert _prompt(later, step) == _prompt(alone, step)


def test_a_filter_is_replaced_without_the_model(talk: Talk) -> None:
    conversation = talk(PLAN, COUNT)
    conversation.ask("How many singers are from France?")
    answer = conversation.ask("And from Spain?")
    assert (answer.sql, answer.continues) == ("SELECT COUNT(*) FROM singer WHERE country = 'Spain'", 1)
    assert [step["name"] for step in answer.steps] == ["relate", "link", "adapt", "check", "execute", "answer"]
    third = conversation.ask("by age")
    assert third.continues == 2
    assert third.sql == "SELECT age, COUNT(*) FROM singer WHERE country = 'Spain' GROUP BY age"


def test_what_leans_shows_the_model_the_question_that_it_continues_alone(talk: Talk) -> None:
    young = "SELECT name FROM singer WHERE age < 30"
    conversation = talk(PLAN, CONCERTS, PLAN, "SELECT name FROM singer", PLAN, young)
    conversation.ask("How many concerts are there?")
    conversation.ask("Which singers are there?")
    answer = conversation.ask("only the young ones")
    assert answer.continues == 2
    assert "history: Which singers are there? => SELECT name FROM singer\n" in _prompt(conversation)


def test_a_pronoun_is_replaced_by_the_one_thing_that_was_answered(talk: Talk) -> None:
    conversation = talk(PLAN, "SELECT name FROM singer WHERE age = 45", PLAN, CONCERTS)
    conversation.ask("Which singer is 45?")
    answer = conversation.ask("How many concerts does that singer have?")
    assert "question: How many concerts does Bo have?\n" in _prompt(conversation)
    assert "history:" not in _prompt(conversation)
    assert (answer.question, answer.continues) == ("How many concerts does that singer have?", 1)


def test_in_doubt_both_readings_are_decoded_and_the_one_that_covers_the_question_is_taken(talk: Talk) -> None:
    follow_up, fresh = ALL, "SELECT MAX(age) FROM singer"
    conversation = talk(PLAN, ALL, PLAN, PLAN, fresh, follow_up)
    conversation.ask("How many singers are there?")
    answer = conversation.ask("What is the highest age?")
    assert (answer.rows, answer.continues) == ([[45]], None)
    assert next(step for step in answer.steps if step["name"] == "choose")["detail"] == "by itself"


def test_the_sql_of_another_question_is_not_accepted_before_the_question_was_read_by_itself(talk: Talk) -> None:
    conversation = talk(PLAN, ALL, PLAN, ALL, PLAN, CONCERTS)
    conversation.ask("How many singers are there?")
    answer = conversation.ask("only their gigs")
    assert (answer.sql, answer.continues) == (CONCERTS, None)
    assert [step["name"] for step in answer.steps].count("plan") == 2


def test_the_asker_chooses_the_reading(talk: Talk) -> None:
    conversation = talk(PLAN, COUNT, PLAN, CONCERTS)
    conversation.ask("How many singers are from France?")
    answer = conversation.ask("And from Spain?", again=Retry("standalone"))
    assert (answer.sql, answer.continues) == (CONCERTS, None)
    assert "history:" not in _prompt(conversation)


def test_refused_sql_does_not_come_back(talk: Talk) -> None:
    """Retry gave the same answer again."""
    conversation = talk(PLAN, ALL, *[PLAN] * 4, ALL, *[PLAN] * 3, "other | SELECT _", ALL, CONCERTS)
    answer = conversation.ask("How many?", again=Retry(refused=(ALL.lower(),)))
    assert answer.sql == CONCERTS
    stubborn = talk(PLAN, ALL, *[PLAN] * 4, ALL, *[PLAN] * 4, ALL)
    refused = stubborn.ask("How many?", again=Retry(refused=(ALL,)))
    assert refused.sql is None and refused.error is not None and "you have seen" in refused.error["message"]


def test_starting_over_forgets_the_turns(talk: Talk) -> None:
    conversation = talk(PLAN, COUNT, PLAN, CONCERTS)
    conversation.ask("How many singers are from France?")
    over = conversation.ask("Start over.")
    assert (over.error, over.sql, over.continues) == (None, None, None)
    assert "itself" in over.answer
    answer = conversation.ask("And from Spain?")
    assert answer.continues is None
    assert "history:" not in _prompt(conversation)
    asked = talk(PLAN, CONCERTS).ask("Forget that. How many concerts are there?")
    assert (asked.question, asked.rows) == ("Forget that. How many concerts are there?", [[3]])


def test_questions_are_numbered_over_failures(talk: Talk) -> None:
    conversation = talk(PLAN, "SELECT nothing FROM nowhere", PLAN, COUNT, max_attempts=1)
    assert conversation.ask("How many gigs are there?").error is not None
    conversation.ask("How many singers are from France?")
    assert conversation.ask("And from Spain?").continues == 2


def test_turns_of_an_older_release_have_no_number(talk: Talk) -> None:
    conversation = talk(PLAN, CONCERTS)
    turns = {"turns": [{"question": "How many singers are from France?", "sql": COUNT}]}
    conversation._graph.update_state(conversation._config, turns, as_node="answer")
    assert conversation.ask("And from Spain?").continues == 1


def test_what_is_not_here_is_told_without_the_model(talk: Talk) -> None:
    conversation = talk(PLAN, COUNT)
    told = conversation.ask("What is the weather?")
    assert told.answer.startswith("Nothing here is about “weather”. There are ") and (told.sql, told.error) == (
        None,
        None,
    )
    assert [step["name"] for step in told.steps] == ["link"]
    assert conversation.ask("How many singers are from France?").sql == COUNT
    assert talk(PLAN, COUNT, present=False).ask("What is the weather?").sql == COUNT


def test_all_rows_of_a_table_are_asked_for_without_the_model(talk: Talk) -> None:
    """ "Count the rows" was read as a condition, "show me the data" as one column."""
    conversation = talk(PLAN, COUNT)
    counted = conversation.ask("How many rows does the singer table have?")
    assert counted.sql == 'SELECT COUNT(*) FROM "singer"' and [step["name"] for step in counted.steps][:2] == [
        "link",
        "check",
    ]
    shown = conversation.ask("Show me all records of singer")
    assert shown.sql == 'SELECT * FROM "singer"' and len(shown.rows) == counted.rows[0][0]
    assert talk(PLAN, COUNT).ask("Show me the data").answer.startswith("There are ")
    assert talk(PLAN, COUNT, present=False).ask("How many rows does the singer table have?").sql == COUNT


def test_small_talk_is_answered_in_words_and_forgets_nothing(talk: Talk) -> None:
    conversation = talk(PLAN, COUNT)
    hello = conversation.ask("Hello!")
    assert hello.answer.startswith("Hello. There are ") and "How many" in hello.answer
    assert (hello.sql, hello.error, hello.rows) == (None, None, [])
    assert [step["name"] for step in hello.steps] == ["relate"]
    conversation.ask("How many singers are from France?")
    thanks = conversation.ask("thank you")
    assert (thanks.answer, thanks.sql, thanks.error, thanks.continues) == ("You are welcome.", None, None, None)
    assert conversation.ask("And from Spain?").sql == "SELECT COUNT(*) FROM singer WHERE country = 'Spain'"


QUESTION, BAND = "How many are called Home?", "Home refers to artists.name = 'Home'"
COUNT_CLARIFY = "SELECT COUNT(*) FROM artists WHERE name = 'Home'"


@pytest.fixture
def music(tmp_path: Path) -> Iterator[Database]:
    """`Home` is an artist and an album."""
    (tmp_path / "artists.csv").write_text("artist_id,name\n1,Home\n2,Ada\n")
    (tmp_path / "albums.csv").write_text("album_id,title,artist_id\n1,Home,2\n2,Away,1\n")
    opened = open_database([tmp_path / "artists.csv", tmp_path / "albums.csv"])
    yield opened
    opened.close()


def talk(database: Database, *lines: str, clarify: bool = True) -> Conversation:
    model = ScriptedModel(responses=list(lines))
    return Conversation(AgentContext(database, model, load_profile("compact"), AgentOptions(clarify=clarify)))


def test_an_unclear_question_is_asked_back_before_any_model_call(music: Database) -> None:
    conversation = talk(music)
    told = list(records(conversation, QUESTION))
    (unclear,) = (event for event in told if isinstance(event, Unclear))
    assert unclear == Unclear(
        "Home", {"the artist's name": BAND, "the album's title": "Home refers to albums.title = 'Home'"}
    )
    assert from_json(to_json(unclear)) == unclear
    assert isinstance(told[-1], Answered)
    error = told[-1].answer["error"]
    assert (error["kind"], error["candidates"]) == ("unclear", list(unclear.options))
    assert error["message"] == "“Home” as the artist's name, or the album's title?"
    assert not conversation._graph.get_state(conversation._config).values.get("turns")


def test_the_choice_settles_it(music: Database) -> None:
    conversation = talk(music, "artists: name", COUNT_CLARIFY)
    conversation.ask(QUESTION)
    answer = conversation.ask(QUESTION, BAND)
    assert answer.rows == [[1]]
    prompt = str(conversation.toolbox.calls["generate"].messages[0].text)
    assert f"evidence: {BAND}\n" in prompt
    assert "values: artists.name = 'Home'\n" in prompt, "the other meaning is no longer offered to the model"


@pytest.mark.parametrize(("typed", "evidence", "again"), [("1", BAND, True), ("3", "", False)])
def test_on_a_terminal_a_number_is_typed(
    music: Database, monkeypatch: pytest.MonkeyPatch, typed: str, evidence: str, again: bool
) -> None:
    monkeypatch.setattr("builtins.input", lambda *prompt: typed)
    conversation = talk(music, "artists: name", COUNT_CLARIFY)
    assert follow(MachineTurn(), conversation, QUESTION)["rows"] == [[1]]
    lines = str(conversation.toolbox.calls["generate"].messages[0].text).splitlines()
    assert [line for line in lines if line.startswith("evidence:")] == ([f"evidence: {evidence}"] if evidence else [])
    assert conversation.toolbox.options.clarify == again


THE_ARTISTS = "Norway refers to artists.country = 'Norway'"


@pytest.fixture
def abroad(tmp_path: Path) -> Iterator[Database]:
    """Artists and customers come from Norway and Germany; customers alone from Spain."""
    (tmp_path / "artists.csv").write_text("artist_id,name,country\n1,Ada,Norway\n2,Bo,Germany\n3,Cy,Norway\n")
    (tmp_path / "customers.csv").write_text("customer_id,country,age\n1,Norway,30\n2,Germany,40\n3,Spain,50\n")
    opened = open_database([tmp_path / "artists.csv", tmp_path / "customers.csv"])
    yield opened
    opened.close()


def asked_back(database: Database, *lines: str) -> Conversation:
    """A conversation whose first question was answered and whose second was asked back."""
    conversation = talk(database, "customers: age", "SELECT COUNT(*) FROM customers WHERE age = 40", *lines)
    assert conversation.ask("How many customers are 40 years of age?").rows == [[1]]
    error = conversation.ask("How many come from Norway?").error
    assert error is not None and error["kind"] == "unclear"
    return conversation


def test_what_is_asked_next_goes_on_from_the_question_that_was_asked_back(abroad: Database) -> None:
    """It continued the newest question that had been answered, which was about something else."""
    conversation = asked_back(abroad, "artists: name", "SELECT COUNT(*) FROM artists WHERE country = 'Germany'")
    germany = conversation.ask("And from Germany?")
    assert germany.error is not None and germany.continues == 2
    assert (germany.question, germany.error["question"]) == ("And from Germany?", "How many come from Germany?")
    chosen = germany.error["meanings"]["the artist's country"]
    answer = conversation.ask("And from Germany?", chosen)
    assert answer.rows == [[1]]
    prompt = str(conversation.toolbox.calls["generate"].messages[0].text)
    assert f"evidence: {chosen}\nquestion: How many come from Germany?\n" in prompt and "history:" not in prompt


def test_the_question_that_was_asked_back_can_be_settled_in_words(abroad: Database) -> None:
    conversation = asked_back(abroad, "artists: name", "SELECT COUNT(*) FROM artists WHERE country = 'Norway'")
    answer = conversation.ask("I meant the artist's.")
    assert (answer.rows, answer.continues) == ([[2]], 2)
    assert f"evidence: {THE_ARTISTS}\n" in str(conversation.toolbox.calls["generate"].messages[0].text)
    assert conversation.ask("And from Germany?").continues == 3


def test_a_complete_question_leaves_the_one_that_was_asked_back(abroad: Database) -> None:
    customers = "SELECT COUNT(*) FROM customers WHERE country = 'Spain'"
    conversation = asked_back(abroad, "customers: country", customers)
    assert conversation.ask("Thanks!").answer == "You are welcome."
    answer = conversation.ask("How many customers come from Spain?")
    assert (answer.rows, answer.continues) == ([[1]], None)
    assert conversation.ask("And from Norway?").continues == 4


def test_undo_and_starting_over_forget_the_question_that_was_asked_back(abroad: Database) -> None:
    for forget in (Conversation.undo, lambda talking: talking.ask("Start over.")):
        conversation = asked_back(abroad, "customers: country", "SELECT COUNT(*) FROM customers")
        forget(conversation)
        assert conversation.ask("And from Germany?").continues is None


def test_who_cannot_choose_is_never_asked(music: Database) -> None:
    answer = talk(music, "artists: name", COUNT_CLARIFY, clarify=False).ask(QUESTION)
    assert answer.error is None
    assert "clarify" not in [step["name"] for step in answer.steps]


def test_a_clear_question_goes_on(music: Database) -> None:
    answer = talk(music, "artists: name", COUNT_CLARIFY).ask("How many artists are called Ada?")
    assert [step["name"] for step in answer.steps][:3] == ["link", "clarify", "plan"]
    assert answer.error is None


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Database]:
    (tmp_path / "levels.csv").write_text("level,level_name\n1,Product\n2,Shelf\n")
    (tmp_path / "products.csv").write_text("product_id,price\n1,10\n2,20\n")
    opened = open_database([tmp_path / "levels.csv", tmp_path / "products.csv"])
    yield opened
    opened.close()


def test_a_plain_word_of_the_schema_names_no_value(catalog: Database) -> None:
    """SQL that takes it for one is planned again, with prompts that do not show it; other SQL is not."""
    question, plan = "What is the average price of all products?", "products: price | SELECT AVG(_) FROM _"
    wrong = "SELECT AVG(price) FROM products CROSS JOIN levels WHERE level_name = 'Product'"
    right = "SELECT AVG(price) FROM products"
    for without, lines, asked in (
        ((), [plan, wrong, plan, right], 4),
        ((), [plan, right], 2),
        (("meant",), [plan, wrong], 2),
    ):
        model = ScriptedModel(responses=lines)
        toolbox = AgentContext(catalog, model, load_profile("compact"), AgentOptions(without_rules=without))
        answer = Conversation(toolbox).ask(question)
        assert answer.sql == lines[-1]
        assert sum(step["name"] in ("plan", "generate") for step in answer.steps) == asked
        assert ("'Product'" in str(toolbox.calls["plan"].messages[0].text)) is (asked == 2)


def test_a_step_names_the_keys_that_settle_ties(catalog: Database) -> None:
    sql = "SELECT level FROM levels ORDER BY level_name LIMIT 1"
    conversation = Conversation(
        AgentContext(catalog, ScriptedModel(responses=["plan", sql]), load_profile("compact"), AgentOptions())
    )
    answer = conversation.ask("Which level comes first?")
    assert answer.sql == sql
    assert any(step["detail"] == '1 rows, ties settled by "levels".rowid' for step in answer.steps)


@pytest.mark.parametrize("question", ["كم عدد المغنين؟", "Wie viele Sänger gibt es?", "¿Cuántos cantantes hay?"])
def test_a_question_in_another_language_is_told_so(talk: Talk, question: str) -> None:
    """“0 evils.” was once the answer to one in Arabic. A larger model is asked in whatever language."""
    told = talk(PLAN, COUNT).ask(question)
    assert (told.answer, told.sql, told.error) == (ENGLISH_ONLY, None, None)
    assert talk(PLAN, COUNT, profile="chat").ask(question).answer != ENGLISH_ONLY


def test_names_in_other_letters_are_no_other_language(talk: Talk, tmp_path: Path) -> None:
    """A short question is mostly names, where a database's names are Chinese. Those in English are said in English."""
    assert talk(PLAN, COUNT).ask("singer 王菲").answer != ENGLISH_ONLY
    with closing(sqlite3.connect(tmp_path / "sales.sqlite")) as connection:
        connection.executescript('CREATE TABLE "销售" ("店铺" TEXT, "销售额" REAL); INSERT INTO "销售" VALUES (1, 2);')
    sql = 'SELECT "店铺", SUM("销售额") FROM "销售" GROUP BY "店铺"'
    with closing(open_database(tmp_path / "sales.sqlite", engine="sqlite")) as database:
        model = ScriptedModel(responses=["plan", sql])
        answer = Conversation(AgentContext(database, model, load_profile("compact"), AgentOptions())).ask(
            "销售额 per 店铺"
        )
    assert answer.sql == sql, answer.answer
