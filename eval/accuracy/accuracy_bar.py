"""A progress bar on stderr with the accuracy so far."""

from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class AccuracyBar:
    """Shown while it is entered, if it is `visible`; `total` is how many questions there are."""

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
        """So many questions are done, and so these of them were judged."""
        accuracy = f"{sum(verdicts) / len(verdicts):.1%}" if verdicts else "-"
        self._progress.update(self._task, completed=done, accuracy=accuracy)
