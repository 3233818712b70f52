"""Questions of public bug reports' natures, with their right answers, asked of the model that comes with the project.

The folders of `strangers` that hold questions are asked where they are at hand; `test_said_values` has their equals. Those of
files, statements and requests are guarded where these are read: `test_last_value`, `test_respell`, `test_chat_requests`.
"""

import csv
import json
import runpy
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from agent.assemble import LoadedModel, ModelChoice, load_model
from agent.context import AgentOptions
from agent.conversation import Conversation
from tools.databases.open_database import open_database

STRANGERS = Path(__file__).parents[2].parent / "shared" / "data" / "strangers"
HERE = {path.name for path in STRANGERS.glob("*")}
AS_SHIPPED = AgentOptions(rerank=True)
Right = Iterable[tuple[str, object]]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model(ModelChoice())


def made(folder: str, script: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's database, made in an empty one."""
    monkeypatch.chdir(place)
    runpy.run_path(str(STRANGERS / folder / script))


def wrong(model: LoadedModel, path: Path, right: Right) -> list[str]:
    """The questions that have other rows, in any order; further columns are no fault, and a number stands for its row."""
    found = []
    with closing(open_database(path)) as database:
        for question, wanted in right:
            answer = Conversation(model.toolbox(database, AS_SHIPPED)).ask(question)
            rows = [tuple(round(cell, 2) if isinstance(cell, float) else cell for cell in row) for row in answer.rows]
            right_rows = wanted if isinstance(wanted, list) else [(wanted,)]
            if len(rows) != len(right_rows) or not all(any({*each} <= {*row} for row in rows) for each in right_rows):
                found.append(f"{question} {rows} {answer.sql}")
    return found


def by_sql(folder: str, path: Path) -> Right:
    """The folder's questions and what their SQL returns."""
    with (STRANGERS / folder / "questions.csv").open() as file, closing(open_database(path)) as database:
        for row in csv.DictReader(file):
            result = database.execute(row["sql"])
            yield row["question"], [tuple(each) for each in getattr(result, "rows", ())]


@pytest.mark.parametrize("folder", sorted({"03_date_literals", "09_negation"} & HERE))
def test_values_as_they_were_said(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Left: "who has no open tasks"."""
    dates = folder == "03_date_literals"
    made(folder, "make_club.py" if dates else "make.py", tmp_path, monkeypatch)
    path = tmp_path / ("club.duckdb" if dates else "task.duckdb")
    found = wrong(model, path, list(by_sql(folder, path)))
    assert len(found) <= (not dates), found


@pytest.mark.parametrize("folder", sorted({"02_relative_dates"} & HERE))
def test_periods_relative_to_today(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Days to come count for "year to date" there, and not here, early in a year."""
    made(folder, "make.py", tmp_path, monkeypatch)
    right = json.loads((tmp_path / "right.json").read_text())
    found = wrong(model, tmp_path / "visit.duckdb", right.items())
    assert len(right) == 14 and len(found) <= 1, found


@pytest.mark.parametrize("folder", sorted({"01_schemas"} & HERE))
@pytest.mark.parametrize("name", ["schema.duckdb", "flat.duckdb"])
def test_tables_outside_the_default_schema(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str
) -> None:
    made(folder, "make.py", tmp_path, monkeypatch)
    right: dict[str, object] = {
        "How many users are there?": 3,
        "Show the names of all merchants.": [("Shoe Hut",), ("Tea Bar",)],
        "How many users are in each country?": [("US", 2), ("DE", 1)],
        "How many coupons does each merchant have?": [("Shoe Hut", 2), ("Tea Bar", 1)],
        "Which users are in the US?": [("ann",), ("cy",)],
    }
    assert wrong(model, tmp_path / name, right.items()) == []


@pytest.mark.parametrize("folder", sorted({"06_numbers_as_text"} & HERE))
@pytest.mark.parametrize("kind", ["csv", "sqlite", "blank"])
def test_numbers_as_text(model: LoadedModel, tmp_path: Path, folder: str, kind: str) -> None:
    """Left: "in 2024" of a table without dates."""
    source = STRANGERS / folder / "sale.csv"
    path = source if kind == "csv" else tmp_path / "sale.sqlite"
    if kind != "csv":
        with source.open() as file, closing(sqlite3.connect(path)) as connection:
            names, *rows = list(csv.reader(file))
            if kind == "sqlite":
                connection.execute(f"CREATE TABLE sale ({', '.join(f'{name} TEXT' for name in names)})")
                connection.executemany(f"INSERT INTO sale VALUES ({', '.join('?' * len(names))})", rows)
            else:
                connection.execute("CREATE TABLE sale (id INTEGER PRIMARY KEY, shop TEXT, amount INTEGER)")
                blank = [(1, "North", 100), (2, "South", ""), (3, "North", 300), (4, "South", 9)]
                connection.executemany("INSERT INTO sale VALUES (?, ?, ?)", blank)
            connection.commit()
    right: dict[str, object] = {
        "Which shop has the highest amount?": [("North",)],
        "How many sales have an amount over 50?": 2,
        "What is the largest amount?": 300,
        "What is the average amount?": 136.33,
    }
    if kind != "blank":
        right["How many sales were there in 2024?"] = 3
    assert wrong(model, path, right.items()) == []
