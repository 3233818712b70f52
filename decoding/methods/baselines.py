"""Plain decoding, prompt lookup, and a cascade of other methods.

`Plain` never guesses; every other method is compared with it.

`PromptLookup` copies what followed the last tokens where they appeared before (github.com/apoorvumang/prompt-lookup-decoding):
in the prompt, in the text so far and in the conversation's earlier texts. Several matches share one tree. The longer the match,
the more is copied, as in SuffixDecoding (arXiv 2411.04975).

`Cascade` asks several methods in turn, and takes the first draft that is not empty, or all drafts in one tree.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method, UnknownMethod
from decoding.engine.target import AnyTarget, Array, ForwardOutput
from decoding.engine.verify import Verdict
from decoding.methods.ngram_pool import NgramPool, different
from decoding.methods.registry import load_method, name_and_value, option_value

if TYPE_CHECKING:
    from decoding.checkpoints.identity import TargetIdentity


class Plain(Method):
    """One token per forward."""

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        """Nothing to remember."""

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        return Draft()

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        """Nothing to learn."""


class PromptLookup(Method):
    """Longest match first, then newest; this text before earlier texts.

    max_ngram, min_ngram: lengths of the suffix that is searched for, tried from long to short.
    draft_tokens: the most tokens copied per match. per_matched: tokens copied for each token of the suffix that matches.
    matches: different continuations put into one tree.
    """

    def __init__(
        self, max_ngram: int = 8, min_ngram: int = 1, draft_tokens: int = 16, per_matched: int = 3, matches: int = 1
    ) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"need 1 <= min_ngram <= max_ngram, not {min_ngram} and {max_ngram}")
        if min(draft_tokens, per_matched, matches) < 1:
            raise ValueError("draft_tokens, per_matched and matches must be 1 or more")
        self._lengths = range(max_ngram, min_ngram - 1, -1)
        self._draft_tokens, self._per_matched, self._matches = draft_tokens, per_matched, matches

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._pool = NgramPool(0, context.recall.sequences)

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        most = min(room, self._draft_tokens)
        guesses = self._pool.following(tokens, most, self._lengths, self._per_matched)
        return Draft.trie(different(guesses, self._matches))

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        """Nothing to learn: it reads only the text."""


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

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
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
