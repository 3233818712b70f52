"""Text in a form that a caller prescribes: a JSON schema, any JSON, a regular expression, or one of several texts.

The automaton over tokens is llguidance's (github.com/guidance-ai/llguidance).
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from decoding.engine.constraint import Mask
from decoding.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

LONGEST_GRAMMAR = 200_000  # characters


class FormError(ValueError):
    """A form that cannot be prescribed; the message is one line that says why."""


class Point:
    """A state: what has been written. Immutable but for the mask that it keeps."""

    __slots__ = ("mask", "matcher")

    def __init__(self, matcher: "LLMatcher") -> None:
        self.matcher = matcher
        self.mask: Mask | None = None


class StructuredOutput:
    """A grammar of llguidance as a `Constraint`; see there. `size`: width of the logits."""

    def __init__(self, grammar: str, tokenizer: Tokenizer, size: int) -> None:
        """Raises FormError."""
        from llguidance import LLMatcher

        if len(grammar) > LONGEST_GRAMMAR:
            raise FormError(f"it has {len(grammar):,} characters; at most {LONGEST_GRAMMAR:,} are taken")
        self._stop, self._size = sorted(tokenizer.stop_ids), size
        self._begin = LLMatcher(_vocabulary(tokenizer, size), grammar, log_level=0)
        if self._begin.is_error():
            raise FormError(_one_line(self._begin.get_error()))

    def start(self) -> Point:
        return Point(self._begin.deep_copy())

    def allowed(self, state: Point) -> Mask:
        if state.mask is None:
            state.mask = self._mask(state.matcher)
        return state.mask

    def admits(self, state: Point, token: int) -> bool:
        if token in self._stop:
            return bool(state.matcher.is_accepting() or self.allowed(state)[token])
        return token < self._size and state.matcher.validate_tokens([token]) == 1

    def step(self, state: Point, token: int) -> Point:
        matcher = state.matcher.deep_copy()
        matcher.consume_token(token)
        return Point(matcher)

    def forced(self, state: Point) -> tuple[int, ...]:
        return () if state.matcher.is_stopped() else tuple(state.matcher.compute_ff_tokens())

    def _mask(self, matcher: "LLMatcher") -> Mask:
        """A matcher that gave up, because a limit of its own was reached, lets the text end."""
        mask = np.zeros(self._size, dtype=np.bool_)
        if matcher.is_stopped():
            mask[self._stop] = True
            return mask
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        mask[:] = np.unpackbits(bits, bitorder="little")[: self._size]
        if matcher.is_accepting() or not mask.any():
            mask[self._stop] = True
        return mask


def json_form(schema: Mapping[str, Any] | None, tokenizer: Tokenizer, size: int) -> StructuredOutput:
    """JSON by a schema on one line, compact; any JSON object without one. Raises FormError."""
    from llguidance import LLMatcher

    try:
        wanted = json.dumps({"type": "object"} if schema is None else schema)
        grammar = LLMatcher.grammar_from_json_schema(wanted, {"whitespace_flexible": False})
    except ValueError as error:
        raise FormError(_one_line(str(error))) from error
    return StructuredOutput(grammar, tokenizer, size)


def regex_form(pattern: str, tokenizer: Tokenizer, size: int) -> StructuredOutput:
    """A text that a regular expression matches as a whole. Raises FormError."""
    from llguidance import LLMatcher

    return StructuredOutput(LLMatcher.grammar_from_regex(pattern), tokenizer, size)


def choice_form(texts: Sequence[str], tokenizer: Tokenizer, size: int) -> StructuredOutput:
    """One of the texts. Raises FormError."""
    from llguidance import LLMatcher

    grammar = "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    return StructuredOutput(LLMatcher.grammar_from_lark(grammar), tokenizer, size)


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer, size: int) -> "LLTokenizer":
    from llguidance import LLTokenizer

    return LLTokenizer(tokenizer.serialised(), n_vocab=size, eos_token=sorted(tokenizer.stop_ids))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
