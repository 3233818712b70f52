"""What is open in one session, the files that wait to be taken in, and what was open before them."""

import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from tools.databases.database import Database
from tools.databases.files.sheets import AS_DETECTED, DETECTED, Choice, Choices, Sheet
from tools.databases.open_database import open_database, open_uploads
from tools.result import OpenError
from ui.session.kept import source_of
from ui.session.services import GuestRules, remove_files


@dataclass(frozen=True, slots=True)
class Opened:
    """A database and what it was opened from. `files`: this session's copies that it was loaded from; `choices`: how they are
    read, where the person chose."""

    database: Database
    source: str
    files: tuple[Path, ...] = ()
    choices: Choices = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offer:
    """Files that were brought and loaded, and are not asked yet; `sheets`: those of CSV files and workbooks."""

    opened: Opened
    sheets: tuple[Sheet, ...]


MOST_STEPS = 5
"""So many times `undo` goes back, and once where more files than half of what a person may have would have to stay for it."""


class OpenData:
    """Owner of the open database and of the files in `folder`. Every change is a transaction: one at a time, and nothing is
    changed where it raises OpenError. What is in use when others are opened is closed by `sweep`, once it no longer is."""

    def __init__(self, rules: GuestRules, folder: Path, now: Opened, in_use: Callable[[Database], bool]) -> None:
        self.now, self._in_use = now, in_use
        self.offered: Offer | None = None
        self._before: list[Opened] = []  # the newest last
        self._left: list[Opened] = []
        self._rules, self._folder, self._numbers = rules, folder, count()
        self._changing = threading.RLock()

    @property
    def steps(self) -> int:
        """How many times `undo` goes back."""
        return len(self._before)

    def offer(self, paths: Sequence[Path]) -> Offer:
        """Copy and load files, in the place of those that were offered before. Raises OpenError."""
        with self._changing:
            self.decline()
            total = sum(path.stat().st_size for path in [*paths, *self.now.files])
            if total > self._rules.upload_mb << 20:
                raise OpenError(f"these files are more than the {self._rules.upload_mb} MiB allowed here")
            self.offered = self.copied(paths, DETECTED)
            return self.offered

    def copied(self, paths: Sequence[Path], choices: Choices) -> Offer:
        """Copies of files, loaded. Raises OpenError."""
        folder = self._folder / str(next(self._numbers))
        folder.mkdir(parents=True)
        try:
            return _loaded([Path(shutil.copyfile(path, folder / path.name)) for path in paths], choices)
        except (OpenError, OSError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise error if isinstance(error, OpenError) else OpenError(f"cannot be read: {error.strerror}") from error

    def name_columns(self, sheet: int, row: int | None) -> None:
        """Load the offered files again: this row of that sheet names the columns, or none does. Raises OpenError."""
        self._choose(sheet, lambda choice: replace(choice, header=row))

    def keep_total(self, sheet: int, keeps: bool) -> None:
        """Load the offered files again, with the row of totals of that sheet or without it. Raises OpenError."""
        self._choose(sheet, lambda choice: replace(choice, keeps_total=keeps))

    def _choose(self, sheet: int, change: Callable[[Choice], Choice]) -> None:
        with self._changing:
            before = self.offered
            if before is None or sheet >= len(before.sheets):
                return  # taken or declined meanwhile
            chosen = before.sheets[sheet]
            place = chosen.file, chosen.name
            choices = {**before.opened.choices, place: change(before.opened.choices.get(place, AS_DETECTED))}
            if choices == before.opened.choices:
                return  # said twice, as a page does when its field is left
            self.offered = _loaded(before.opened.files, choices)
            before.opened.database.close()

    def decline(self) -> None:
        """Forget the offered files."""
        with self._changing:
            if self.offered is not None:
                declined, self.offered = self.offered, None
                self._forget(declined.opened)

    def take(self, *, beside: bool) -> None:
        """Use the offered files, `beside` those that are open or alone. Raises OpenError."""
        with self._changing:
            if self.offered is None:
                raise OpenError("these files are gone: drop them again")
            opened = self._together(self.offered.opened) if beside and self.now.files else self.offered.opened
            self.offered = None
            self._before.append(self.now)
            self.now = opened
            while self.steps > MOST_STEPS or (self.steps > 1 and self._bytes() > self._rules.upload_mb << 19):
                self._forget(self._before.pop(0))

    def _together(self, offered: Opened) -> Opened:
        """The open files and the offered ones, which replace those of the same name."""
        names = {file.name for file in offered.files}
        kept = [file for file in self.now.files if file.name not in names]
        choices = {place: row for place, row in self.now.choices.items() if place[0] not in names}
        opened = _loaded([*kept, *offered.files], {**choices, **offered.choices}).opened
        offered.database.close()
        return opened

    def open(self, opened: Opened) -> None:
        """Use another database; there is no way back to the files of the last. Raises OpenError."""
        with self._changing:
            try:
                opened.database.schema()
            except OpenError:
                opened.database.close()
                raise
            gone = [*self._before, self.now]
            self.now, self._before = opened, []
            self._forget(*gone)

    def undo(self) -> None:
        """Go back to what was open before files were taken in."""
        with self._changing:
            if self._before:
                gone, self.now = self.now, self._before.pop()
                self._forget(gone)

    def close(self) -> None:
        with self._changing:
            self.decline()
            self.sweep()
            before, self._before = self._before, []
            self._forget(*before)
            self.now.database.close()

    def sweep(self) -> None:
        """Close what is no longer in use of that which was."""
        with self._changing:
            left, self._left = self._left, []
            self._forget(*left)

    def _forget(self, *gone: Opened) -> None:
        """Close databases, and remove those of their files that no other one needs; what is in use waits for `sweep`."""
        in_use = [each for each in gone if self._in_use(each.database)]
        self._left += in_use
        needed = {file for each in (self.now, *self._before, *self._left) for file in each.files}
        for each in gone:
            if each not in in_use:
                each.database.close()
                remove_files(set(each.files) - needed)

    def _bytes(self) -> int:
        """Of the files that are open, and of those to which `undo` goes back."""
        files = {file for each in (self.now, *self._before) for file in each.files}
        return sum(file.stat().st_size for file in files)


def _loaded(files: Sequence[Path], choices: Choices) -> Offer:
    """Raises OpenError."""
    database, sheets = open_uploads(files, choices)
    try:
        database.schema()
    except OpenError:
        database.close()
        raise
    return Offer(Opened(database, source_of(files, choices), tuple(files), choices), sheets)


def opened_url(url: str, rules: GuestRules) -> Opened:
    """The database at a URL. Raises OpenError."""
    if not rules.urls:
        raise OpenError("this server opens no database URLs; put the data into files")
    if "://" not in url:
        raise OpenError("a database URL looks like postgresql://user:password@host/name; drop files instead of paths")
    database = open_database(url, isolated=True)
    return Opened(database, f"url: {database.name}")
