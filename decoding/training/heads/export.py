"""Turns a trained head into a shipped one with 4 bits per weight, and measures by decoding what that costs."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from decoding.engine.loop import Request, decode
from decoding.engine.records.metrics import measure
from decoding.heads.head import Head, load_head, new_head, save_head
from decoding.methods.registry import load_method
from decoding.serving.text_decoder import TextDecoder
from decoding.training.config import TrainingError
from decoding.training.heads.responses import Response


@dataclass(frozen=True, slots=True)
class Exported:
    """The shipped folder's figures. Tokens per forward are for the same greedy answers; None if nothing was decoded.

    untrained: with random weights, for comparison, because a head that learnt nothing is as lossless as any. lost: share of the
    accepted draft tokens that quantisation costs.
    """

    bytes: int
    prompts: int
    fp32_tokens_per_forward: float | None = None
    int4_tokens_per_forward: float | None = None
    untrained_tokens_per_forward: float | None = None
    lost: float | None = None


def export_head(
    trained: Path, out: Path, decoder: TextDecoder, responses: Iterable[Response], *, limit: int, most_bytes: int
) -> Exported:
    """Write `trained` in int4 to `out`, and decode `limit` prompts with both. Raises TrainingError if it is too large."""
    head = load_head(trained)
    if head.identity is None:
        raise TrainingError(f"{trained} does not say which target it belongs to: train it anew")
    size = save_head(head, out, head.identity, storage="int4")
    if size > most_bytes:
        raise TrainingError(
            f"the head takes {size / 1e6:.2f} MB, more than {most_bytes / 1e6:.2f}: train a smaller one, or raise --most-mb"
        )
    asked = list(islice(responses, limit))
    if not asked:
        return Exported(size, 0)
    whole, small, none = (tokens_per_forward(decoder, each, asked) for each in (head, load_head(out), _untrained(head)))
    lost = (whole - small) / (whole - 1) if whole > 1 else 0.0
    return Exported(size, len(asked), round(whole, 4), round(small, 4), round(none, 4), round(lost, 4))


def _untrained(head: Head) -> Head:
    """A head of the same shape with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return new_head(head.config).eval().requires_grad_(False)


def tokens_per_forward(decoder: TextDecoder, head: Head, responses: Iterable[Response]) -> float:
    """Tokens per forward of greedy answers to the responses' prompts, with the head's method and its default options."""
    rounds = []
    for response in responses:
        limit = max(len(answer) for answer in response.answers)
        method = load_method(head.config.kind, head=head)
        request = Request(response.prompt_ids, method, limit, stop=decoder.tokenizer.stop_ids)
        rounds += list(decode(decoder.target, [request]))
    return measure(rounds).tokens_per_forward
