"""The cost sweeps: every size that fits is there, more work takes longer, and the files can be read."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.shared import exit_codes
from eval.speed import cost
from eval.speed.cost import charts
from tests.decoding.models.jacobi_data import ending_checkpoint


def test_the_command_writes_table_json_and_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "SCHEMAS", (1, 3))
    tiny = ending_checkpoint(tmp_path / "tiny", 8, max_position_embeddings=2048)
    result = CliRunner().invoke(
        app,
        ["bench", "cost", "--model", str(tiny), "--dtype", "fp32", "--profile", "compact", "--repeats", "1",
         "--with-torch", "--out", str(tmp_path / "out")],
    )  # fmt: skip
    assert result.exit_code == exit_codes.OK, result.output
    points = json.loads(result.stdout.splitlines()[-1])["points"]
    assert points == json.loads((tmp_path / "out" / "cost.json").read_text())
    sizes = {
        name: [p["size"] for p in points if p["varied"] == name] for name in ("context", "draft", "batch", "schema")
    }
    assert sizes["context"] == [64, 256, 512, 1024, 2048 - 17], "the longest that leaves room for a draft"
    assert sizes["draft"] == list(cost.DRAFTS) and sizes["batch"] == list(cost.BATCHES)
    assert sizes["schema"] == [1, 3]
    rows = {p["size"]: p["detail"] for p in points if p["varied"] == "rows"}
    assert list(rows) == list(cost.ROWS) and rows[1]["one_row"] == rows[1]["torch_one_row"] == 1.0
    assert all(detail["torch_ms"] > 0 for detail in rows.values())
    assert all(p["ms"] > 0 for p in points)
    svg = ElementTree.fromstring((tmp_path / "out" / "cost.svg").read_text())
    assert len(svg.findall(".//{*}polyline")) == 4


def test_a_chart_puts_points_where_their_values_are() -> None:
    svg = ElementTree.fromstring(charts([("a < b", "x", "y", [(0, 5), (10, 10)])]))
    (line,) = svg.findall(".//{*}polyline")
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in line.attrib["points"].split())
    assert x0 < x1
    ticks = [float(node.attrib["y"]) - 4 for node in svg.findall(".//{*}text[@text-anchor='end']")]
    assert (min(ticks), (min(ticks) + max(ticks)) / 2) == (y1, y0), "the largest at the top tick, its half half-way"
