"""`sqlagent ablate`: which rows the options ask for, and a kind of rows that there is not."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.cli import app
from app.measure import evaluate
from app.shared import exit_codes
from eval.accuracy import ablation


def _run(tmp_path: Path, *arguments: str) -> Result:
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    return CliRunner().invoke(app, ["ablate", "spider", "--data", str(tmp_path), "--out", str(out), *arguments])


@pytest.mark.parametrize(
    ("arguments", "first", "last"),
    [
        ((), "base model, plan and SQL", "without spelling"),
        (("--rows", "parts"), "base model, plan and SQL", "+ second look"),
        (("--rows", "without"), "default agent", "without spelling"),
    ],
)
def test_the_options_choose_the_rows(
    arguments: tuple[str, ...],
    first: str,
    last: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def measured(questions: Any, choice: Any, load: Any, rows: Any, out: Path, **more: Any) -> list[Any]:
        asked.extend(rows)
        return []

    monkeypatch.setattr(ablation, "ablate", measured)
    monkeypatch.setattr(evaluate, "load_dataset", lambda *args, **more: [])
    result = _run(tmp_path, *arguments)
    assert result.exit_code == exit_codes.OK, result.output
    assert json.loads(result.stdout.splitlines()[-1]) == []
    assert (asked[0].name, asked[-1].name) == (first, last)
    assert (tmp_path / "out" / "table.md").exists()


@pytest.mark.parametrize(("rows", "says"), [("parts,walls", "walls is none of"), (",", "nothing is none of")])
def test_an_unknown_kind_of_rows_is_told(rows: str, says: str, tmp_path: Path) -> None:
    result = _run(tmp_path, "--rows", rows)
    assert result.exit_code == exit_codes.USAGE and says in result.stderr and "without" in result.stderr
