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


class OpenData:
    """Owner of the open database and of the files in `folder`. Every change is a transaction: one at a time, and nothing is
    changed where it raises OpenError. What is in use when others are opened is closed by `sweep`, once it no longer is."""

    def __init__(self, rules: GuestRules, folder: Path, now: Opened, in_use: Callable[[Database], bool]) -> None:
        self.now, self._in_use = now, in_use
        self.offered: Offer | None = None
        self._before: Opened | None = None
        self._left: list[Opened] = []
        self._rules, self._folder, self._numbers = rules, folder, count()
        self._changing = threading.RLock()

    @property
    def can_undo(self) -> bool:
        return self._before is not None

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
                self._forget(self.offered.opened, self.now)
                self.offered = None

    def take(self, *, beside: bool) -> None:
        """Use the offered files, `beside` those that are open or alone. Raises OpenError."""
        with self._changing:
            if self.offered is None:
                raise OpenError("these files are gone: drop them again")
            opened = self._together(self.offered.opened) if beside and self.now.files else self.offered.opened
            self.offered = None
            self._forget(self._before, opened)
            self._before, self.now = self.now, opened

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
            self._forget(self._before, opened)
            self._forget(self.now, opened)
            self.now, self._before = opened, None

    def undo(self) -> None:
        """Go back to what was open before files were taken in."""
        with self._changing:
            if self._before is not None:
                self._forget(self.now, self._before)
                self.now, self._before = self._before, None

    def close(self) -> None:
        with self._changing:
            self.decline()
            self.sweep()
            self._forget(self._before, self.now)
            self.now.database.close()

    def sweep(self) -> None:
        """Close what is no longer in use of that which was."""
        with self._changing:
            left, self._left = self._left, []
            for opened in left:
                if opened is not self.now and opened is not self._before:
                    self._forget(opened, self.now)

    def _forget(self, opened: Opened | None, kept: Opened) -> None:
        """Close a database, and remove those of its files that `kept` or what is open now does not need."""
        if opened is not None and opened is not kept and self._in_use(opened.database):
            self._left.append(opened)
        elif opened is not None and opened is not kept:
            opened.database.close()
            needed = {*kept.files, *(self.now.files if opened is not self.now else ())}
            remove_files(set(opened.files) - needed)


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
