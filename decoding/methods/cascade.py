"""Asks several methods in turn, and takes the first draft that is not empty, or all drafts in one tree."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method, UnknownMethod
from decoding.engine.target import AnyTarget, Array, Scores
from decoding.engine.verify import Verdict
from decoding.methods.name_value import name_and_value
from decoding.methods.registry import load_method, option_value

if TYPE_CHECKING:
    from decoding.checkpoints.target_identity import TargetIdentity


class Cascade(Method):
    """first, second: methods by name, or by name and options: "prompt_lookup:min_ngram=3,draft_tokens=12".

    together: verify both drafts at once, in one tree. Both methods observe every round's outcome, whichever of them drafted.
    `second` may itself be a cascade, passed as an instance.
    """

    def __init__(
        self,
        first: Method | str = "prompt_lookup:min_ngram=2",
        second: Method | str = "jacobi_forcing",
        together: bool = False,
    ) -> None:
        self._together = together
        self._methods = [_method(each) for each in (first, second)]
        self.taps = self._all_taps()

    def meet(self, target: AnyTarget, identity: "Callable[[], TargetIdentity] | None") -> None:
        for method in self._methods:
            method.meet(target, identity)
        self.taps = self._all_taps()

    def _all_taps(self) -> tuple[int, ...]:
        return tuple(sorted({tap for method in self._methods for tap in method.taps}))

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        for method in self._methods:
            method.begin(prompt, self._tapped(method, hidden), context)

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        return self._drafted(self._methods, tokens, room)

    def propose_unseen(self, tokens: Sequence[int], room: int) -> Draft:
        """The draft of those methods that need no hidden states."""
        return self._drafted([method for method in self._methods if not method.taps], tokens, room)

    def _drafted(self, methods: Sequence[Method], tokens: Sequence[int], room: int) -> Draft:
        drafts = (method.propose(tokens, room) for method in methods)
        if self._together:
            return reduce(Draft.joined, drafts, Draft())
        return next((draft for draft in drafts if len(draft)), Draft())

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        for method in self._methods:
            method.observe(draft, replace(scores, hidden=self._tapped(method, scores.hidden)), verdict)

    def _tapped(self, method: Method, hidden: Array | None) -> Array | None:
        """The states [tokens, taps, hidden] of this method's taps, from the states of all methods' taps."""
        if hidden is None or not method.taps:
            return None
        states: Array = hidden[:, [self.taps.index(tap) for tap in method.taps]]
        return states


def _method(wanted: Method | str) -> Method:
    if not isinstance(wanted, str):
        return wanted
    name, _, options = wanted.partition(":")
    return load_method(name, **dict(_option(name, part) for part in options.split(",") if part))


def _option(name: str, text: str) -> tuple[str, bool | int | float | str]:
    try:
        key, value = name_and_value(text)
    except ValueError as error:
        raise UnknownMethod(f"{name} takes options as key=value in a cascade, not {text!r}") from error
    return key, option_value(value)
