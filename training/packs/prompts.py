"""Prompts without data, and batches of prompts on a Ray cluster.

Prompts without data: a chat model invents users' messages, and its answers to them are what draft heads learn from.

The model continues its chat template where a user's message begins (Magpie, arXiv 2406.08464). Messages are sampled, each
with a seed of its own, so that a file can be continued.

Prompts with something to read, made of a chat model's own answers: to sum it up, to translate it, to answer from it.

A draft head that has seen short prompts alone knows nothing of answers that lean on a long one. `invent` gives messages
and `train head collect` answers; here answers become passages of further prompts, so that no text has to be brought along.

Batches of prompts decoded by the workers of a Ray cluster.

Results come back in the order of the batches, so that the file is the same as if one process had collected it.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from decoding.engine.sampler import Sampler
from decoding.serving.parts import ray_workers
from decoding.serving.text_decoder import SEATS, Completion, SamplingParams, TextDecoder
from decoding.tokenizer import Tokenizer
from training.packs.collect import Asked, Batches, Kind, repeats
from training.packs.groups import Group, Pair, TrainingDataError, group_line, read_groups

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
        SamplingParams(
            temperature=how.temperature, seed=drawn.derive("message", index).seed, max_new_tokens=how.max_tokens
        )
        for index in range(first, first + SEATS)
    ]
    ended = decoder.samples(before + how.opening, settings)
    return [(index, (how.opening + each.text).strip()) for index, each in enumerate(ended, first) if _is_message(each)]


def _is_message(written: Completion) -> bool:
    return written.finish == "stop" and len(written.tokens) >= _LEAST_TOKENS and not repeats(written.tokens)


def _number(group: Group) -> int:
    """The number of an invented message. Raises TrainingDataError for other data."""
    kind, _, number = group.pairs[0].id.partition("/")
    if kind != "invented" or not number.isdigit():
        raise TrainingDataError("the file holds other training data: name another one with --out")
    return int(number)


Answered = tuple[str, Sequence[int]]
"""A prompt in the chat template and the tokens of its answer."""

LEAST_TOKENS = 48
"""A shorter answer is no passage."""

_SUMMARIES = (
    "Summarize the following text in a few sentences.\n\n{passages}",
    "{passages}\n\nWhat is the text above about? Sum it up.",
    "Write a short summary of this article:\n\n{passages}",
)
_TRANSLATIONS = (
    "Translate the following sentences into {language}.\n\n{passages}",
    "How would you say this in {language}?\n\n{passages}",
)
_QUESTIONS = (
    "Answer the question from the texts below.\n\n{passages}\n\nQuestion: {question}",
    "{passages}\n\nUse what you have read to answer this: {question}",
    "Context:\n{passages}\n\nQuestion: {question}\nAnswer:",
)
_LANGUAGES = ("German", "French", "Spanish", "Italian")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True, slots=True)
class _Talk:
    """A user's message and what the model answered."""

    message: str
    answer: str


def prompts_to_read(tokenizer: Tokenizer, answers: Iterable[Answered], count: int, seed: int) -> Iterator[Group]:
    """At most `count` prompts, a third each of summaries, translations and questions, as groups of one.

    The same answers and seed give the same prompts. Raises TrainingDataError where the chat template hides messages.
    """
    drawn = random.Random(seed)
    talks = list(_talks(tokenizer, answers))
    drawn.shuffle(talks)
    before, after = chat_parts(tokenizer)
    for number in range(min(count, len(talks) // 3)):
        message = _message(talks[3 * number : 3 * number + 3], number % 3, drawn)
        yield Group(before, (Pair(message + after, "", STEP, f"read/{number}"),))


def _talks(tokenizer: Tokenizer, answers: Iterable[Answered]) -> Iterator[_Talk]:
    before, after = chat_parts(tokenizer)
    for prompt, answer in answers:
        tokens = [token for token in answer if token not in tokenizer.stop_ids]
        if len(tokens) >= LEAST_TOKENS:
            yield _Talk(prompt.removeprefix(before).removesuffix(after), tokenizer.decode(tokens).strip())


def _message(talks: Sequence[_Talk], kind: int, drawn: random.Random) -> str:
    answers = [talk.answer for talk in talks[: drawn.randint(1, len(talks))]]
    passages = "\n\n".join(answers)
    match kind:
        case 0:
            return drawn.choice(_SUMMARIES).format(passages=passages)
        case 1:
            sentences = _SENTENCE_END.split(talks[0].answer)[: drawn.randint(1, 3)]
            language = drawn.choice(_LANGUAGES)
            return drawn.choice(_TRANSLATIONS).format(passages=" ".join(sentences), language=language)
        case _:
            question = talks[drawn.randrange(len(answers))].message
            return drawn.choice(_QUESTIONS).format(passages=passages, question=question)


Record = TypeVar("Record")


class _Worker:
    """An actor with one model, which it loads on its own node."""

    def __init__(self, load: Callable[[], TextDecoder], kind: Callable[[Tokenizer], Kind[Any]]) -> None:
        decoder = load()
        self._batches = Batches(decoder, kind(decoder.tokenizer))

    def decode(self, batch: Sequence[Asked]) -> list[Any]:
        return self._batches(batch)


def ray_decoded(
    address: str,
    workers: int | None,
    load: Callable[[], TextDecoder],
    kind: Callable[[Tokenizer], Kind[Record]],
    batches: Sequence[Sequence[Asked]],
) -> Iterator[list[Record | str]]:
    """What `Batches` returns for each batch, in order. `load` and `kind` run in the workers, which `ray_workers` describes.

    Raises ClusterError if there is no Ray or no cluster.
    """
    with ray_workers(address, workers, _Worker, load, kind) as actors:
        from ray.util import ActorPool

        pool: Any = ActorPool(actors)
        yield from pool.map(lambda worker, batch: worker.decode.remote(batch), batches)
