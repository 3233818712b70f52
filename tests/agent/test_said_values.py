"""Values of a question arrive as they were said: periods, dates and denials, asked of the model that comes with the project.

Of fourteen periods one was right, by chance; "between 2025-01-01 and 2025-12-31" was 2025 - 01 - 01; "not closed" was closed.
"""

from collections.abc import Iterator
from datetime import date, timedelta

import duckdb
import pytest

from agent.assemble import LoadedModel, ModelChoice, load_model
from agent.conversation import Answer, Conversation
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import Result

PERIODS = {
    "today": "visit_date = current_date",
    "yesterday": "visit_date = current_date - 1",
    "this week": "date_trunc('week', visit_date) = date_trunc('week', current_date)",
    "last week": "date_trunc('week', visit_date) = date_trunc('week', current_date - 7)",
    "this month": "date_trunc('month', visit_date) = date_trunc('month', current_date)",
    "last month": "date_trunc('month', visit_date) = date_trunc('month', current_date) - INTERVAL 1 MONTH",
    "this year": "year(visit_date) = year(current_date)",
    "last year": "year(visit_date) = year(current_date) - 1",
    "in the last 7 days": "visit_date > current_date - 7 AND visit_date <= current_date",
    "in the past 90 days": "visit_date > current_date - 90 AND visit_date <= current_date",
    "in the last 3 months": "visit_date > current_date - INTERVAL 3 MONTH AND visit_date <= current_date",
    "in the last two years": "visit_date > current_date - INTERVAL 2 YEAR AND visit_date <= current_date",
    "this quarter": "date_trunc('quarter', visit_date) = date_trunc('quarter', current_date)",
    "year to date": "year(visit_date) = year(current_date) AND visit_date <= current_date",
    "between 2024-03-01 and 2024-05-31": "visit_date BETWEEN '2024-03-01' AND '2024-05-31'",
    "after March 1, 2024": "visit_date > '2024-03-01'",
    "before 2 May 2024": "visit_date < '2024-05-02'",
}
LEAST_RIGHT = 15


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model(ModelChoice())


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path = tmp_path_factory.mktemp("clinic") / "clinic.duckdb"
    days = [date.today() - timedelta(back) for back in (0, 1, 3, 8, 20, 40, 75, 130, 260, 400, 800, 1100)]
    days += [date(2024, 3, 1), date(2024, 3, 2), date(2024, 5, 2), date(2024, 5, 31)]
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE visit (visit_id INT PRIMARY KEY, patient VARCHAR, state VARCHAR, visit_date DATE)"
        )
        states = ("open", "closed", "on hold")
        rows = [(number, f"P{number}", states[number % 3], day) for number, day in enumerate(days)]
        connection.executemany("INSERT INTO visit VALUES (?, ?, ?, ?)", rows)
    database = open_database(path)
    yield database
    database.close()


def asked(model: LoadedModel, database: Database, question: str, condition: str) -> tuple[Answer, bool]:
    """The answer, and whether it is the number of rows that meet the condition."""
    right = database.execute(f"SELECT count(*) FROM visit WHERE {condition}")
    assert isinstance(right, Result)
    answer = Conversation(model.toolbox(database)).ask(question)
    return answer, [tuple(row) for row in answer.rows] == list(right.rows)


def test_periods(model: LoadedModel, clinic: Database) -> None:
    asked_for = {
        phrase: asked(model, clinic, f"How many visits were there {phrase}?", sql) for phrase, sql in PERIODS.items()
    }
    wrong = [(phrase, answer.sql) for phrase, (answer, right) in asked_for.items() if not right]
    assert len(PERIODS) - len(wrong) >= LEAST_RIGHT, wrong
    told = asked_for["last month"][0].answer
    assert "Here “last month” means: visit_date from " in told


def test_a_denial_is_kept(model: LoadedModel, clinic: Database) -> None:
    for question in ("How many visits are not closed?", "How many visits aren't closed?"):
        answer, right = asked(model, clinic, question, "state <> 'closed'")
        assert right, answer.sql


CLUB = """
    CREATE TABLE member (member_id INT PRIMARY KEY, name VARCHAR, town VARCHAR, level VARCHAR);
    INSERT INTO member VALUES (1, 'Ana', 'Zürich', 'Gold'), (2, 'Bo', 'zürich', 'gold'), (3, 'Cy', 'ZÜRICH', 'Silver'),
        (4, 'Di', 'Bern', 'SILVER'), (5, 'Ed', 'Basel', 'Bronze'), (6, 'Fy', 'Bern', NULL);
"""


@pytest.fixture(scope="module")
def club(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path = tmp_path_factory.mktemp("club") / "club.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(CLUB)
    database = open_database(path)
    yield database
    database.close()


@pytest.mark.parametrize(
    ("question", "right"),
    [
        ("How many members live in Zürich?", 3),
        ("How many gold members are there?", 2),
        ("How many members have level Silver?", 2),
        ("How many members are not gold?", 3),
        ("How many members live in Bern?", 2),
    ],
)
def test_every_spelling_of_a_value(model: LoadedModel, club: Database, question: str, right: int) -> None:
    """One of several spellings was taken for the value, and not even the one that was asked for."""
    answer = Conversation(model.toolbox(club)).ask(question)
    assert [tuple(row) for row in answer.rows] == [(right,)], answer.sql
    if "Silver" in question:
        assert "Here level may be written “SILVER” or “Silver”." in answer.answer
