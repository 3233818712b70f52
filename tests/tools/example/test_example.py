"""The bundled example database: it is built quickly, is the same each time, is varied, and answers what the chat offers."""

import hashlib
import os
import time
from pathlib import Path

import duckdb
import pytest

from tools.example.build import FILE_NAME, build, columns_by_table, example_database
from tools.linking.questions import STARTERS, ExampleQuestion


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example_database(tmp_path_factory.mktemp("cache"))


def _ask(path: Path, sql: str) -> list[tuple[object, ...]]:
    with duckdb.connect(path, read_only=True) as connection:
        return connection.execute(sql).fetchall()


@pytest.mark.parametrize("example", STARTERS, ids=lambda example: example.question)
def test_every_question_has_an_answer(database: Path, example: ExampleQuestion) -> None:
    """Guards against questions that a change of the data leaves without rows."""
    rows = _ask(database, example.sql)
    assert rows and any(value not in (None, 0) for row in rows for value in row)


def test_twelve_related_tables_with_a_few_thousand_rows(database: Path) -> None:
    tables = [name for (name,) in _ask(database, "SELECT table_name FROM duckdb_tables()")]
    assert len(tables) == 12
    assert 5_000 < sum(len(columns[0]) for columns in columns_by_table().values()) < 9_000
    keys = _ask(database, "SELECT constraint_type, count(*) FROM duckdb_constraints() GROUP BY 1")
    counts = {str(kind): int(str(count)) for kind, count in keys}
    assert counts["PRIMARY KEY"] == 12
    assert counts["FOREIGN KEY"] >= 14
    assert all(comment for (comment,) in _ask(database, "SELECT comment FROM duckdb_tables()"))


def test_the_rows_never_change_unnoticed(database: Path) -> None:
    """Guards against rows that another version of Python or DuckDB reads otherwise, or puts into another order."""
    rows = {table: _ask(database, f"FROM {table} ORDER BY rowid") for table in columns_by_table()}
    digest = hashlib.sha256(repr(dict(sorted(rows.items()))).encode()).hexdigest()
    assert digest[:16] == "287079cc96b3fc69"


def test_sales_have_a_season_best_sellers_and_returns(database: Path) -> None:
    """Guards against flat data, which makes every example answer dull."""
    december, february = (
        _ask(database, f"SELECT count(*) FROM orders WHERE month(ordered_at) = {month}")[0][0] for month in (12, 2)
    )
    assert int(str(december)) > 2 * int(str(february))
    sold = [
        int(str(n))
        for (n,) in _ask(database, "SELECT sum(quantity) n FROM order_lines GROUP BY album_id ORDER BY n DESC")
    ]
    assert sum(sold[:10]) > 0.25 * sum(sold)
    nulls = "SELECT count(*) FROM order_lines WHERE returned_on IS NOT NULL"
    assert 50 < int(str(_ask(database, nulls)[0][0])) < 300


def test_nothing_is_sold_before_it_exists(database: Path) -> None:
    early = (
        "SELECT count(*) FROM order_lines JOIN orders USING (order_id) JOIN albums USING (album_id) "
        "WHERE release_date > ordered_at::DATE"
    )
    assert _ask(database, early) == [(0,)]
    unhired = "SELECT count(*) FROM orders JOIN employees USING (employee_id) WHERE hired_on > ordered_at::DATE"
    assert _ask(database, unhired) == [(0,)]
    oversold = (
        "SELECT count(*) FROM (SELECT concert_id, capacity FROM concerts JOIN tickets USING (concert_id) "
        "GROUP BY ALL HAVING count(*) > capacity)"
    )
    assert _ask(database, oversold) == [(0,)]


def test_second_use_takes_the_cached_file(tmp_path: Path) -> None:
    """Guards against building on every start, and against leaving half a file behind."""
    started = time.perf_counter()
    first = example_database(tmp_path)
    build_s = time.perf_counter() - started
    os.utime(first, (1, 1))
    assert example_database(tmp_path) == first
    assert first.stat().st_mtime == 1
    assert [path.name for path in first.parent.iterdir()] == [FILE_NAME]
    assert build_s < 10, "building is meant to take less than a second"


def test_a_failed_build_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "old.duckdb"
    target.write_text("old")
    monkeypatch.setattr("tools.example.build.columns_by_table", lambda: {"genres": [[1], [None], [None]]})
    with pytest.raises(duckdb.ConstraintException):
        build(target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
