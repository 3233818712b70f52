"""The table of decoding methods, and how one is made by name. What a method is: `decoding.engine.method`.

Adding one is a file in `decoding/methods/` and a line in `METHODS`: the command line, the benchmark and the
losslessness test follow from that table.
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from decoding.engine.method import Method, UnknownMethod

if TYPE_CHECKING:
    from decoding.checkpoints.target_identity import TargetIdentity


METHODS: dict[str, str] = {
    "plain": "decoding.methods.plain:Plain",
    "jacobi": "decoding.methods.jacobi.jacobi:Jacobi",
    "jacobi_forcing": "decoding.methods.jacobi.jacobi_forcing:JacobiForcing",
    "lookahead": "decoding.methods.jacobi.lookahead:Lookahead",
    "mask_tokens": "decoding.methods.jacobi.mask_tokens:MaskTokens",
    "prompt_lookup": "decoding.methods.prompt_lookup:PromptLookup",
    "draft_model": "decoding.methods.drafters.draft_model:DraftModel",
    "medusa": "decoding.methods.drafters.medusa:Medusa",
    "eagle3": "decoding.methods.drafters.eagle3:Eagle3",
    "falcon": "decoding.methods.drafters.falcon:Falcon",
    "dflash": "decoding.methods.blocks.dflash:DFlash",
    "ddtree": "decoding.methods.blocks.ddtree:DDTree",
    "domino": "decoding.methods.blocks.domino:Domino",
    "jetspec": "decoding.methods.blocks.jetspec:JetSpec",
    "path_tree": "decoding.methods.blocks.path_tree:PathTree",
    "cascade": "decoding.methods.cascade:Cascade",
}


def load_method(name: str, **options: Any) -> Method:
    """An instance of a registered method. Raises UnknownMethod."""
    made: Callable[..., Method] = method_class(name)
    known = method_options(name)
    if unknown := sorted(set(options) - set(known)):
        raise UnknownMethod(f"{name} has no option {unknown[0]}; it has: {', '.join(known) or 'none'}")
    return made(**options)


def ready_methods(target: "TargetIdentity | None" = None) -> list[str]:
    """Those that draft as they are: they need no head, or theirs is shipped, and was trained on `target` if one is given."""
    return [name for name in METHODS if _is_ready(name, target)]


def _is_ready(name: str, target: "TargetIdentity | None") -> bool:
    from decoding.heads.head import find_head  # heads build on this module

    kind = method_class(name).kind
    if kind is None:
        return True
    try:
        trained_on = find_head(kind).identity
    except UnknownMethod:
        return False
    return target is None or (trained_on is not None and not trained_on.difference(target))


def method_options(name: str) -> dict[str, Any]:
    """Option names of a method and their defaults."""
    parameters = inspect.signature(method_class(name)).parameters
    return {key: value.default for key, value in parameters.items()}


def option_value(text: str) -> bool | int | float | str:
    """An option's value from what a person writes: int, float, true / false, or text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def method_class(name: str) -> type[Method]:
    """The class of a registered method. Raises UnknownMethod."""
    if name not in METHODS:
        raise UnknownMethod(f"unknown decoder {name!r}; choose one of: {', '.join(METHODS)}")
    module, attribute = METHODS[name].split(":")
    found: type[Method] = getattr(import_module(module), attribute)
    return found
