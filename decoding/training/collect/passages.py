"""Prompts with something to read, made of a chat model's own answers: to sum it up, to translate it, to answer from it.

A draft head that has seen short prompts alone knows nothing of answers that lean on a long one. `invent` gives messages
and `train head collect` answers; here answers become passages of further prompts, so that no text has to be brought along.
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from decoding.tokenizer.tokenizer import Tokenizer
from decoding.training.collect.invent import STEP, chat_parts
from decoding.training.data.groups import Group, Pair

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
