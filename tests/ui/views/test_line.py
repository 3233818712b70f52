"""Guards the small line in an answer: drawn where it says more than rows, in order, never through what is missing."""

import re
from typing import Any

import pytest

from ui.session.conversation_view import TurnView
from ui.views.line_svg import LEAST_POINTS, line_html, series_of
from ui.views.messages import turn_messages

YEARS = [[2010 + i, 3 * i % 7] for i in range(8)]


def shown(rows: list[list[Any]], kinds: tuple[str, ...] = ("digits", "amount"), name: str = "year") -> dict[str, Any]:
    return {"headings": [name, "albums", "sales"][: len(kinds)], "rows": rows, "kinds": list(kinds)}


def answer(rows: list[list[Any]], **more: Any) -> dict[str, Any]:
    return {"shown": shown(rows), "columns": ["year", "n"], "rows": rows, "answer": "Told.", "error": None, "sql": "",
            "attempts": [], "doubts": [], "dialect": "duckdb"} | more  # fmt: skip


def test_years_without_an_order_become_a_line_in_the_order_of_time() -> None:
    series = series_of(shown([YEARS[i] for i in (5, 2, 7, 0, 3, 6, 1, 4)]))
    assert series is not None
    assert [point.when for point in series.points] == [str(2010 + i) for i in range(8)]
    drawn = line_html(answer(YEARS), 8)
    across = [float(x) for x in re.findall(r"([0-9.]+),[0-9.]+", drawn.partition("<polyline")[2].partition("/>")[0])]
    assert across == sorted(across) and len(across) == 8
    assert "highest 6 (2012)" in drawn and "figcaption" not in drawn


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (shown(YEARS[: LEAST_POINTS - 1]), "too few"),
        (shown(sorted(YEARS, key=lambda row: -row[1])), "a ranking: which years had most"),
        (shown([*YEARS, [2011, 5]]), "a year twice: several series"),
        (shown([[i, 3] for i in range(8)], name="artist_id"), "keys are no times"),
        (shown([[*row, 1] for row in YEARS], ("digits", "amount", "amount")), "two amounts"),
        (shown([[f"c{i}", i] for i in range(8)], ("text", "amount"), "city"), "names"),
        ({}, "a record without what was shown"),
    ],
)
def test_no_line_is_drawn(table: dict[str, Any], why: str) -> None:
    assert series_of(table) is None, why


def test_months_and_days_are_times() -> None:
    months = [[f"2024-{month:02}", month] for month in range(1, 9)]
    days = [[f"2024-01-0{day} 00:00:00", day % 3] for day in range(1, 8)]
    assert series_of(shown(months, ("text", "amount"), "month")) is not None
    assert series_of(shown(days, ("time", "amount"), "day")) is not None


def test_what_is_missing_is_said_and_no_line_runs_through_it() -> None:
    rows = [*YEARS[:3], [2013, None], *YEARS[4:], [None, 4]]
    drawn = line_html(answer(rows, truncated=True), 30)
    assert drawn.count("<polyline") == 2
    for part in ("1 gap: no number.", "1 row without a year is left out.", "The first 9 of 30 rows are drawn.",
                 "cut off by the row limit: the line is partial"):  # fmt: skip
        assert part in drawn


def test_headings_and_cells_stay_text() -> None:
    rows = [[f"2024-01-0{day}", day] for day in range(1, 8)]
    table = {"headings": ["<day>", "<b>sold</b>"], "rows": rows, "kinds": ["time", "amount"]}
    drawn = line_html({"shown": table}, 7)
    assert drawn and "<b>" not in drawn and "<day>" not in drawn


def test_a_line_takes_the_place_of_bars_in_the_answer() -> None:
    told = turn_messages(TurnView("?", answer=answer(YEARS), row_count=8), 0)[-1]["content"]
    assert "<polyline" in told and 'class="bar"' not in told and "3 more rows in the result" in told
    few = turn_messages(TurnView("?", answer=answer(YEARS[:4]), row_count=4), 0)[-1]["content"]
    assert "<polyline" not in few and 'class="bar"' in few


def test_an_answer_says_that_the_row_limit_cut_its_rows_off() -> None:
    told = turn_messages(TurnView("?", answer=answer(YEARS, truncated=True), row_count=8), 0)[-1]["content"]
    assert "*3 more rows in the result; cut off by the row limit*" in told
