"""The table of data sets: where each is defined, by name.

It imports none of them, because the command line reads it first. To add one, write a line in `DATASETS`, or call
`register_dataset` from an extension. `eval.datasets.selection.Dataset` defines what a data set is.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Listed:
    """place: "module:NAME" of the `Dataset`, imported when it is needed. help: its text in `sqlagent eval --help`."""

    place: str
    help: str


_DEFINITIONS = "eval.datasets.selection"

DATASETS: dict[str, Listed] = {
    "spider": Listed(f"{_DEFINITIONS}:SPIDER", "Spider's questions, by its official rules."),
    "bird": Listed(f"{_DEFINITIONS}:BIRD", "BIRD's questions, by its official rules."),
    "held_out": Listed(
        f"{_DEFINITIONS}:HELD_OUT", "The questions of the databases that training leaves out, by Spider's rules."
    ),
    "held_out/spider_syn": Listed(f"{_DEFINITIONS}:HELD_OUT_SYN", "The same in Spider-Syn's wording."),
    "authored": Listed(
        f"{_DEFINITIONS}:AUTHORED", "Questions that people would ask of their own databases, by Spider's rules."
    ),
    "authored/train": Listed(f"{_DEFINITIONS}:AUTHORED_TRAIN", "The part that training reads."),
    "authored/sealed": Listed(f"{_DEFINITIONS}:AUTHORED_SEALED", "The part that nobody reads."),
    "follow_ups": Listed(
        f"{_DEFINITIONS}:FOLLOW_UPS", "Second questions on the databases that training leaves out, by Spider's rules."
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
