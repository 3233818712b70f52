"""Makes second questions of three kinds: one that depends on the first, an unrelated one, and one that contrasts.

If a question depends on the former one, the agent shows that in the prompt. The two other kinds are self-contained, so their
prompt is that of a first question; they are also asked with the former question shown, so that a model learns to ignore a
history that has nothing to do with the question.

Parts of a build: one for each database and for each slice of WikiSQL's tables, made in several processes, kept in
`OUT/parts/` with a record of its counts, and joined into the files.
"""

import json
import multiprocessing
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from eval.datasets.follow_ups import CHANGES, Change, follow_up
from eval.datasets.gold_databases import TrainingDatabase, own_target
from eval.datasets.gold_sql import GoldError, real_tables
from tools.linking.match_values import ValueMatch, match_values
from training.data.examples import Item
from training.data.options import Tally
from training.packs.groups import Group, group_line
from training.variants.mistakes import EXCHANGES


@dataclass(frozen=True, slots=True)
class Others:
    """What second questions are made from; `items` are all questions of the database."""

    items: Sequence[Item]
    database: TrainingDatabase
    tally: Tally


def second(first: Item, others: Others, rng: Random) -> list[Item]:
    """The items of one second question, of a random kind among those that apply here."""
    for kind in rng.sample(list(KINDS), len(KINDS)):
        made = KINDS[kind](first, others, rng)
        if made:
            return [replace(item, kind=kind) for item in made]
    return []


def leaning(first: Item, others: Others, rng: Random) -> list[Item]:
    """A question that cannot be understood without the first."""
    made = _changed(first, "", CHANGES, others, rng)
    return [_after(made, first)] if made else []


def unrelated(first: Item, others: Others, rng: Random) -> list[Item]:
    """Another question of the database that shares no table with the first. The items already hold it without history."""
    tables = _tables(first, others.database)
    disjoint = [other for other in others.items if tables.isdisjoint(_tables(other, others.database))]
    return [_after(replace(rng.choice(disjoint), id=f"{first.id}/unrelated"), first)] if disjoint else []


def contrast(first: Item, others: Others, rng: Random) -> list[Item]:
    """The first question with one name or value replaced, by itself and as a turn after the first."""
    changes = {f"contrast-{kind}": partial(exchange, first.text) for kind, exchange in EXCHANGES.items()}
    made = _changed(first, first.evidence, changes, others, rng)
    return [replace(made, id=f"{made.id}-alone"), _after(made, first)] if made else []


Kind = Callable[[Item, Others, Random], list[Item]]
KINDS: Mapping[str, Kind] = {"leaning": leaning, "unrelated": unrelated, "contrast": contrast}


def _after(item: Item, first: Item) -> Item:
    return replace(item, history=((first.text, first.target),))


def _tables(item: Item, database: TrainingDatabase) -> frozenset[str]:
    return frozenset(name for _, name in real_tables(item.target.tree, database.schema))


def _changed(first: Item, evidence: str, changes: Mapping[str, Change], others: Others, rng: Random) -> Item | None:
    """The item after one of the changes, if one applies, runs and returns rows: an empty result would say little."""
    made = follow_up(first.target.tree, others.database.schema, rng, changes)
    if made is None:
        return None
    try:
        target = own_target(made.tree, others.database)
    except GoldError:
        others.tally.left_out["follow-up does not run"] += 1
        return None
    if not target.rows:
        others.tally.left_out["follow-up is empty"] += 1
        return None
    values = found_values(others.database, f"{made.text} {evidence}".strip())
    return Item(f"{first.id}/{made.kind}", made.text, evidence, target, values)


def found_values(database: TrainingDatabase, text: str) -> tuple[ValueMatch, ...]:
    """The cell values that a text names."""
    return tuple(match_values(database.engine, text)) if database.has_rows else ()


TRAIN_FILE = "train.jsonl"
HELD_OUT_FILE = "held_out.jsonl"
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
    kind = "" if file in (TRAIN_FILE, HELD_OUT_FILE) else f".{Path(file).stem}"
    return folder / f"{name}{kind}.jsonl"


def join_parts(out: Path, records: Mapping[str, Record]) -> None:
    """Write each file from the parts that have groups for it."""
    parts: dict[str, list[str]] = {TRAIN_FILE: [], HELD_OUT_FILE: []}
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
