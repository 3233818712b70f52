"""What people teach has an effect: sixteen teachings on invented data, asked of the model that comes with the project.

Metrics, terms, descriptions, relations and evidence went into prompts alone, and none of sixteen changed an answer.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.assemble import LoadedModel, ModelChoice, load_model
from agent.context import AgentContext, AgentOptions
from agent.conversation import Answer, Conversation
from agent.prompts.knowledge import Knowledge, read_knowledge
from agent.prompts.profiles import load_profile
from tests.agent.conftest import ScriptedModel
from tools.databases.annotations import with_annotations
from tools.databases.open_database import open_database
from tools.linking.taught import as_said, definition, expanded
from tools.result import Result
from tools.schema import Column, ForeignKey, Schema, Table

HALLS = """
CREATE TABLE halls (hall_id INTEGER PRIMARY KEY, hall_name TEXT, city TEXT, seats INTEGER);
CREATE TABLE shows (show_id INTEGER PRIMARY KEY, hall_id INTEGER REFERENCES halls, title TEXT, played_on TEXT, state TEXT,
    guests INTEGER, fee_cents INTEGER);
CREATE TABLE bookings (booking_id INTEGER PRIMARY KEY, show_id INTEGER REFERENCES shows, channel TEXT, tickets INTEGER,
    ticket_price REAL, voucher REAL, paid_on TEXT, q9 TEXT);
CREATE TABLE staff (staff_id INTEGER PRIMARY KEY, surname TEXT, works_at INTEGER, wage REAL, hrs REAL, lvl TEXT);
INSERT INTO halls VALUES (1, 'Dome', 'Riga', 400), (2, 'Cellar', 'Riga', 80), (3, 'Barn', 'Turku', 150);
INSERT INTO shows VALUES (1, 1, 'Hamlet', '2024-02-01', 'played', 320, 150000),
    (2, 1, 'Carmen', '2024-02-08', 'dropped', 0, 90000),
    (3, 2, 'Solo', '2024-03-01', 'played', 80, 12000), (4, 3, 'Folk Night', '2024-03-15', 'planned', 0, 30000),
    (5, 2, 'Jazz Trio', '2024-03-20', 'played', 40, 22000);
INSERT INTO bookings VALUES (1, 1, 'web', 4, 25, 10, '2024-01-10', 'k'), (2, 1, 'phone', 2, 25, 0, NULL, 'm'),
    (3, 3, 'web', 6, 12, 0, '2024-02-20', 'k'), (4, 5, 'desk', 3, 18, 5, '2024-03-19', 'k'),
    (5, 5, 'web', 2, 18, 0, NULL, 'm'), (6, 4, 'desk', 10, 9, 0, '2024-03-01', 'm');
INSERT INTO staff VALUES (1, 'Berg', 1, 14, 30, 'j'), (2, 'Lind', 1, 21, 38, 's'), (3, 'Ozols', 2, 18, 20, 's'),
    (4, 'Salo', 3, 16, 38, 'j');
"""
SALES = {"metrics.md": "- sales: tickets * ticket price - voucher\n"}
UNPAID = {"terms.md": "- unpaid: paid on is null\n"}
OF_SALES = "SELECT {} SUM(tickets * ticket_price - voucher) FROM bookings {}"
TAUGHT: list[tuple[Mapping[str, str], str, str, str]] = [  # files, evidence, question, right SQL
    (SALES, "", "What are the total sales?", OF_SALES.format("", "")),
    (SALES, "", "What are the total sales by channel?", OF_SALES.format("channel,", "GROUP BY 1")),
    (SALES, "", "Which show has the highest total sales?", "SELECT 'Hamlet'"),
    ({"metrics.md": "- occupancy: shows.guests / halls.seats\n"}, "", "What is the average occupancy?",
     "SELECT AVG(1.0 * guests / seats) FROM shows JOIN halls USING (hall_id)"),
    ({"metrics.md": "- price per ticket: sum(tickets * ticket_price) / sum(tickets)\n"}, "",
     "What is the price per ticket for each channel?",
     "SELECT channel, SUM(tickets * ticket_price) / SUM(tickets) FROM bookings GROUP BY 1"),
    ({"metrics.md": "- pay: wage * hrs\n"}, "", "Which staff member has the highest pay?", "SELECT 'Lind'"),
    (UNPAID, "", "How many bookings are unpaid?", "SELECT COUNT(*) FROM bookings WHERE paid_on IS NULL"),
    (UNPAID, "", "How many bookings are not unpaid?", "SELECT COUNT(paid_on) FROM bookings"),
    ({"terms.md": "- senior: lvl is 's'\n"}, "", "What is the average wage of senior staff?", "SELECT 19.5"),
    ({"terms.md": "- cancelled: state is dropped\n"}, "", "Which shows were cancelled?", "SELECT 'Carmen'"),
    ({"terms.md": "- large hall: seats > 100\n"}, "", "List the names of all large halls.",
     "SELECT hall_name FROM halls WHERE seats > 100"),
    ({"terms.md": "- venue: halls.hall_name\n"}, "", "Which venues are in Riga?",
     "SELECT hall_name FROM halls WHERE city = 'Riga'"),
    ({"columns.md": "- bookings.q9: customer kind\n"}, "", "How many bookings are there for each customer kind?",
     "SELECT q9, COUNT(*) FROM bookings GROUP BY 1"),
    ({"columns.md": "- shows.fee_cents: artist cost in cents\n"}, "", "What is the total artist cost?", "SELECT 304000"),
    ({"relations.md": "- staff.works_at -> halls.hall_id\n"}, "", "How many staff work in the hall Dome?", "SELECT 2"),
    ({}, "weekly cost = wage * hrs from staff", "What is the total weekly cost?", "SELECT 2186"),
]  # fmt: skip
LEAST_RIGHT = 14


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model(ModelChoice())


@pytest.fixture(scope="module")
def halls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("halls") / "halls.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(HALLS)
    return path


def knowledge_of(folder: Path, files: Mapping[str, str]) -> Knowledge:
    for name, text in files.items():
        (folder / name).write_text(text)
    return read_knowledge(folder)


def cells(rows: Any) -> list[set[str]]:
    return [{f"{float(c):.6g}" if isinstance(c, int | float) else str(c) for c in row} for row in rows]


def test_sixteen_teachings(model: LoadedModel, halls: Path, tmp_path: Path) -> None:
    wrong = []
    for number, (files, evidence, question, right) in enumerate(TAUGHT):
        (folder := tmp_path / str(number)).mkdir()
        known = knowledge_of(folder, files)
        database = with_annotations(open_database(halls), known.annotations)
        try:
            toolbox = model.toolbox(database)
            toolbox.options = replace(toolbox.options, knowledge=known)
            answer, wanted = Conversation(toolbox).ask(question, evidence), database.execute(right)
            assert isinstance(wanted, Result)
        finally:
            database.close()
        shown = cells(answer.shown["rows"]) if answer.shown else []
        if len(shown) != len(wanted.rows) or any(not any(row <= each for each in shown) for row in cells(wanted.rows)):
            wrong.append((question, answer.sql, shown))
    assert len(TAUGHT) - len(wrong) >= LEAST_RIGHT, wrong


def asked(halls: Path, tmp_path: Path, files: Mapping[str, str], question: str, sql: str) -> tuple[Answer, str]:
    """The answer to a question for which the model writes this SQL, and the prompt of it."""
    database = open_database(halls)
    try:
        model = ScriptedModel(responses=["bookings | SELECT _", sql])
        toolbox = AgentContext(
            database, model, load_profile("compact"), AgentOptions(knowledge=knowledge_of(tmp_path, files))
        )
        answer = Conversation(toolbox).ask(question)
        return answer, "\n".join(message.text for message in toolbox.calls["generate"].messages)
    finally:
        database.close()


def test_a_name_is_a_column_for_the_model_and_told_in_the_answer(halls: Path, tmp_path: Path) -> None:
    answer, prompt = asked(halls, tmp_path, SALES, "What are the sales?", "SELECT SUM(sales) FROM bookings")
    assert answer.rows == [[387.0]] and "sales#" in prompt and "ticket price - voucher" not in prompt
    assert answer.answer == "Sales: 387. Here “sales” means: tickets * ticket price - voucher."
    assert answer.shown and answer.shown["headings"] == ["sales"]
    assert "tickets * bookings.ticket_price" in (answer.sql or "")


def test_prompts_of_other_questions_stay_as_they_are(halls: Path, tmp_path: Path) -> None:
    answer, prompt = asked(halls, tmp_path, SALES, "How many bookings are there?", "SELECT COUNT(*) FROM bookings")
    assert "sales" not in prompt and answer.answer == "6 bookings."


def test_a_condition_may_be_denied(halls: Path, tmp_path: Path) -> None:
    sql = "SELECT COUNT(*) FROM bookings WHERE unpaid = 'not unpaid'"
    answer, prompt = asked(halls, tmp_path, UNPAID, "How many bookings are not unpaid?", sql)
    assert answer.rows == [[4]] and "bookings.unpaid = 'not unpaid'" in prompt


def test_prose_widens_linking(halls: Path, tmp_path: Path) -> None:
    files = {"terms.md": "- regulars: bookings over the web\n"}
    _, prompt = asked(halls, tmp_path, files, "How many regulars are there?", "SELECT COUNT(*) FROM bookings")
    assert "bookings.channel ~ 'web'" in prompt or "bookings.channel = 'web'" in prompt
    assert "hint: bookings" in prompt


ORDER = Table("Order Lines", (Column("ItemID", "INTEGER"), Column("Unit Price", "REAL"), Column("Qty.", "INTEGER")),
              (ForeignKey(("ItemID",), "Items", ("ItemID",)),))  # fmt: skip
ITEMS = Table("Items", (Column("ItemID", "INTEGER", True), Column("Weight", "REAL"), Column("Stock", "INTEGER")))
STORE = Schema((ORDER, ITEMS), "sqlite")


@pytest.mark.parametrize(
    ("meaning", "table", "kind", "formula"),
    [
        ("unit price * qty", "Order Lines", "amount", '"Order Lines"."Unit Price" * "Order Lines"."Qty."'),
        ("Qty. * weight", "Order Lines", "amount", '"Order Lines"."Qty." * "Items"."Weight"'),
        ("`Unit Price` / [Qty.]", "Order Lines", "amount",
         '1.0 * "Order Lines"."Unit Price" / NULLIF("Order Lines"."Qty.", 0)'),
        ("sum(qty) / count(distinct item id)", "Order Lines", "total",
         '1.0 * SUM("Order Lines"."Qty.") / NULLIF(COUNT(DISTINCT "Order Lines"."ItemID"), 0)'),
        ("weight is not null and stock > 0", "Items", "condition",
         'NOT "Items"."Weight" IS NULL AND "Items"."Stock" > 0'),
        ("stock is 0", "Items", "condition", '"Items"."Stock" = 0'),
        ("Items.Weight", "Items", "column", '"Items"."Weight"'),
        ("what somebody has in mind", "", "", ""),
        ("items; DROP TABLE items", "", "", ""),
        ("(SELECT max(weight) FROM items)", "", "", ""),
        ("5", "", "", ""),
    ],
)  # fmt: skip
def test_meanings(meaning: str, table: str, kind: str, formula: str) -> None:
    found = definition(STORE, "thing", meaning)
    assert (found is None) == (not kind), found
    if found:
        assert (found.table, found.kind, found.formula.sql()) == (table, kind, formula)


WEIGHT = '"Order Lines"."Qty." * Items.Weight'


@pytest.mark.parametrize(
    ("meaning", "sql", "wanted"),
    [
        ("qty * weight", 'SELECT SUM(load) FROM "Order Lines"',
         f'SELECT SUM(({WEIGHT})) AS load FROM "Order Lines" LEFT JOIN Items ON "Order Lines".ItemID = Items.ItemID'),
        ("qty * weight", 'SELECT AVG(T1.load) FROM "Order Lines" AS T1 JOIN Items AS T2 ON T1.ItemID = T2.ItemID',
         'SELECT AVG((T1."Qty." * T2.Weight)) AS average_load FROM "Order Lines" AS T1 '
         "JOIN Items AS T2 ON T1.ItemID = T2.ItemID"),
        ("sum(qty)", 'SELECT ItemID, SUM(load) FROM "Order Lines" GROUP BY ItemID',
         'SELECT ItemID, (SUM("Order Lines"."Qty.")) AS load FROM "Order Lines" GROUP BY ItemID'),
        ("stock is 0", "SELECT COUNT(*) FROM Items WHERE load <> 'load'",
         "SELECT COUNT(*) FROM Items WHERE NOT (Items.Stock = 0)"),
        ("stock is 0", "SELECT load, COUNT(*) FROM Items GROUP BY load",
         "SELECT CASE WHEN Items.Stock = 0 THEN 'load' ELSE 'not load' END AS load, COUNT(*) FROM Items "
         "GROUP BY CASE WHEN Items.Stock = 0 THEN 'load' ELSE 'not load' END"),
        ("stock is 0", "SELECT 1 FROM Items", "SELECT 1 FROM Items"),
    ],
)  # fmt: skip
def test_what_is_written_becomes_the_formula(meaning: str, sql: str, wanted: str) -> None:
    found = definition(STORE, "load", meaning)
    assert found and expanded(sql, [found], STORE) == wanted


def test_said_and_denied() -> None:
    found = definition(STORE, "sold out", "stock is 0")
    assert found and not as_said(found, "Which items are sold out?").denied
    assert as_said(found, "Which items are not sold out?").denied
    assert as_said(found, "Which items aren't sold out?").denied
