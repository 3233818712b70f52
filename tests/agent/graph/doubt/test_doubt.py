"""How sure an answer is, and the other readings of a doubtful one, with scripted models and a calibration made for the test."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.calibration import FILE, Calibration, Weight, read_calibration
from agent.conversation import Conversation, Retry
from agent.nodes import assess
from agent.nodes.assess import features_of, signs
from agent.observe.events import Answered, Wrote, from_json, to_json
from agent.state import Proposal, State, Written, opening, proposed
from decoding.errors import ModelUnavailable
from tests.agent.conftest import Talk
from tools.databases.database import Database

# An answer without rows is hardly ever right here, and any other mostly.
CALIBRATION = Calibration(2.0, {"empty": Weight(0.0, 1.0, -4.0)}, 0.5)
ALL_WRONG = Calibration(-2.0, {"empty": Weight(0.0, 1.0, -0.1)}, 0.5)
PLAN, NOTHING = "singer: name | SELECT _ FROM _ WHERE _", "SELECT name FROM singer WHERE country = 'Sweden'"
FRANCE, YOUNG = "SELECT name FROM singer WHERE country = 'France'", "SELECT name FROM singer WHERE age < 40"
COUNT = "SELECT COUNT(*) FROM singer WHERE country = 'France'"
OLD = "SELECT name FROM singer WHERE age > 40"
PLANS = [f"{PLAN} {place}" for place in "abcd"]
QUESTION = "Which singers are from Sweden?"


@pytest.fixture(autouse=True)
def four_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assess, "OTHER_PLANS", len(PLANS))


def doubtful(talk: Talk, *lines: str, calibration: Calibration = ALL_WRONG, **options: Any) -> Conversation:
    made = talk(PLAN, *lines, **{"rerank": True, **options})
    made.toolbox.calibration = calibration
    return made


def state(**changes: Any) -> State:
    found: Any = opening("How many singers are from France?") | {"sql": FRANCE, "plan": PLAN}
    preview = {"columns": ["name"], "rows": [["Ada"]], "row_count": 1, "truncated": False}
    return found | {"preview": preview} | changes  # type: ignore[no-any-return]


def written(*log_probs: float) -> Proposal:
    return Proposal(sql=FRANCE, written=Written(text=FRANCE, log_probs=list(log_probs)), repaired=False)


def test_a_sure_answer_is_not_looked_at_again(talk: Talk) -> None:
    answer = doubtful(talk, FRANCE, calibration=CALIBRATION).ask("What are the names of the singers from France?")
    assert answer.confidence == pytest.approx(0.8808, abs=1e-4)
    assert (answer.probably_wrong, answer.alternatives, answer.doubts) == (False, [], [])


def test_a_doubtful_answer_says_why_and_offers_readings_with_other_rows(talk: Talk) -> None:
    """Guards against offering the same rows in other words, SQL that fails, and votes at the wrong reading."""
    answer = doubtful(talk, NOTHING, *PLANS, FRANCE, YOUNG, "SELECT nonsense_xyz FROM singer", OLD).ask(QUESTION)
    assert answer.probably_wrong and answer.confidence == pytest.approx(0.1091, abs=1e-4)
    assert "It found no rows." in answer.doubts
    assert answer.rows == []
    assert [other["sql"] for other in answer.alternatives] == [FRANCE, OLD]
    assert [other["votes"] for other in answer.alternatives] == [2, 1]  # Ada and Cy are the young ones, too
    assert answer.alternatives[0]["words"] == "Takes name from singer. Only rows where country = 'France'."
    assert answer.votes == 0
    assert answer.which_reading == {
        "message": "Which do you mean: only where country is “Sweden”, or only where country is “France”, or only where age is "
        "more than 40?",
        "options": [
            {"label": "only where country is “Sweden”", "result": "no rows", "sql": NOTHING, "votes": 1},
            {"label": "only where country is “France”", "result": "2 rows: Ada, Cy", "sql": FRANCE, "votes": 2},
            {"label": "only where age is more than 40", "result": "Bo", "sql": OLD, "votes": 1},
        ],
    }
    assert from_json(to_json(Answered(answer.to_dict(), 0))) == Answered(answer.to_dict(), 0)


def test_other_readings_are_not_shown_as_they_are_written(talk: Talk) -> None:
    """Guards the text of the answer's own steps on the page: a single other plan has its SQL written like a first one."""
    conversation = doubtful(talk, NOTHING, *[PLANS[0]] * 4, FRANCE)
    told = [event for event in conversation.events(QUESTION) if isinstance(event, Wrote)]
    assert "".join(event.text for event in told if event.step == "generate") == NOTHING


def test_a_reading_that_is_clearly_surer_becomes_the_answer_and_the_former_is_offered(talk: Talk) -> None:
    """Guards against rows, SQL and preview of different queries, and against a turn that remembers the former one."""
    conversation = doubtful(talk, NOTHING, *PLANS, FRANCE, YOUNG, OLD, OLD, calibration=CALIBRATION)
    answer = conversation.ask(QUESTION)
    assert (answer.sql, answer.rows) == (FRANCE, [["Ada"], ["Cy"]])
    assert not answer.probably_wrong and answer.confidence == pytest.approx(0.8808, abs=1e-4)
    assert [other["sql"] for other in answer.alternatives] == [NOTHING, OLD]
    assert answer.alternatives[0]["confidence"] == pytest.approx(0.1192, abs=1e-4)
    assert "Ada, Cy" in answer.answer
    assert answer.attempts[-1]["sql"] == FRANCE
    assert conversation.undo() == QUESTION


def test_samples_of_the_answers_own_plan_vote_for_it_and_cost_no_statement(talk: Talk) -> None:
    answer = doubtful(talk, NOTHING, PLAN, PLAN, PLANS[0], PLAN, FRANCE).ask(QUESTION)
    assert answer.votes == 3
    assert [other["sql"] for other in answer.alternatives] == [FRANCE]


def test_a_second_look_leaves_the_calls_that_the_page_races(talk: Talk) -> None:
    conversation = doubtful(talk, NOTHING, *PLANS, FRANCE, YOUNG, OLD, OLD)
    conversation.ask(QUESTION)
    assert PLAN in str(conversation.toolbox.calls["generate"].messages)
    assert not any(place in str(conversation.toolbox.calls["generate"].messages) for place in PLANS)


def test_without_a_second_look_nothing_more_is_asked(talk: Talk) -> None:
    answer = doubtful(talk, NOTHING, rerank=False).ask(QUESTION)
    assert answer.probably_wrong and not answer.alternatives
    assert [step["name"] for step in answer.steps] == ["link", "plan", "generate", "check", "execute", "answer"]


def test_without_a_calibration_only_what_is_seen_is_said(talk: Talk) -> None:
    answer = talk(PLAN, "SELECT SUM(singer_id) FROM singer", rerank=True).ask("How many singers are there?")
    assert answer.confidence is None and not answer.probably_wrong
    assert answer.doubts == ["It computes the sum of a key."]


def test_switched_off_nothing_is_judged(talk: Talk) -> None:
    answer = doubtful(talk, NOTHING, confidence=False).ask(QUESTION)
    assert (answer.confidence, answer.doubts, answer.features) == (None, [], {})


def test_a_failed_answer_has_no_confidence(talk: Talk) -> None:
    answer = doubtful(talk, "SELECT nonsense_xyz FROM singer", max_attempts=1).ask(QUESTION)
    assert answer.error is not None and answer.confidence is None and not answer.probably_wrong


def test_what_a_rule_changed_is_not_judged(talk: Talk) -> None:
    """Guards a follow-up that a rule is sure of against doubts that were learned from the model's SQL."""
    conversation = doubtful(talk, COUNT, rerank=False)
    conversation.ask("How many singers are from France?")
    answer = conversation.ask("And from Spain?")
    assert answer.rows == [[1]] and answer.continues == 1
    assert answer.confidence is None and not answer.probably_wrong


def test_what_was_said_before_is_said(database: Database) -> None:
    turn = {"question": "Which singers are from France?", "sql": FRANCE}
    follow_up = state(question="Only the young ones", turns=[turn], reading="follow_up")
    assert "unsaid_literal" not in {sign.name for sign in signs(follow_up, database.schema())}
    alone = follow_up | {"turns": []}
    assert "unsaid_literal" in {sign.name for sign in signs(alone, database.schema())}  # type: ignore[arg-type]


def test_a_chosen_reading_is_run_without_the_model(talk: Talk) -> None:
    conversation = doubtful(talk, NOTHING, *PLANS, FRANCE, FRANCE, FRANCE, FRANCE)
    other = conversation.ask(QUESTION).alternatives[0]
    answer = conversation.ask(QUESTION, again=Retry(chosen=other["sql"]))
    assert (answer.sql, answer.rows) == (FRANCE, [["Ada"], ["Cy"]])
    assert answer.confidence is None  # a person chose it
    assert not [step for step in answer.steps if step["name"] in ("plan", "generate")]


@pytest.mark.parametrize("order", ["ASC", "DESC"])
def test_what_was_chosen_is_not_repaired(talk: Talk, order: str) -> None:
    """The other end of a list once became its first end again, for the question asks for that one."""
    sql = f"SELECT name FROM singer ORDER BY age {order} LIMIT 1"
    answer = doubtful(talk).ask("Which singer is the oldest?", again=Retry(chosen=sql))
    assert answer.sql == sql


def test_a_chosen_reading_is_judged_by_the_guard_all_the_same(talk: Talk) -> None:
    answer = doubtful(talk, max_attempts=1).ask(QUESTION, again=Retry(chosen="DELETE FROM singer"))
    assert answer.error is not None and answer.error["kind"] == "refused"


def test_an_answer_with_other_readings_comes_back_from_its_line(talk: Talk) -> None:
    answer = doubtful(talk, NOTHING, *PLANS, FRANCE, YOUNG, OLD, OLD).ask(QUESTION).to_dict()
    event = from_json(to_json(Answered(answer, 0)))
    assert isinstance(event, Answered)
    kept = ("confidence", "probably_wrong", "doubts", "alternatives", "votes", "features")
    assert {name: event.answer[name] for name in kept} == {name: answer[name] for name in kept}


def test_an_answer_that_is_less_sure_than_wanted_is_offered_and_not_given(talk: Talk) -> None:
    """Guards against rows of a declined answer in the result, in the memory of the conversation, or lost to the asker."""
    bounded = replace(CALIBRATION, answer_from={"0.8": 0.8, "0.95": 0.93})
    lines = (FRANCE, *PLANS, YOUNG, OLD, YOUNG, OLD)
    given = doubtful(talk, *lines, calibration=bounded, at_least=0.8).ask(
        "What are the names of the singers from France?"
    )
    assert given.error is None and given.rows
    for share, least in ((0.9, 0.93), (0.99, None)):  # the confidence is 0.88, and nothing is known of 99 %
        assert bounded.least_confidence(share) == least
        talking = doubtful(talk, *lines, calibration=bounded, at_least=share)
        answer = talking.ask("What are the names of the singers from France?")
        assert answer.error is not None and answer.error["kind"] == "unsure"
        assert (answer.sql, answer.rows, answer.columns, answer.shown) == (None, [], [], None)
        assert answer.answer.startswith("I am not sure enough: of answers like this one 88% are right, and you want 9")
        assert answer.alternatives[0]["sql"] == FRANCE
        assert not talking._graph.get_state(talking._config).values.get("turns")
        chosen = talking.ask(answer.question, again=Retry(chosen=FRANCE))
        assert chosen.error is None and chosen.rows == given.rows


def test_features_are_those_of_the_text_that_ran(database: Database) -> None:
    """Guards against the likelihood of another text, and against an unknown one that counts as certain."""
    schema = database.schema()
    found = features_of(state(candidate=written(0.0, -2.0)), schema, ())
    assert found["sql_doubt"] == pytest.approx(0.6946, abs=1e-3)
    assert features_of(state(candidate=written(0.0)), schema, ())["sql_doubt"] == pytest.approx(-5.8091, abs=1e-3)
    assert "sql_doubt" not in features_of(state(candidate=proposed(FRANCE)), schema, ())
    assert found["uncovered"] < features_of(state(sql="SELECT title FROM concert"), schema, ())["uncovered"]


def test_a_plan_counts_with_all_its_tokens_and_by_its_reading(database: Database) -> None:
    """Guards against the likelihood of the plan that was taken in place of the model's first one."""
    schema = database.schema()
    first = Written(text=PLAN, log_probs=[-1.0, -2.0])
    plans = {"standalone": first, "follow_up": Written(text="other", log_probs=[-9.0])}
    found = features_of(state(plan="other", reading="standalone", first_plans=plans), schema, ())
    assert found["plan_surprise"] == pytest.approx(1.0996, abs=1e-3)
    assert features_of(state(reading="follow_up", first_plans=plans), schema, ())["plan_surprise"] > 2
    assert "plan_surprise" not in features_of(state(reading="follow_up", first_plans={"standalone": first}), schema, ())


def test_signs_count_by_strictness(database: Database) -> None:
    schema = database.schema()
    wrong = state(sql="SELECT AVG(singer_id) FROM singer WHERE name IN (SELECT year FROM concert)")
    seen = signs(wrong, schema)
    found = features_of(wrong, schema, seen)
    assert (found["strict_signs"], found["other_signs"]) == (1.0, 1.0)
    assert [sign.name for sign in seen] == ["unjoinable_in", "key_aggregate"]


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_calibration(tmp_path) is None
    made = Calibration(0.25, {"tables": Weight(1.5, 0.5, -0.3)}, 0.4, {"n": 500})
    made.write(tmp_path)
    assert read_calibration(tmp_path) == made
    (tmp_path / FILE).write_text(json.dumps({"bias": "much"}))
    with pytest.raises(ModelUnavailable, match="is damaged"):
        read_calibration(tmp_path)


JOINED = "FROM singer JOIN concert ON concert.singer_id = singer.singer_id"


@pytest.mark.parametrize(
    ("question", "sql", "doubt"),
    [
        (
            "What is the total age of singers with a concert?",
            f"SELECT SUM(singer.age) {JOINED}",
            "SUM(singer.age) takes",
        ),
        ("How many singers have a concert?", f"SELECT COUNT(*) {JOINED}", "asks for the number of singer;"),
        (
            "Which singers have a concert?",
            f"SELECT singer.name {JOINED}",
            "The result has 1 row of singer several times",
        ),
        ("How many concerts did singers give?", f"SELECT COUNT(*) {JOINED}", ""),
        ("How many different singers have a concert?", f"SELECT COUNT(DISTINCT singer.singer_id) {JOINED}", ""),
    ],
)
def test_rows_that_a_join_repeats_are_told(talk: Talk, question: str, sql: str, doubt: str) -> None:
    """Guards against "3 singers." where two have given three concerts: `sqlagent check` named it, an answer did not."""
    answer = talk(PLAN, sql, repair=False).ask(question)
    assert (answer.sql, answer.probably_wrong) == (sql, bool(doubt))
    assert not doubt or doubt in answer.doubts[0], answer.doubts


def test_an_amount_that_nothing_is_called_is_told_unless_the_asker_explains_it(talk: Talk) -> None:
    """Guards against "Maud has the most rounds: 2." for the driver with the highest turnover, with nothing said."""
    sql, question = "SELECT COUNT(*) FROM concert", "What is the turnover of concerts?"
    answer = talk(PLAN, sql, repair=False).ask(question)
    assert answer.probably_wrong and answer.doubts[0] == "“turnover” is no column here; this counts concerts."
    assert not talk(PLAN, sql, repair=False).ask(question, "turnover = number of concerts").probably_wrong
