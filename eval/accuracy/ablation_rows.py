"""The rows of an ablation: which configurations are measured, and with which other row each is compared."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from agent.graph.toolbox import AgentOptions

KINDS = ("parts", "mends", "without")
OFF: dict[str, Any] = {
    "max_attempts": 1, "orders": 1, "constrain": False, "values": False, "hints": False,
    "repair": False, "mends": (), "second_look": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stage:
    """A row's configuration. `against`: the name of the row that it is compared with; None for the first."""

    name: str
    adapter: str
    options: AgentOptions
    against: str | None = None


def stages(adapter: str, default: AgentOptions, kinds: Collection[str]) -> list[Stage]:
    """The rows of these `KINDS`. "parts": the bare base model, then one part more in every row up to the default agent, with
    all mends in one row; "mends": the same with each mend in a row of its own. "without": the default agent
    without one of its mends, compared with the default agent, which always has a row.
    """
    with_parts = "parts" in kinds or "mends" in kinds
    made = (
        list(_parts(adapter, default, "mends" in kinds)) if with_parts else [Stage("default agent", adapter, default)]
    )
    own = made[-1].name
    changes: list[tuple[str, dict[str, Any]]] = []
    if "without" in kinds:
        changes += [(f"without {mend}", {"mends": _without(default.mends, mend)}) for mend in default.mends]
    return made + [Stage(name, adapter, replace(default, **change), own) for name, change in changes]


def _without(mends: tuple[str, ...], left_out: str) -> tuple[str, ...]:
    return tuple(mend for mend in mends if mend != left_out)


def _parts(adapter: str, default: AgentOptions, each_mend: bool) -> Iterator[Stage]:
    """The rows with one part more each; a part that is off by default has none."""
    before = Stage("base model, plan and SQL", "none", replace(default, **OFF))
    yield before
    changes: list[tuple[str, dict[str, Any]]] = [
        ("+ fine-tuning", {}),
        ("+ cell values", {"values": default.values}),
        ("+ grammar", {"constrain": default.constrain}),
        ("+ linking", {"hints": default.hints}),
        ("+ schema orders", {"orders": default.orders}),
        ("+ repair", {"repair": default.repair}),
        *_mend_parts(default.mends, each_mend),
        ("+ refine", {"max_attempts": default.max_attempts}),
        ("+ second look", {"second_look": default.second_look}),
    ]
    for name, change in changes:
        stage = Stage(name, adapter, replace(before.options, **change), before.name)
        if (stage.adapter, stage.options) != (before.adapter, before.options):
            yield stage
            before = stage


def _mend_parts(mends: tuple[str, ...], each_mend: bool) -> list[tuple[str, dict[str, Any]]]:
    if each_mend:
        return [(f"+ {mend}", {"mends": mends[: number + 1]}) for number, mend in enumerate(mends)]
    return [(f"+ {len(mends)} mends", {"mends": mends})]
