"""A progress bar on stderr that shows the accuracy so far."""

from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class AccuracyBar:
    """A context manager that shows the bar while entered, if `visible`. `total`: the number of questions."""

    def __init__(self, total: int, visible: bool) -> None:
        self._progress = Progress(
            TextColumn("EX {task.fields[accuracy]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not visible,
        )
        self._task = self._progress.add_task("", total=total, accuracy="-")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, done: int, verdicts: Sequence[bool]) -> None:
        """Show that `done` questions are finished, and the accuracy from the `verdicts` so far."""
        accuracy = f"{sum(verdicts) / len(verdicts):.1%}" if verdicts else "-"
        self._progress.update(self._task, completed=done, accuracy=accuracy)
