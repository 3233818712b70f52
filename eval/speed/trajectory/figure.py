"""Draws a trajectory as a self-contained SVG, or as an HTML page around it.

The generated positions are divided into panels of one block's width. In a panel, every column is a position and every row
an iteration, so that a stationary token shows as a coloured column that waits for those on its left, and a block in flight
shows in all panels that it reaches. Because fonts differ between machines, texts are centred in cells that are slightly
wider than necessary.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import accumulate
from pathlib import Path
from textwrap import wrap

from eval.speed.trajectory.terminal import counts_line
from eval.speed.trajectory.trajectory import MEANING, Cell, Kind, Lane, StepTrajectory

_FILL: Mapping[Kind, tuple[str, str]] = {  # (cell, text); the colours also differ in lightness
    "accepted": ("#1a7f37", "#ffffff"),
    "bonus": ("#0b57a4", "#ffffff"),
    "forced": ("#b6d4f2", "#0b2e55"),
    "stationary": ("#f2c230", "#3d2f00"),
    "misplaced": ("#e7b7e0", "#4a1144"),
    "wrong": ("#eeeeee", "#777777"),
    "past": ("#ffffff", "#bbbbbb"),
}
_CHARACTER, _GAP, _NARROWEST, _MOST_CHARACTERS = 7.0, 3.0, 20.0, 16
_ROW, _CANDIDATE_ROW, _LABEL, _MARGIN, _WIDEST = 22.0, 18.0, 58.0, 16.0, 1100.0


@dataclass(slots=True)
class _Sheet:
    """Collects shapes from top to bottom."""

    y: float = _MARGIN
    width: float = 0.0
    shapes: list[str] = field(default_factory=list)

    def text(
        self, x: float, text: str, size: int = 12, colour: str = "#333333", more: str = "", row: float = _ROW
    ) -> None:
        """Add a text on the baseline of the cells in a row of height `row`."""
        self.shapes.append(
            f'<text x="{x:.1f}" y="{self.y + row - 8:.1f}" font-size="{size}" fill="{colour}"{more}>{_markup(text)}</text>'
        )

    def cell(self, x: float, width: float, height: float, cell: Cell) -> None:
        """Add a token's cell; its tooltip shows a long token in full."""
        fill, colour = _FILL[cell.kind]
        middle, size = x + width / 2, 12 if height == _ROW else 11
        self.shapes.append(
            f'<g><title>{_markup(cell.text)}: {_markup(MEANING[cell.kind])}</title>'
            f'<rect x="{x:.1f}" y="{self.y:.1f}" width="{width:.1f}" height="{height - 3:.1f}" rx="3" fill="{fill}" '
            f'stroke="{"#dddddd" if cell.kind == "past" else fill}"/>'
            f'<text x="{middle:.1f}" y="{self.y + height - 8:.1f}" font-size="{size}" fill="{colour}" '
            f'text-anchor="middle">{_markup(_short(cell.text))}</text></g>'
        )  # fmt: skip

    def down(self, height: float, right: float = 0.0) -> None:
        self.y, self.width = self.y + height, max(self.width, right)


def write_figure(steps: Sequence[StepTrajectory], title: str, file: Path, block_size: int = 16) -> None:
    """Write SVG if the file's name ends in `.svg`, otherwise HTML. block_size: positions per panel."""
    drawing = svg(steps, title, block_size)
    if file.suffix != ".svg":
        drawing = (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_markup(title)}</title></head>\n'
            f'<body style="margin:1em;overflow-x:auto">\n{drawing}</body></html>\n'
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(drawing, encoding="utf-8")


def svg(steps: Sequence[StepTrajectory], title: str, block_size: int = 16) -> str:
    """The drawing, with a legend above it."""
    sheet = _Sheet()
    sheet.text(_MARGIN, title, size=16, colour="#111111", more=' font-weight="bold"')
    sheet.down(30, _MARGIN + 10 * len(title))
    _legend(sheet)
    for step in steps:
        _step(sheet, step, block_size)
    width, height = sheet.width + _MARGIN, sheet.y + _MARGIN
    font = "DejaVu Sans Mono, Menlo, Consolas, monospace"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{font}">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(sheet.shapes) + "\n</svg>\n"
    )  # fmt: skip


def _legend(sheet: _Sheet) -> None:
    for kind, meaning in MEANING.items():
        sheet.cell(_MARGIN, 90, _ROW, Cell(kind, kind))
        sheet.text(_MARGIN + 100, meaning)
        sheet.down(_ROW, _MARGIN + 110 + 7.3 * len(meaning))


def _step(sheet: _Sheet, step: StepTrajectory, block_size: int) -> None:
    sheet.down(14)
    for size, weight, text in ((13, "bold", f"{step.name}: {step.text}"), (12, "normal", counts_line(step))):
        for line in _wrapped(text, int(_WIDEST / (0.62 * size))):
            sheet.text(_MARGIN, line, size=size, more=f' font-weight="{weight}"')
            sheet.down(20, _MARGIN + 0.62 * size * len(line))
    end = max((lane.stop for lanes in step.iterations for lane in lanes), default=0)
    for start in range(0, end, block_size):
        _panel(sheet, step, range(start, min(start + block_size, end)))


def _panel(sheet: _Sheet, step: StepTrajectory, positions: range) -> None:
    """Draw the part of every lane that lies in these positions, below the positions' numbers."""
    parts = [
        (number, lane) for number, lanes in enumerate(step.iterations, 1) for lane in lanes if _cut(lane, positions)
    ]
    widths = [_NARROWEST] * len(positions)
    for _, lane in parts:
        for at, cell in _cut(lane, positions):
            place = at - positions.start
            widths[place] = max(widths[place], _CHARACTER * len(_short(cell.text)) + 10)
    edges = list(accumulate((width + _GAP for width in widths), initial=_MARGIN + _LABEL))
    sheet.down(8)
    sheet.text(_MARGIN + _LABEL - 8, "forward", size=10, colour="#999999", more=' text-anchor="end"')
    for at, edge, width in zip(positions, edges, widths, strict=False):
        sheet.text(edge + width / 2, str(at), size=10, colour="#999999", more=' text-anchor="middle"')
    sheet.down(20, edges[-1])
    for number, lane in parts:
        label, colour = (f"{number}", "#333333") if lane.own else (f"{number} pool", "#999999")
        height = _ROW if lane.own else _CANDIDATE_ROW
        sheet.text(_MARGIN + _LABEL - 8, label, size=11, colour=colour, more=' text-anchor="end"', row=height)
        for at, cell in _cut(lane, positions):
            place = at - positions.start
            sheet.cell(edges[place], widths[place], height, cell)
        sheet.down(height)


def _cut(lane: Lane, positions: range) -> list[tuple[int, Cell]]:
    return [(at, cell) for at, cell in enumerate(lane.cells, lane.start) if at in positions]


def _markup(text: str) -> str:
    """The text escaped for markup, without control characters, which XML cannot represent."""
    return escape("".join(character if character.isprintable() else "\ufffd" for character in text))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


def _wrapped(text: str, most: int) -> Iterable[str]:
    return wrap(text, most) or [""]
