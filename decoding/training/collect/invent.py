"""Prompts without data: a chat model invents users' messages, and its answers to them are what draft heads learn from.

The model continues its chat template where a user's message begins (Magpie, arXiv 2406.08464). Messages are sampled, each
with a seed of its own, so that a file can be continued.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from decoding.engine.sampling.sampler import Sampler
from decoding.serving.text_decoder import SEATS, Generation, Settings, TextDecoder
from decoding.tokenizer.tokenizer import Tokenizer
from decoding.training.collect.collect import repeats
from decoding.training.data.groups import Group, Pair, TrainingDataError, group_line, read_groups

STEP = "chat"
_PLACE = "\N{OBJECT REPLACEMENT CHARACTER}"  # stands for the message where a template is cut
_LEAST_TOKENS = 4
_PATIENCE = 10  # batches without a new message


@dataclass(frozen=True, slots=True)
class Inventing:
    """How to invent. seed: of all messages; each draws with a seed derived from it and from its number. opening: words with
    which every message begins.
    """

    count: int
    temperature: float = 1.0
    max_tokens: int = 96  # of a message; longer ones are left out
    seed: int = 0
    opening: str = ""


def chat_parts(tokenizer: Tokenizer) -> tuple[str, str]:
    """The chat template before a user's first message, and between it and the answer.

    Raises TrainingDataError where the template shows no message.
    """
    before, found, after = tokenizer.chat([{"role": "user", "content": _PLACE}]).partition(_PLACE)
    if not found:
        raise TrainingDataError("the chat template does not show a user's message as it is: choose another model")
    return before, after


def invent(
    decoder: TextDecoder,
    path: Path,
    how: Inventing,
    report: Callable[[str], None] = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Append groups of one prompt each to the file until it has `how.count`; returns how many it has.

    A file that is there is continued. Raises TrainingDataError if the model invents nothing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    there = list(read_groups(path)) if path.exists() else []
    with path.open("a", encoding="utf-8") as file:
        done, number = len(there), max((_number(group) for group in there), default=-1) + 1
        known = {group.pairs[0].prompt for group in there}
        for group in _new_groups(decoder, how, number, known):
            if done >= how.count or stopped():
                break
            file.write(group_line(group))
            done += 1
            if done % SEATS == 0:
                file.flush()
                report(f"{done:,} of {how.count:,} prompts")
    return done


def _new_groups(decoder: TextDecoder, how: Inventing, number: int, known: set[str]) -> Iterator[Group]:
    """Groups of messages that are not known yet, from message `number` on."""
    (before, after), failed = chat_parts(decoder.tokenizer), 0
    for first in count(number, SEATS):
        failed += 1
        for index, message in _messages(decoder, before, how, first):
            prompt = message + after
            if prompt not in known:
                known.add(prompt)
                failed = 0
                yield Group(before, (Pair(prompt, "", STEP, f"invented/{index}"),))
        if failed == _PATIENCE:
            raise TrainingDataError(
                "the model invents no new users' messages: choose a chat model, or raise --temperature"
            )


def _messages(decoder: TextDecoder, before: str, how: Inventing, first: int) -> list[tuple[int, str]]:
    """A batch of messages by number, without those that are unfinished, too short or repeat themselves."""
    drawn = Sampler(how.temperature, how.seed)
    settings = [
        Settings(temperature=how.temperature, seed=drawn.derive("message", index).seed, max_new_tokens=how.max_tokens)
        for index in range(first, first + SEATS)
    ]
    ended = decoder.samples(before + how.opening, settings)
    return [(index, (how.opening + each.text).strip()) for index, each in enumerate(ended, first) if _is_message(each)]


def _is_message(written: Generation) -> bool:
    return written.finish == "stop" and len(written.tokens) >= _LEAST_TOKENS and not repeats(written.tokens)


def _number(group: Group) -> int:
    """The number of an invented message. Raises TrainingDataError for other data."""
    kind, _, number = group.pairs[0].id.partition("/")
    if kind != "invented" or not number.isdigit():
        raise TrainingDataError("the file holds other training data: name another one with --out")
    return int(number)
