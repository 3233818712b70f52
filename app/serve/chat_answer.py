"""A completion's JSON as OpenAI's clients read it, whole or in pieces."""

import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from decoding.engine.records.metrics import measure

if TYPE_CHECKING:
    from decoding.serving.given_text import TokenScore
    from decoding.serving.text_decoder import Generation, Piece


class ChatAnswer:
    """One completion, with a text for each choice."""

    def __init__(self, model: str) -> None:
        self._head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def whole(
        self, done: Sequence["Generation"], scores: Sequence[Sequence["TokenScore"]] | None = None
    ) -> dict[str, Any]:
        """`scores`: of each choice's tokens, where they were asked for."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": each.text, "refusal": None},
                "finish_reason": _finish(each),
                "logprobs": {"content": list(map(_log_prob, scores[index])), "refusal": None} if scores else None,
            }
            for index, each in enumerate(done)
        ]
        return self._head | {"object": "chat.completion", "choices": choices, "usage": usage(done)}

    async def events(
        self,
        first: "Piece | Generation",
        rest: AsyncGenerator["Piece | Generation", None],
        choices: int,
        include_usage: bool,
    ) -> AsyncIterator[str]:
        """Server-sent events: the roles, the texts as they come, why they ended, and the usage where that was asked for."""
        from decoding.serving.text_decoder import Generation

        for index in range(choices):
            yield self._event(index, {"role": "assistant", "content": ""})
        done: list[Generation] = []
        try:
            piece: Piece | Generation | None = first
            while piece is not None:
                if isinstance(piece, Generation):
                    done.append(piece)
                    yield self._event(_index(piece), {}, _finish(piece))
                elif piece.text:
                    yield self._event(piece.sequence, {"content": piece.text})
                piece = await anext(rest, None)
        finally:
            await rest.aclose()
        if include_usage:
            yield self._line({"choices": [], "usage": usage(done)})
        yield "data: [DONE]\n\n"

    def _event(self, index: int, delta: dict[str, str], finish: str | None = None) -> str:
        return self._line({"choices": [{"index": index, "delta": delta, "finish_reason": finish}]})

    def _line(self, body: dict[str, Any]) -> str:
        chunk = self._head | {"object": "chat.completion.chunk"} | body
        return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


def _index(done: "Generation") -> int:
    return done.rounds[0].sequence if done.rounds else 0


def _finish(done: "Generation") -> str:
    return "length" if done.finish == "length" else "stop"


def _log_prob(score: "TokenScore") -> dict[str, Any]:
    return _token(score.text, score.log_prob) | {"top_logprobs": [_token(*each) for each in score.alternatives]}


def _token(text: str, log_prob: float) -> dict[str, Any]:
    return {"token": text, "logprob": round(log_prob, 6), "bytes": list(text.encode())}


def usage(done: Sequence["Generation"]) -> dict[str, Any]:
    """OpenAI's counts, over all choices, and how few forwards they took. The prompt counts once."""
    prompt, cached = done[0].prompt_tokens, done[0].cached_tokens
    new, totals = sum(len(each.tokens) for each in done), measure(r for each in done for r in each.rounds)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
        "target_forwards": totals.target_forwards,
        "plain_forwards": totals.plain_forwards,
        "drafted_tokens": totals.drafted_tokens,
        "accepted_tokens": totals.accepted_tokens,
        "tokens_per_forward": round(totals.tokens_per_forward, 3),
        "fewer_forwards": round(totals.fewer_forwards, 3),
    }
