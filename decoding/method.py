"""A decoding method: where drafts come from. Everything else is shared.

Adding one is a file in `decoding/methods/` and a line in `METHODS`: the command line, the benchmark and the
losslessness test follow from that table.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from decoding.draft import Draft
from decoding.place import Place
from decoding.recall import Recall
from decoding.sampling import Sampler
from decoding.target import Scores
from decoding.verify import Verdict

if TYPE_CHECKING:
    from decoding.heads.head import TargetIdentity


@dataclass(frozen=True, slots=True)
class Context:
    """What a method may read beside the text. A guess at T > 0 ranked without the sampler's noise is blind to the target's."""

    sampler: Sampler
    embedding: Tensor  # the target's [vocab, hidden]
    lm_head: Tensor  # the target's [vocab, hidden]
    recall: Recall
    identity: "Callable[[], TargetIdentity] | None" = None  # who the target is, where that is known
    place: Callable[[], Place | None] = lambda: None  # where the text stands in its constraint just now, if it has one


class Method(ABC):
    """The base of all methods. One instance drafts for one sequence at a time."""

    kind: ClassVar[str | None] = None  # of its draft head, a key of `decoding.heads.head.KINDS`; None without one
    taps: tuple[int, ...] = ()  # hidden layers whose states it needs (see `Target`); empty for most

    @abstractmethod
    def begin(self, prompt: Sequence[int], hidden: Tensor | None, context: Context) -> None:
        """Forget everything; a new sequence starts with `prompt`.

        `hidden` [cached, taps, hidden]: states of the prompt's first tokens, as far as the prefix cache has them. The
        states of the others come with the first `observe`, so a method with taps is asked for no draft in the first
        round, after a cold start and after a cache hit alike; `propose_unseen` is asked instead.
        """

    @abstractmethod
    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        """Guess what follows `tokens` (prompt and committed text), at most `room` deep. An empty draft is fine."""

    def propose_unseen(self, tokens: Sequence[int], room: int) -> Draft:
        """As `propose`, where a method with taps has not seen the states of `tokens` yet. By default it drafts nothing."""
        return Draft()

    @abstractmethod
    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """What the target said about the draft that was really scored: pruned perhaps, or another method's."""


METHODS: Mapping[str, str] = {
    "plain": "decoding.methods.plain:Plain",
    "jacobi": "decoding.methods.jacobi:Jacobi",
    "jacobi_forcing": "decoding.methods.jacobi_forcing:JacobiForcing",
    "lookahead": "decoding.methods.lookahead:Lookahead",
    "mask_tokens": "decoding.methods.mask_tokens:MaskTokens",
    "prompt_lookup": "decoding.methods.prompt_lookup:PromptLookup",
    "draft_model": "decoding.methods.draft_model:DraftModel",
    "medusa": "decoding.methods.medusa:Medusa",
    "eagle3": "decoding.methods.eagle3:Eagle3",
    "falcon": "decoding.methods.falcon:Falcon",
    "dflash": "decoding.methods.dflash:DFlash",
    "ddtree": "decoding.methods.ddtree:DDTree",
    "domino": "decoding.methods.domino:Domino",
    "jetspec": "decoding.methods.jetspec:JetSpec",
    "path_tree": "decoding.methods.path_tree:PathTree",
    "cascade": "decoding.methods.cascade:Cascade",
}


class UnknownMethod(ValueError):
    """No such decoding method, or an option that it does not have; the message lists what there is."""


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
