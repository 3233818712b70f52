"""The table of decoding methods, and how one is made by its name.

The table imports neither the methods nor torch, so a method costs nothing until it is used. A method of the project is a class
in `decoding/methods/` and a line in `METHODS`; one from elsewhere calls `register_method`. The command line, the benchmark and
the losslessness test read that table. `decoding.engine.method` defines what a method is; what a draft head needs in addition is
in `decoding.heads.kinds`.

Options are typed by a person as `name=value`; `option_value` decides what the value means.
"""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from decoding.engine.method import Method, UnknownMethod
from decoding.errors import MissingPackage, told_what_is_missing
from decoding.heads.kinds import KINDS, HeadKind, imported

if TYPE_CHECKING:
    from decoding.checkpoints.identity import TargetIdentity


def name_and_value(text: str) -> tuple[str, str]:
    """The name and the value, without white space around them. Raises ValueError, whose one line says what is wrong."""
    name, found, value = (part.strip() for part in text.partition("="))
    if not found or not name:
        raise ValueError(f"{text!r} is not of the form name=value")
    return name, value


METHODS: dict[str, str] = {
    "plain": "decoding.methods.baselines:Plain",
    "jacobi": "decoding.methods.jacobi:Jacobi",
    "jacobi_forcing": "decoding.methods.jacobi:JacobiForcing",
    "adaptive": "decoding.methods.adaptive:Adaptive",
    "lookahead": "decoding.methods.jacobi:Lookahead",
    "mask_tokens": "decoding.methods.jacobi:MaskTokens",
    "prompt_lookup": "decoding.methods.baselines:PromptLookup",
    "draft_model": "decoding.methods.drafters:DraftModel",
    "medusa": "decoding.methods.drafters:Medusa",
    "eagle3": "decoding.methods.drafters:Eagle3",
    "falcon": "decoding.methods.drafters:Falcon",
    "dflash": "decoding.methods.blocks:DFlash",
    "ddtree": "decoding.methods.blocks:DDTree",
    "domino": "decoding.methods.blocks:Domino",
    "jetspec": "decoding.methods.blocks:JetSpec",
    "path_tree": "decoding.methods.blocks:PathTree",
}


def register_method(name: str, method: str, head: HeadKind | None = None) -> None:
    """Register a decoding method under a name, together with the kind of its draft head if it has one of its own.

    `method` names its class as "module:Class". `head` is registered under the same name, which is the class's `kind`.
    Raises ValueError for a name that is no identifier or is taken.
    """
    if not name.isidentifier() or METHODS.get(name, method) != method:
        raise ValueError(f"a decoding method cannot be called {name!r}: choose a new name of letters, digits and _")
    METHODS[name] = method
    if head is not None:
        KINDS[name] = head


@told_what_is_missing()
def load_method(name: str, **options: Any) -> Method:
    """An instance of a registered method. Raises UnknownMethod, and MissingPackage where its head needs an extra."""
    made: Callable[..., Method] = method_class(name)
    known = method_options(name)
    if unknown := sorted(set(options) - set(known)):
        raise UnknownMethod(f"{name} has no option {unknown[0]}; it has: {', '.join(known) or 'none'}")
    for option, value in options.items():
        _check_kind(f"{option} of {name}", value, known[option])
    try:
        return made(**options)
    except UnknownMethod:
        raise
    except ValueError as error:
        raise UnknownMethod(f"{name}: {error}") from error


_KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
}
"""By the kind of an option's default: what may be given instead, and how a person is told."""


def _check_kind(what: str, value: Any, default: Any) -> None:
    """Raise UnknownMethod for a value of another kind than the option's default."""
    kinds, told = next((_KINDS[base] for base in type(default).__mro__ if base in _KINDS), ((object,), ""))
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds and object not in kinds):
        raise UnknownMethod(f"{what} takes {told}, not {value}")


def ready_methods(target: "TargetIdentity | None" = None) -> list[str]:
    """The methods that need no head, or whose head is shipped and, if `target` is given, was trained on it."""
    return [name for name in METHODS if _is_ready(name, target)]


def _is_ready(name: str, target: "TargetIdentity | None") -> bool:
    try:
        kind = method_class(name).kind
        if kind is None:
            return True
        with told_what_is_missing():
            from decoding.heads.head import find_head, head_of

        if target:
            return head_of(target, kind) is not None
        find_head(kind)
    except (UnknownMethod, MissingPackage):
        return False
    return True


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
    found: type[Method] = imported(METHODS[name], UnknownMethod)
    return found
