"""The format of training data, and how they become tokens.

A file of training data is JSON Lines, UTF-8; each line is one *group*: a prefix that all its prompts share (for an
agent, the schema), and its pairs.

    {"prefix": "...", "pairs": [{"prompt": "...", "answer": "...", "step": "plan", "id": "...", "weight": 1.0}, ...]}

- `prefix`: may be empty. It must end at a token boundary (after a newline, say), so that its tokens are the first tokens of
  every prompt; a prefix cache needs that, too.
- `prompt`: what follows the prefix; the decoder gets prefix + prompt as the whole prompt.
- `answer`: what the model should write, without a stop token, but with its leading space if it has one (`" SELECT ..."`
  after `"sql:"`).
- `step`: any name; validation reports each step separately.
- `id`: names the example. Pairs of a group with the same id stay together. If one begins with another (a later step's
  prompt with an earlier step's prompt and answer), their common tokens are computed once: give such pairs the same id.
- `weight`: the weight of the pair's answer tokens in the loss; optional, 1.0 by default.

A pair's tokens are encode(prefix + prompt) + encode(answer) + [stop token]; the loss is on the answer and the stop token. A
decoder that gets the prompt's tokens and generates the rest sees the same sequence. Text is encoded as
`decoding.serving.text_decoder` does: special tokens written out in it become tokens.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from decoding.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Tokens = NDArray[np.int32]
V = TypeVar("V")


class TrainingDataError(ValueError):
    """Training data that cannot be used; the one-line message says where and what to do."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt (without its group's prefix) and its answer."""

    prompt: str
    answer: str
    step: str
    id: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Group:
    """Pairs whose prompts begin with the same text."""

    prefix: str
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A pair as tokens. `tokens` is what the model is fed: all but the stop token, which is only a target."""

    tokens: Tokens
    targets: Tokens  # the answer and the stop token; the first is predicted after the last prompt token
    step: str
    id: str
    weight: float

    @property
    def prompt_tokens(self) -> int:
        return len(self.tokens) - len(self.targets) + 1

    @property
    def rows(self) -> int:
        """Rows that it takes in a forward by itself."""
        return len(self.tokens)


def group_line(group: Group) -> str:
    """A group as its line of a file, newline included."""
    return json.dumps(asdict(group), ensure_ascii=False) + "\n"


def read_groups(path: Path) -> Iterator[Group]:
    """Groups of a file, in order. Raises TrainingDataError, which names the line."""
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield validated(Group, line, f"{path}, line {number}: no group of training data")
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingDataError(f"{path} cannot be read: {error}") from error


def validated(kind: type[V], value: Any, otherwise: str) -> V:
    """What JSON text, or values read from it, say as `kind`. Raises TrainingDataError: `otherwise`, and the first fault."""
    from pydantic import ValidationError  # only where data are read: who trains from packs may do without

    try:
        of: Any = kind  # mypy holds type[V] for unhashable
        read = _adapter(of)
        found: V = read.validate_json(value) if isinstance(value, str) else read.validate_python(value)
        return found
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"])))
        raise TrainingDataError(f"{otherwise} ({place})") from error


@cache
def _adapter(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    made: TypeAdapter[Any] = TypeAdapter(kind)
    return made


def stop_token(tokenizer: Tokenizer, name: str | None = None) -> int:
    """The token that ends an answer: `name`, or the tokenizer's only stop token. Raises TrainingDataError."""
    if name is not None:
        number = tokenizer.id(name)
        if number not in tokenizer.stop_ids or number is None:
            raise TrainingDataError(f"{name!r} is no stop token of this model; it has {_named(tokenizer)}")
        return number
    if len(tokenizer.stop_ids) != 1:
        raise TrainingDataError(f"the model's stop tokens are {_named(tokenizer)}: name one (--stop-token)")
    return next(iter(tokenizer.stop_ids))


def _named(tokenizer: Tokenizer) -> str:
    return ", ".join(tokenizer.token(number) for number in sorted(tokenizer.stop_ids)) or "none"


def tokenise(groups: Iterable[Group], tokenizer: Tokenizer, stop: int) -> Iterator[list[TokenPair]]:
    """Each group's pairs as tokens. Raises TrainingDataError if a prefix or a prompt does not end at a token boundary."""
    for group in groups:
        prefix = tokenizer.encode(group.prefix)
        yield [_tokens(group.prefix, prefix, pair, tokenizer, stop) for pair in group.pairs]


def _tokens(prefix: str, prefix_ids: Sequence[int], pair: Pair, tokenizer: Tokenizer, stop: int) -> TokenPair:
    prompt, answer = tokenizer.encode(prefix + pair.prompt), tokenizer.encode(pair.answer)
    if not prompt:
        raise TrainingDataError(f"pair {pair.id!r} ({pair.step}): the prompt is empty")
    if prompt[: len(prefix_ids)] != list(prefix_ids):
        raise TrainingDataError(
            f"pair {pair.id!r} ({pair.step}): the prefix's last token changes when the prompt follows; "
            "let the prefix end with a newline"
        )
    if tokenizer.encode(prefix + pair.prompt + pair.answer) != prompt + answer:
        raise TrainingDataError(
            f"pair {pair.id!r} ({pair.step}): prompt and answer share a token; "
            "let the answer begin with the space or newline that parts them"
        )
    return TokenPair(
        tokens=np.array(prompt + answer, dtype=np.int32),
        targets=np.array([*answer, stop], dtype=np.int32),
        step=pair.step,
        id=pair.id,
        weight=pair.weight,
    )
