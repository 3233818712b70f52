"""The search for a method's fastest options: it finds what is fastest, stays where nothing is gained, and goes on."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from agent.assemble import ModelChoice
from agent.graph.toolbox import AgentOptions
from app.cli import app
from app.shared import exit_codes
from decoding.methods.registry import method_options
from eval.predict.record import RecordLog
from eval.speed.replay import tune_options
from eval.speed.replay.tune_options import SPACE, Tried, Tuning, tune
from tests.decoding.models.jacobi_data import ending_checkpoint


def test_the_space_is_of_options_that_exist() -> None:
    for decoder, space in SPACE.items():
        assert set(space) <= set(method_options(decoder))
        assert all(method_options(decoder)[option] in values for option, values in space.items())


class Speeds(tune_options._Trials):
    """Tokens a second as a function of the options, in the place of the clock."""

    asked: ClassVar[list[str]] = []

    def _measured(self, trial: str, points: Any) -> list[Tried]:
        self.asked.append(trial)
        return [Tried(key, trial, point, 1000, 10, 1e6 / self.speed(point)) for key, point in points.items()]

    def speed(self, point: dict[str, Any] | None) -> float:
        if point is None:
            return 50.0
        return 100.0 - (point["block_size"] - 8 * point["blocks"]) ** 2 / 10 - 2 * abs(point["blocks"] - 3)


def tuning(**changes: Any) -> Tuning:
    space = {"block_size": (8, 16, 24), "blocks": (1, 2, 3)}
    return Tuning("jacobi_forcing", space, ModelChoice(), AgentOptions(), **changes)


def descend(out: Path, one: Tuning) -> dict[str, Any]:
    log = RecordLog(out, {}, Tried)
    speeds = Speeds("jacobi_forcing", None, [], log, lambda text: None)  # type: ignore[arg-type]
    best = tune_options.descend({"block_size": 16, "blocks": 2}, one.space, one.sweeps, speeds.run)
    log.close()
    return best


def test_it_climbs_and_stops_where_nothing_is_gained(tmp_path: Path) -> None:
    Speeds.asked = []
    assert descend(tmp_path / "a", tuning(sweeps=5)) == {"block_size": 16, "blocks": 2}
    assert Speeds.asked == ["0/block_size", "0/blocks"], "a sweep that changes nothing is the last"
    Speeds.asked = []
    assert descend(tmp_path / "a", tuning(sweeps=5)) == {"block_size": 16, "blocks": 2}
    assert Speeds.asked == [], "what is logged is not measured again"


def test_noise_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gain = {1: 100.9, 2: 100.0, 3: 90.0}
    monkeypatch.setattr(Speeds, "speed", lambda self, point: gain[point["blocks"]])
    assert descend(tmp_path / "a", tuning())["blocks"] == 2
    gain[1] = 101.1
    assert descend(tmp_path / "b", tuning())["blocks"] == 1


def test_a_point_named_twice_has_its_record_twice(tmp_path: Path) -> None:
    """The defaults are sometimes the best."""
    log, point = RecordLog(tmp_path, {}, Tried), {"block_size": 16, "blocks": 2}
    speeds = Speeds("jacobi_forcing", None, [], log, lambda text: None)  # type: ignore[arg-type]
    plain, default, best = speeds.run("end", [None, point, point])
    assert default == best != plain
    log.close()


def test_the_command_prints_the_best_and_goes_on(invented: Path, tmp_path: Path) -> None:
    tiny = ending_checkpoint(tmp_path / "tiny", 8, seed=3, max_position_embeddings=4096)
    entries = [{"db_id": "library", "question": "Which authors are there?", "query": "SELECT name FROM author"}]
    (invented / "dev.json").write_text(json.dumps(entries))
    arguments = ["bench", "tune", "--data", str(invented), "--model", str(tiny), "--out", str(tmp_path / "out"),
                 "--profile", "compact", "--attempts", "1", "--no-constrain", "--dtype", "fp32"]  # fmt: skip
    result = CliRunner().invoke(app, [*arguments, "--vary", "block_size=2,4", "--vary", "from_prompt=false,true"])
    assert result.exit_code == exit_codes.OK, result.output
    summary = json.loads(result.stdout.splitlines()[-1])
    assert set(summary["best"]) == {"block_size", "from_prompt"} and summary["speedup"] > 0
    assert "--decoder jacobi_forcing -o block_size=" in result.stdout
    lines = (tmp_path / "out" / "records.jsonl").read_text().splitlines()
    again = CliRunner().invoke(app, [*arguments, "--vary", "block_size=2,4", "--vary", "from_prompt=false,true"])
    assert json.loads(again.stdout.splitlines()[-1])["best"] == summary["best"]
    assert (tmp_path / "out" / "records.jsonl").read_text().splitlines() == lines
    wrong = {"wings=1": "has no option wings", "wings": "not of the form name=value"}
    cases = [*((["--vary", vary], says) for vary, says in wrong.items()), (["--decoder", "plain"], "names no option")]
    for more, says in cases:
        assert says in CliRunner().invoke(app, [*arguments, *more]).stderr


def test_tuning_is_not_resumed_with_another_space(tmp_path: Path) -> None:
    from eval.predict.record import ResumeError

    RecordLog(tmp_path, tuning().settings([]), Tried).close()
    with pytest.raises(ResumeError, match="sweeps"):
        tune(tuning(sweeps=3), [], tmp_path)
