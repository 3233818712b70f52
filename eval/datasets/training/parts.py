"""Parts of a build: one for each database and for each slice of WikiSQL's tables, made in several processes, kept in
`OUT/parts/` with a record of its counts, and joined into the files."""

import json
import multiprocessing
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from decoding.training.data.groups import Group, group_line
from eval.datasets.training.tally import Tally

TRAIN_FILE = "train.jsonl"
HELD_BACK_FILE = "held_back.jsonl"
HELD_OUT = "held_out"  # the folder of the files with a kind's held-out pairs

Record = dict[str, Any]
"""A part's counts: "groups" by file, "golds", "pairs", "tokens" and "left_out" as in `Tally`."""


@dataclass(frozen=True, slots=True)
class Made:
    """A part: its groups by the file that they belong to, its counts, and how many questions it was made from."""

    groups: Mapping[str, list[Group]]
    tally: Tally
    questions: int


Maker = Callable[[Path], Made]  # of a part; it gets a folder for scratch files


def make_parts(
    makers: Mapping[str, Maker],
    folder: Path,
    made_with: Mapping[str, Any],
    count_tokens: Callable[[str], int],
    jobs: int,
    report: Callable[[str], None],
) -> dict[str, Record]:
    """The records of all parts. A part is written unless it was already made with the same options."""
    folder.mkdir(parents=True, exist_ok=True)
    works = {name: _Work(name, make, folder, dict(made_with), count_tokens) for name, make in makers.items()}
    records = {name: known for name, work in works.items() if (known := work.known()) is not None}
    missing = [work for name, work in works.items() if name not in records]
    for record in _run(missing, jobs):
        records[record["name"]] = record
        pairs = sum(record["pairs"].values())
        report(
            f"{len(records)} of {len(works)}: {record['name']}, {pairs} pairs, {sum(record['tokens'].values())} tokens"
        )
    return {name: records[name] for name in works}


@dataclass(frozen=True, slots=True)
class _Work:
    name: str
    make: Maker
    folder: Path
    made_with: dict[str, Any]
    count_tokens: Callable[[str], int]

    def known(self) -> Record | None:
        """The record of an earlier build, if it was made with the same options."""
        file = self.folder / f"{self.name}.json"
        if not file.is_file():
            return None
        record: Record = json.loads(file.read_text(encoding="utf-8"))
        same = record["made_with"] == json.loads(json.dumps(self.made_with))
        return record if same else None

    def done(self) -> Record:
        """Make the part, write its files and, last, its record."""
        with TemporaryDirectory() as scratch:
            made = self.make(Path(scratch))
        for file, groups in made.groups.items():
            made.tally.count_tokens(groups, self.count_tokens)
            part_file(self.folder, self.name, file).write_text("".join(map(group_line, groups)), encoding="utf-8")
        counts = {name: dict(getattr(made.tally, name)) for name in ("golds", "pairs", "tokens", "left_out")}
        record: Record = {
            "name": self.name,
            "made_with": self.made_with,
            "questions": made.questions,
            "groups": {file: len(groups) for file, groups in made.groups.items()},
            **counts,
        }
        (self.folder / f"{self.name}.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
        return record


def _run(works: list[_Work], jobs: int) -> Iterable[Record]:
    if jobs == 1 or len(works) < 2:
        yield from (work.done() for work in works)
        return
    _FORKED[:] = works  # reached by the forked processes, so that nothing needs to be pickled
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        yield from pool.map(_done, range(len(works)))


_FORKED: list[_Work] = []


def _done(number: int) -> Record:
    return _FORKED[number].done()


def part_file(folder: Path, name: str, file: str) -> Path:
    """Where a part keeps its groups of a file."""
    kind = "" if file in (TRAIN_FILE, HELD_BACK_FILE) else f".{Path(file).stem}"
    return folder / f"{name}{kind}.jsonl"


def join_parts(out: Path, records: Mapping[str, Record]) -> None:
    """Write each file from the parts that have groups for it."""
    parts: dict[str, list[str]] = {TRAIN_FILE: [], HELD_BACK_FILE: []}
    for name, record in records.items():
        for file in record["groups"]:
            parts.setdefault(file, []).append(name)
    (out / HELD_OUT).mkdir(exist_ok=True)
    for file, names in parts.items():
        with (out / file).open("w", encoding="utf-8") as whole:
            for name in names:
                whole.write(part_file(out / "parts", name, file).read_text(encoding="utf-8"))


def summed(records: Iterable[Record]) -> dict[str, Any]:
    """The counts of these parts together."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    sizes = Counter[str]()
    for record in records:
        groups, pairs = sum(record["groups"].values()), sum(record["pairs"].values())
        sizes.update(groups=groups, questions=record["questions"], pairs=pairs)
        for name in ("golds", "pairs", "tokens", "left_out"):
            totals[name].update(record[name])
    by_kind = {"by_kind": totals["pairs"], "tokens_by_kind": totals["tokens"]}
    return {
        **sizes,
        "tokens": totals["tokens"].total(),
        "golds": totals["golds"],
        **by_kind,
        "left_out": totals["left_out"],
    }
