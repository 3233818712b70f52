"""The decoder as a langchain-core chat model, which the agent calls: streaming, usage and callbacks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import ConfigDict, InstanceOf

from decoding.engine.rounds import Round
from decoding.serving.model_queue import never
from decoding.serving.text_decoder import Completion, SamplingParams, TextDecoder, TextDelta

_ROLES = {"human": "user", "ai": "assistant", "system": "system"}


class FastChatModel(BaseChatModel):
    """Messages in, one message out (or `n`), decoded by a `TextDecoder`.

    `raw` concatenates the messages' texts as they are instead of applying the checkpoint's chat template. With the
    template, a last message of the assistant is the beginning of its answer, and reasoning models answer without a thought.
    Every field of `SamplingParams` may be given per call (`invoke(messages, temperature=0.7, seed=3)`), and `n=k` for k samples
    decoded together: the greedy text, then others under derived seeds. A message's `response_metadata` carries `rounds` (a
    list of `decoding.engine.rounds.Round`; see `rounds_of`), `finish_reason`, `model_name`, `decoder` and
    `temperature`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    decoder: InstanceOf[TextDecoder]
    settings: InstanceOf[SamplingParams] = SamplingParams()
    raw: bool = False
    cancelled: Callable[[], bool] = never

    @contextmanager
    def reserved(
        self, texts: int, cancelled: Callable[[], bool], waiting: Callable[[int], None] = lambda ahead: None
    ) -> Iterator["FastChatModel"]:
        """This model with seats for `texts` texts at once, which end when `cancelled`; see `TextDecoder.reserved`."""
        with self.decoder.reserved(texts, cancelled, waiting) as decoder:
            yield self.model_copy(update={"decoder": decoder, "cancelled": cancelled})

    @property
    def _llm_type(self) -> str:
        return "sqlagent"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return {"model_name": self.decoder.name, "decoder": self.settings.decoder, "raw": self.raw}

    def prompt(self, messages: Sequence[BaseMessage]) -> str:
        """The text that the model is fed."""
        if self.raw:
            return "".join(str(message.text) for message in messages)
        begun = [messages[-1].text] if messages and messages[-1].type == "ai" else []
        asked = messages[: len(messages) - len(begun)]
        chat = [{"role": _ROLES[message.type], "content": message.text} for message in asked]
        return "".join([_thought(self.decoder.tokenizer.chat(chat, enable_thinking=False)), *begun])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        n: int = 1,
        **changes: Any,
    ) -> ChatResult:
        settings = self._settings(stop, changes)
        samples = [settings] if n == 1 else [self._sample(settings, i) for i in range(n)]
        done = list(self.decoder.stream(self.prompt(messages), samples, self.cancelled))
        generations = sorted((g for g in done if isinstance(g, Completion)), key=_sequence)
        return ChatResult(generations=[self._finished(g, settings) for g in generations])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **changes: Any,
    ) -> Iterator[ChatGenerationChunk]:
        settings = self._settings(stop, changes)
        for piece in self.decoder.stream(self.prompt(messages), [settings], self.cancelled):
            chunk = ChatGenerationChunk(message=self._chunk(piece, settings))
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    def _chunk(self, piece: TextDelta | Completion, settings: SamplingParams) -> AIMessageChunk:
        """A round's text with its record, or at the end an empty chunk with the usage. Their sum equals `_finished`."""
        if isinstance(piece, TextDelta):
            return AIMessageChunk(content=piece.text, response_metadata={"rounds": [piece.round]})
        return AIMessageChunk(
            content="",
            usage_metadata=_usage(piece),
            response_metadata=self._metadata(piece, settings),
            chunk_position="last",
        )

    def _settings(self, stop: list[str] | None, changes: Mapping[str, Any]) -> SamplingParams:
        known = {field.name for field in fields(SamplingParams)}
        settings = replace(self.settings, **{key: value for key, value in changes.items() if key in known})
        return replace(settings, stop=(*settings.stop, *(stop or ())))

    def _sample(self, settings: SamplingParams, index: int) -> SamplingParams:
        if index == 0:
            return replace(settings, temperature=0.0)
        return replace(settings, seed=settings.sampler.derive("sample", index).seed)

    def _finished(self, generation: Completion, settings: SamplingParams) -> ChatGeneration:
        metadata = {"rounds": [*generation.rounds]} | self._metadata(generation, settings)
        message = AIMessage(content=generation.text, usage_metadata=_usage(generation), response_metadata=metadata)
        return ChatGeneration(message=message)

    def _metadata(self, generation: Completion, settings: SamplingParams) -> dict[str, Any]:
        return {
            "finish_reason": generation.finish,
            "model_name": self.decoder.name,
            "decoder": settings.decoder,
            "temperature": settings.temperature,
        }


def _thought(prompt: str) -> str:
    """The prompt with an empty thought where its template has opened one and knows no `enable_thinking`."""
    return f"{prompt.rstrip()}\n\n</think>\n\n" if prompt.rstrip().endswith("<think>") else prompt


def rounds_of(message: BaseMessage) -> tuple[Round, ...]:
    """The decode records of a message made by `FastChatModel`, or of a sum of its chunks; empty for another model's."""
    return tuple(message.response_metadata.get("rounds", ()))


def log_probs_of(message: BaseMessage) -> tuple[float, ...]:
    """The log probability of each token that no constraint forced, of a message made with `likelihood=True`; empty if they
    are not known.
    """
    return tuple(known for r in rounds_of(message) for known in r.log_probs or ())


def log_likelihood(message: BaseMessage) -> float:
    """Log probability of a message that was made with `likelihood=True`; 0 if it is not known."""
    return sum(log_probs_of(message))


def _sequence(generation: Completion) -> int:
    return generation.rounds[0].sequence if generation.rounds else 0


def _usage(generation: Completion) -> UsageMetadata:
    new = len(generation.tokens)
    return UsageMetadata(
        input_tokens=generation.prompt_tokens,
        output_tokens=new,
        total_tokens=generation.prompt_tokens + new,
        input_token_details={"cache_read": generation.cached_tokens},
    )
