"""`sqlagent load`: many clients at once on an OpenAI-compatible endpoint: how fast, how surely, and what is refused.

Each question is first asked alone, at temperature 0; whatever else comes back for it later is a wrong or mixed-up answer. Long
newcomers, whose prompts nobody has asked before, are checked afterwards: each one's last question is asked again, alone.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Annotated, Any

import typer

from app.serve.load.clients import Asking
from app.serve.load.report import Report, report_of
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
Stream = Annotated[bool, typer.Option("--stream", help="Stream the answers, and time their first tokens and pauses.")]
Newcomers = Annotated[
    int, typer.Option("--newcomers", min=0, help="Further clients, with long and ever new prompts. Implies --stream.")
]
NewcomerWords = Annotated[int, typer.Option("--newcomer-words", min=1, help="Words in a newcomer's prompt.")]


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked, by how many, and for how long. Fields are called as the options are."""

    clients: int
    seconds: float
    questions: int = 16
    max_tokens: int = 64
    stream: bool = False
    newcomers: int = 0
    newcomer_words: int = 800


def load(
    url: Url,
    clients: Clients = 32,
    seconds: Seconds = 300.0,
    questions: Questions = 16,
    max_tokens: Tokens = 64,
    stream: Stream = False,
    newcomers: Newcomers = 0,
    newcomer_words: NewcomerWords = 800,
    model: ModelName = None,
    api_key: Key = "none",
    as_json: options.Json = False,
) -> None:
    """Load an endpoint with many clients and check every answer."""
    exit_codes.needs("openai", "remote")
    wanted = Load(clients, seconds, questions, max_tokens, stream or newcomers > 0, newcomers, newcomer_words)
    with exit_codes.plain_errors():
        report = asyncio.run(measure(url, wanted, model, api_key))
    if as_json:
        output.print_json(asdict(report))
    else:
        output.print_table(["what", "measured"], [[name, _shown(value)] for name, value in _rows(asdict(report))])
    raise typer.Exit(exit_codes.OK if report.is_good else exit_codes.FAILED)


async def measure(url: str, load: Load, model: str | None, api_key: str) -> Report:
    """Raises openai.OpenAIError where the endpoint cannot be had at all."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key=api_key, max_retries=0) as openai:
        name = model or (await openai.models.list()).data[0].id
        asked = {"model": name, "max_tokens": load.max_tokens, "temperature": 0}
        clients, newcomers = (Asking(openai, asked, load.stream) for _ in range(2))
        texts = [
            f"Question {number}: what is {number} times {number + 1}, and why?" for number in range(load.questions)
        ]
        expected = {text: (await clients.answer(text)).text for text in texts}
        start = perf_counter()
        until_s = start + load.seconds
        last = await asyncio.gather(
            *(newcomers.keep_asking_anew(each, load.newcomer_words, until_s) for each in range(load.newcomers)),
            *(clients.keep_asking(expected, each, until_s) for each in range(load.clients)),
        )
        wall_s = perf_counter() - start
        for each in last[: load.newcomers]:
            await newcomers.check_again(each)
    return report_of(clients.tally, load.clients, wall_s, newcomers.tally, load.newcomers)


def _rows(report: dict[str, Any], of: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values, those of the newcomers under names of their own."""
    for name, value in report.items():
        if isinstance(value, dict):
            yield from _rows(value, f"{name}: ")
        elif name != "newcomers":
            yield of + name, value


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
