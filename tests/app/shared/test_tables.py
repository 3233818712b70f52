"""Tables fit a terminal and say what they leave out; in a pipe they are complete."""

import pytest
from rich.console import Console

from app.shared import output
from app.shared import output as tables

COLUMNS = ["id", "name", "amount", "note"]
ROWS = [[1, "a rather long name of something", 12345.5, "x" * 70], [2, None, None, "[/b] :smile: \x1b[2J"]]


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_a_pipe_gets_every_value_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """`bench` in a pipe once printed "decod..." and "jacob..."."""
    tables.print_table(COLUMNS, ROWS)
    text = printed(capsys)
    for value in ("a rather long name of something", "x" * 70, "12345.5", r"[/b] :smile: \x1b[2J"):
        assert value in text


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_a_terminal_gets_what_fits_and_is_told_what_does_not(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "console", lambda: Console(width=width))
    tables.print_table(COLUMNS, ROWS)
    text = printed(capsys)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    assert "…" not in text
    whole = " ".join(text.replace("┃", " ").split())
    for name in COLUMNS:
        assert name in whole  # as a heading, or among those that do not fit
    assert ("do not fit" in whole) == (width < 50)


def test_numbers_stand_at_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_table(["n", "t"], [[5, "a"], [12345, "b"]])
    assert "│     5 │ a │" in printed(capsys)


def test_a_pipe_gets_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    """`doctor` once showed 20 of its 22 rows."""
    output.print_rows(["n"], [[number] for number in range(50)])
    text = printed(capsys)
    assert all(f"│ {number:2} │" in text for number in range(50))


def test_bars_stand_for_one_amount_beside_a_text() -> None:
    kinds = ("text", "digits", "amount")
    rows = [("a", 1, 8), ("b", 2, 4), ("c", 3, None), ("d", 4, 1)]
    assert [len(bar) for bar in output._bars(rows, kinds)] == [12, 6, 0, 2]
    assert output._bars(rows[:2], kinds) == []
    assert output._bars([*rows, ("e", 5, -1)], kinds) == []
    assert output._bars([("e", 5, float("nan")), *rows], kinds) == []
    assert output._bars(rows, ("text", "amount", "amount")) == []


def test_timing_is_one_line() -> None:
    steps = [{"decoder": "jacobi", "plain_ms_source": "measured"}]
    told = {"total_ms": 1000.0, "steps": steps}
    assert output.timing(told | {"plain_total_ms": 2500.0}) == "1.0 s, 2.5x faster than token by token (measured)"
    assert output.timing(told | {"plain_total_ms": 500.0}) == "1.0 s, 2.0x slower than token by token (measured)"
    assert output.timing(told | {"plain_total_ms": 1010.0}) == "1.0 s"
    assert output.timing(told | {"plain_total_ms": None}) == "1.0 s"
