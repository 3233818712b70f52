"""Prints a trajectory in a terminal, with colours or, if there are none, with marks before the tokens."""

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.text import Text

from eval.speed.trajectory.trajectory import MEANING, Cell, Kind, Lane, StepTrajectory

_STYLE: Mapping[Kind, str] = {
    "accepted": "black on green",
    "bonus": "black on cyan",
    "forced": "black on blue",
    "stationary": "black on yellow",
    "misplaced": "black on magenta",
    "wrong": "dim",
    "past": "dim strike",
}
_SIGN: Mapping[Kind, str] = {
    "accepted": "+", "bonus": "!", "forced": "*", "stationary": "=", "misplaced": "~", "wrong": "-", "past": "/"
}  # fmt: skip


def print_trajectory(steps: Iterable[StepTrajectory], console: Console) -> None:
    """Print every step, one line per iteration with its candidates below it, and then the legend."""
    colours = console.is_terminal and console.color_system is not None and not console.no_color
    for step in steps:
        console.print(Text(f"{step.name}: {step.text}", style="bold"), soft_wrap=True)
        for index, lanes in enumerate(step.iterations, 1):
            for lane in lanes:
                label = f"{index if lane.own else 'pool':>4} @{lane.start:<3}"
                console.print(_line(label, lane, colours), soft_wrap=True)
        console.print(Text(counts_line(step)), soft_wrap=True)
        console.print()
    for kind, meaning in MEANING.items():
        console.print(Text.assemble(_cell(Cell("token", kind), colours), f"  {meaning}"))


def counts_line(step: StepTrajectory) -> str:
    """The figures below a step."""
    metrics, counts = step.metrics, step.counts
    return (
        f"{step.decoder}: {metrics.tokens} tokens in {metrics.target_forwards} forwards, "
        f"{metrics.tokens_per_forward:.2f} a forward; {counts.fast_forwarded} fast-forwarded ({step.recycled} of them "
        f"from candidates), {counts.stationary} stationary until committed; {metrics.forced_tokens} forced tokens apart"
    )


def _line(label: str, lane: Lane, colours: bool) -> Text:
    line = Text(f"{label} ")
    for cell in lane.cells:
        line.append(_cell(cell, colours))
        line.append(" ")
    return line


def _cell(cell: Cell, colours: bool) -> Text:
    return Text(cell.text, _STYLE[cell.kind]) if colours else Text(_SIGN[cell.kind] + cell.text)
