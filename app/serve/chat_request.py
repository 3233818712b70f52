"""A chat completion as OpenAI's clients ask for it, as far as one text can be had from one model."""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field, ValidationError

if TYPE_CHECKING:
    from starlette.requests import Request

    from decoding.serving.text_decoder import Settings

DEFAULT_MAX_TOKENS = 512


class BadRequest(Exception):
    """What cannot be served, in one line; `status` is HTTP's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: str | list[TextPart]  # newer clients send a list of parts; only those of text can be read

    def model_post_init(self, context: object) -> None:
        """The parts become one text."""
        if not isinstance(self.content, str):
            self.content = "".join(part.text for part in self.content)


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    """Fields that are not here are ignored, but for those that would change the text: they are refused."""

    model: str
    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    tools: list[object] | None = Field(None, max_length=0)
    response_format: dict[Literal["type"], Literal["text"]] | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def settings(self, defaults: "Settings", seed: int) -> "Settings":
        """How to decode it; `seed` where the request has none of its own."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return replace(
            defaults,
            max_new_tokens=self.max_completion_tokens or self.max_tokens or DEFAULT_MAX_TOKENS,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            seed=seed if self.seed is None else self.seed % 2**63,
            stop=tuple(stop),
        )


async def read_request(request: "Request", served: str) -> ChatRequest:
    """The body, checked. Raises BadRequest."""
    try:
        asked = ChatRequest.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadRequest(f"{where}: {first['msg']}" if where else first["msg"]) from error
    if asked.model != served:
        raise BadRequest(f"there is no model {asked.model!r} here, only {served!r}", 404)
    return asked
