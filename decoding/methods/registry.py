"""Makes a decoding method by its name. `METHODS` lists them; `decoding.engine.method` defines what a method is."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from decoding.engine.method import Method, UnknownMethod
from decoding.errors import MissingPackage, told_what_is_missing
from decoding.heads.kinds import imported
from decoding.methods.table import METHODS as METHODS  # re-exported for callers that load methods

if TYPE_CHECKING:
    from decoding.checkpoints.target_identity import TargetIdentity


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
    kinds, told = _KINDS.get(type(default), ((object,), ""))
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
