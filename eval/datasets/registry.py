"""The table of data sets, and how their questions are selected.

The table of data sets: where each is defined, by name. It imports none of them, because the command line reads it first.

To add one, write a line in `DATASETS`, or call `register_dataset` from an extension. `eval.datasets.registry.Dataset`
defines what a data set is.

Loads the data sets that `sqlagent eval` knows, and selects their questions: all, the first, or a sample.

The data sets are listed in `eval.datasets.registry`.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from random import Random
from typing import Literal

from eval.datasets.authored import load_authored
from eval.datasets.held_out import load_follow_ups, load_held_out
from eval.datasets.official import DatasetError, Example, load_bird, load_spider
from eval.scoring.bird import BIRD as BIRD_RULES
from eval.scoring.rules import Rules
from eval.scoring.spider_rules import SPIDER as SPIDER_RULES


@dataclass(frozen=True, slots=True)
class Listed:
    """place: "module:NAME" of the `Dataset`, imported when it is needed. help: its text in `sqlagent eval --help`."""

    place: str
    help: str


_REGISTRY = "eval.datasets.registry"

DATASETS: dict[str, Listed] = {
    "spider": Listed(f"{_REGISTRY}:SPIDER", "Spider's questions, by its official rules."),
    "bird": Listed(f"{_REGISTRY}:BIRD", "BIRD's questions, by its official rules."),
    "held_out": Listed(
        f"{_REGISTRY}:HELD_OUT", "The questions of the databases that training leaves out, by Spider's rules."
    ),
    "held_out/spider_syn": Listed(f"{_REGISTRY}:HELD_OUT_SYN", "The same in Spider-Syn's wording."),
    "authored": Listed(
        f"{_REGISTRY}:AUTHORED", "Questions that people would ask of their own databases, by Spider's rules."
    ),
    "authored/train": Listed(f"{_REGISTRY}:AUTHORED_TRAIN", "The part that training reads."),
    "authored/sealed": Listed(f"{_REGISTRY}:AUTHORED_SEALED", "The part that nobody reads."),
    "follow_ups": Listed(
        f"{_REGISTRY}:FOLLOW_UPS", "Second questions on the databases that training leaves out, by Spider's rules."
    ),
}


def register_dataset(name: str, place: str, help: str) -> None:
    """Add a data set, so that `sqlagent eval NAME` measures on it. `place` and `help`: see `Listed`.

    Raises ValueError for a name that is not an identifier or is taken.
    """
    listed = Listed(place, help)
    if not name.isidentifier() or DATASETS.get(name, listed) != listed:
        raise ValueError(f"a data set cannot be called {name!r}: choose a new name of letters, digits and _")
    DATASETS[name] = listed


Order = Literal["given", "shuffled"]


@dataclass(frozen=True, slots=True)
class Dataset:
    """How a folder is read, by which rules its questions are scored, and where it holds Spider's tables.json, if it does."""

    load: Callable[[Path], list[Example]]
    rules: Rules
    tables: str | None = None

    def tables_file(self, data: Path) -> Path | None:
        """Spider's tables.json in the folder `data`, if the data set has one."""
        return data / self.tables if self.tables else None


SPIDER = Dataset(load_spider, SPIDER_RULES, "tables.json")
BIRD = Dataset(load_bird, BIRD_RULES)
HELD_OUT = Dataset(lambda data: load_held_out(data, "spider"), SPIDER_RULES, "spider/tables.json")
HELD_OUT_SYN = Dataset(lambda data: load_held_out(data, "spider_syn"), SPIDER_RULES, "spider/tables.json")
AUTHORED = Dataset(lambda data: load_authored(data, "choosing"), SPIDER_RULES)
AUTHORED_TRAIN = Dataset(lambda data: load_authored(data, "train"), SPIDER_RULES)
AUTHORED_SEALED = Dataset(lambda data: load_authored(data, "sealed"), SPIDER_RULES)
FOLLOW_UPS = Dataset(load_follow_ups, SPIDER_RULES, "spider/tables.json")


def dataset_named(name: str) -> Dataset:
    """The data set that the table lists under a name. Raises `DatasetError`."""
    if name not in DATASETS:
        raise DatasetError(f"unknown dataset {name}: choose one of {', '.join(DATASETS)}")
    try:
        found: Dataset = resolve_name(DATASETS[name].place)
    except (ImportError, AttributeError, ValueError) as error:
        raise DatasetError(f"the data set {name} cannot be imported from {DATASETS[name].place}: {error}") from error
    return found


def load_dataset(
    name: str, data: Path, *, limit: int | None = None, sample: int | None = None, db: str | None = None
) -> list[Example]:
    """The questions of a dataset in its own order. Raises `DatasetError`.

    `db` keeps only the questions on that database. `sample` keeps that many, chosen by `sampled`, and `limit` that many from
    the start; both keep only questions whose database is present, so that all of them can be executed. Without either, every
    question stays.
    """
    examples = dataset_named(name).load(data)
    if db is not None:
        examples = [example for example in examples if example.db_id == db]
    if sample is not None or limit is not None:
        examples = [example for example in examples if example.executable]
    if sample is not None:
        examples = sampled(examples, sample)
    if not examples:
        raise DatasetError(f"no question left in {data}" + (f" on database {db}" if db else ""))
    return examples[:limit]


def sampled(examples: Sequence[Example], count: int) -> list[Example]:
    """`count` random questions, spread proportionally over the databases, in the order given.

    The choice depends only on the questions, so that every setting is measured on the same ones; a smaller sample is part of
    every larger one.
    """
    chance, places = Random("sample"), dict[str, float]()
    for own in by_database(examples).values():
        shuffled, start = chance.sample(own, len(own)), chance.random()
        places |= {example.id: (rank + start) / len(own) for rank, example in enumerate(shuffled)}
    chosen = set(sorted(places, key=places.__getitem__)[:count])
    return [example for example in examples if example.id in chosen]


def in_order(examples: Sequence[Example], order: Order, seed: int) -> list[Example]:
    """The questions of each database in the given order, or shuffled by the seed, independently for each database."""
    if order == "given":
        return list(examples)
    groups = by_database(examples)
    return [example for name, own in groups.items() for example in Random(f"{seed}/{name}").sample(own, len(own))]


def by_database(examples: Sequence[Example]) -> dict[str, list[Example]]:
    """The questions of each database, in their order."""
    by_database: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        by_database[example.db_id].append(example)
    return by_database
