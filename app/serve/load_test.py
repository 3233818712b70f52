"""`sqlagent load`: many clients at once on an OpenAI-compatible endpoint: how fast, how surely, and what is refused.

Each question is first asked alone, at temperature 0; whatever else comes back for it later is a wrong or mixed-up answer.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import quantiles
from time import perf_counter
from typing import Annotated, Any

import typer

from app.shared import exit_codes, options, output

Url = Annotated[str, typer.Argument(help="The endpoint, such as http://127.0.0.1:8000/v1")]
Clients = Annotated[int, typer.Option("--clients", min=1, help="Clients that ask at the same time.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, help="Seconds for which they keep asking.")]
Questions = Annotated[int, typer.Option("--questions", min=1, help="Different questions to ask.")]
Tokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens in an answer.")]
ModelName = Annotated[str | None, typer.Option("--model", help="Model to ask. Default: the first one that is served.")]
Key = Annotated[
    str, typer.Option("--api-key", envvar="OPENAI_API_KEY", help="The endpoint's API key, if it needs one.")
]


@dataclass(slots=True)
class Tally:
    """What came of the requests. `latencies_s` are those of the answered ones."""

    latencies_s: list[float] = field(default_factory=list)
    tokens: int = 0
    wrong: int = 0
    refused: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """`tokens_per_s` are generated tokens of all clients together; latencies are of answered requests, refusals apart."""

    clients: int
    wall_s: float
    answered: int
    wrong: int
    refused: int
    failed: int
    requests_per_s: float
    tokens_per_s: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


def load(
    url: Url,
    clients: Clients = 32,
    seconds: Seconds = 300.0,
    questions: Questions = 16,
    max_tokens: Tokens = 64,
    model: ModelName = None,
    api_key: Key = "none",
    as_json: options.Json = False,
) -> None:
    """Load an endpoint with many clients and check every answer."""
    exit_codes.needs("openai", "remote")
    with exit_codes.plain_errors():
        report = asdict(asyncio.run(measure(url, clients, seconds, questions, max_tokens, model, api_key)))
    if as_json:
        output.print_json(report)
    else:
        output.print_table(["what", "measured"], [[name, _shown(value)] for name, value in report.items()])
    raise typer.Exit(
        exit_codes.FAILED if report["wrong"] or report["failed"] or not report["answered"] else exit_codes.OK
    )


async def measure(
    url: str, clients: int, seconds: float, questions: int, max_tokens: int, model: str | None, api_key: str
) -> Report:
    """Raises openai.OpenAIError where the endpoint cannot be had at all."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key=api_key, max_retries=0) as openai:
        name = model or (await openai.models.list()).data[0].id
        asking = _Asking(openai, {"model": name, "max_tokens": max_tokens, "temperature": 0})
        texts = [f"Question {number}: what is {number} times {number + 1}, and why?" for number in range(questions)]
        answers = [(text, (await asking.completion(text)).choices[0].message.content) for text in texts]
        start = perf_counter()
        await asyncio.gather(*(asking.keep_asking(answers, client, start + seconds) for client in range(clients)))
        return report_of(asking.tally, clients, perf_counter() - start)


class _Asking:
    def __init__(self, client: Any, options: dict[str, Any]) -> None:
        self._client, self._options, self.tally = client, options, Tally()

    async def completion(self, text: str) -> Any:
        messages = [{"role": "user", "content": text}]
        return await self._client.chat.completions.create(messages=messages, **self._options)

    async def keep_asking(self, answers: Sequence[tuple[str, str]], client: int, until_s: float) -> None:
        """One question after another, each client from another one on; a refused client comes back as it is told."""
        import openai

        for number in range(client, 10**9):
            if perf_counter() >= until_s:
                return
            try:
                await self._one(*answers[number % len(answers)])
            except openai.APIStatusError as error:
                self._not_answered(error.status_code)
                await asyncio.sleep(float(error.response.headers.get("retry-after", 1)))
            except openai.OpenAIError:
                self._not_answered(0)
                await asyncio.sleep(1)

    async def _one(self, text: str, expected: str) -> None:
        start = perf_counter()
        done = await self.completion(text)
        self.tally.latencies_s.append(perf_counter() - start)
        self.tally.tokens += done.usage.completion_tokens
        self.tally.wrong += done.choices[0].message.content != expected

    def _not_answered(self, status: int) -> None:
        if status in (429, 503):
            self.tally.refused += 1
        else:
            self.tally.failed += 1


def report_of(tally: Tally, clients: int, wall_s: float) -> Report:
    """The figures of a run."""
    answered = len(tally.latencies_s)
    cuts = [1e3 * cut for cut in quantiles(tally.latencies_s, n=100, method="inclusive")] if answered > 1 else None
    p50, p95, p99 = (cuts[49], cuts[94], cuts[98]) if cuts else (None, None, None)
    rates = (answered / wall_s, tally.tokens / wall_s)
    return Report(clients, wall_s, answered, tally.wrong, tally.refused, tally.failed, *rates, p50, p95, p99)


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
