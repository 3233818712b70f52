"""The clients of a load test: they ask one question after another, and note what came and when."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from time import perf_counter
from typing import Any

from app.serve.load.report import Answer, Tally

_WORDS = (
    "time",
    "year",
    "people",
    "way",
    "day",
    "thing",
    "world",
    "life",
    "hand",
    "part",
    "eye",
    "place",
    "work",
    "week",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that was answered."""

    text: str
    answer: str


class Asking:
    """Clients of one endpoint. options: of every request. stream: whether answers are read as they are written."""

    def __init__(self, client: Any, options: Mapping[str, Any], stream: bool) -> None:
        self._client, self._options, self._stream, self.tally = client, options, stream, Tally()

    async def answer(self, text: str) -> Answer:
        """Raises openai.OpenAIError and httpx.HTTPError."""
        start, messages = perf_counter(), [{"role": "user", "content": text}]
        if self._stream:
            more = {"stream": True, "stream_options": {"include_usage": True}}
            events = await self._client.chat.completions.create(messages=messages, **self._options, **more)
            return await _streamed(events, start)
        done = await self._client.chat.completions.create(messages=messages, **self._options)
        usage = done.usage
        whole_s = perf_counter() - start
        return Answer(done.choices[0].message.content or "", usage.prompt_tokens, usage.completion_tokens, whole_s)

    async def keep_asking(self, expected: Mapping[str, str], client: int, until_s: float) -> None:
        """One of the questions after another, each client from another one on. expected: their answers."""
        texts = list(expected)

        async def ask(number: int) -> None:
            text = texts[(client + number) % len(texts)]
            self.tally.add(await self.answer(text), expected[text])

        await self._keep(ask, until_s)

    async def keep_asking_anew(self, client: int, words: int, until_s: float) -> Asked | None:
        """Prompts of so many words, each another one from its beginning on. Returns the last that was answered."""
        last: Asked | None = None

        async def ask(number: int) -> None:
            nonlocal last
            text = long_prompt(client, number, words)
            answer = await self.answer(text)
            self.tally.add(answer, answer.text)
            last = Asked(text, answer.text)

        await self._keep(ask, until_s)
        return last

    async def check_again(self, asked: Asked | None) -> None:
        """Ask it once more; another answer makes the former a wrong one."""
        if asked:
            self.tally.wrong += (await self.answer(asked.text)).text != asked.answer

    async def _keep(self, ask: Callable[[int], Awaitable[None]], until_s: float) -> None:
        """One request after another; whoever is refused comes back as it is told."""
        import httpx
        import openai

        number = 0
        while perf_counter() < until_s:
            try:
                await ask(number)
            except openai.APIStatusError as error:
                self._not_answered(error.status_code)
                await asyncio.sleep(float(error.response.headers.get("retry-after", 1)))
            except (openai.OpenAIError, httpx.HTTPError):
                self._not_answered(0)
                await asyncio.sleep(1)
            number += 1

    def _not_answered(self, status: int) -> None:
        if status in (429, 503):
            self.tally.refused += 1
        else:
            self.tally.failed += 1


def long_prompt(client: int, number: int, words: int) -> str:
    """A prompt that shares no beginning with those of other clients and numbers, so that no cache has it."""
    dice = Random(f"{client} {number}")
    return f"{client}.{number}: go on. " + " ".join(dice.choice(_WORDS) for _ in range(words))


async def _streamed(events: AsyncIterator[Any], start_s: float) -> Answer:
    """The answer of a stream, and when its texts came."""
    text, came, usage = "", list[float](), None
    async for event in events:
        usage = event.usage or usage
        if event.choices and (more := event.choices[0].delta.content):
            text += more
            came.append(perf_counter())
    end_s = perf_counter()
    prompt_tokens, tokens = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
    pause_s = max((after - before for before, after in pairwise(came)), default=0.0)
    first_s = (came[0] if came else end_s) - start_s
    return Answer(text, prompt_tokens, tokens, end_s - start_s, first_s, pause_s)
