"""The table of data sets, by name: where each is found. It imports none of them, for the command line reads it first.

Adding one is a line in `DATASETS`, or `register_dataset` from elsewhere. What a data set is: `eval.datasets.registry.Dataset`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Listed:
    """place: "module:NAME" of the `Dataset`, imported when it is needed. help: what `sqlagent eval --help` says of it."""

    place: str
    help: str


_REGISTRY = "eval.datasets.registry"

DATASETS: dict[str, Listed] = {
    "spider": Listed(f"{_REGISTRY}:SPIDER", "Spider's questions, by its official rules."),
    "bird": Listed(f"{_REGISTRY}:BIRD", "BIRD's questions, by its official rules."),
    "held_back": Listed(
        f"{_REGISTRY}:HELD_BACK", "The questions of the databases that training leaves out, by Spider's rules."
    ),
    "held_back/spider_syn": Listed(f"{_REGISTRY}:HELD_BACK_SYN", "The same in Spider-Syn's wording."),
    "follow_ups": Listed(
        f"{_REGISTRY}:FOLLOW_UPS", "Second questions on the databases that training leaves out, by Spider's rules."
    ),
}


def register_dataset(name: str, place: str, help: str) -> None:
    """Make a data set known: `sqlagent eval NAME` then measures on it. `place` and `help`: see `Listed`.

    Raises ValueError for a name that is no identifier or is taken.
    """
    listed = Listed(place, help)
    if not name.isidentifier() or DATASETS.get(name, listed) != listed:
        raise ValueError(f"a data set cannot be called {name!r}: choose a new name of letters, digits and _")
    DATASETS[name] = listed
