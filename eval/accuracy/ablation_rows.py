"""The rows of an ablation: which configurations are measured, and with which other row each is compared."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from agent.graph.toolbox import AgentOptions
from tools.repair.rules import RULE_NAMES

KINDS = ("parts", "rules", "without")
OFF: dict[str, Any] = {
    "max_attempts": 1, "orders": 1, "constrain": False, "values": False, "hints": False,
    "repair": False, "without_rules": RULE_NAMES, "second_look": False,
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
    all rewrite rules in one row; "rules": the same with each rule in a row of its own. "without": the default agent without
    one of its rules, compared with the default agent, which always has a row.
    """
    with_parts = "parts" in kinds or "rules" in kinds
    made = (
        list(_parts(adapter, default, "rules" in kinds)) if with_parts else [Stage("default agent", adapter, default)]
    )
    own = made[-1].name
    changes: list[tuple[str, dict[str, Any]]] = []
    if "without" in kinds:
        changes += [(f"without {name}", {"without_rules": (name,)}) for name in RULE_NAMES]
    return made + [Stage(name, adapter, replace(default, **change), own) for name, change in changes]


def _parts(adapter: str, default: AgentOptions, each_rule: bool) -> Iterator[Stage]:
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
        *_rule_parts(each_rule),
        ("+ refine", {"max_attempts": default.max_attempts}),
        ("+ second look", {"second_look": default.second_look}),
    ]
    for name, change in changes:
        stage = Stage(name, adapter, replace(before.options, **change), before.name)
        if (stage.adapter, stage.options) != (before.adapter, before.options):
            yield stage
            before = stage


def _rule_parts(each_rule: bool) -> list[tuple[str, dict[str, Any]]]:
    if each_rule:
        return [(f"+ {name}", {"without_rules": RULE_NAMES[number:]}) for number, name in enumerate(RULE_NAMES, 1)]
    return [(f"+ {len(RULE_NAMES)} rules", {"without_rules": ()})]
