"""A decoder that is asked with chat messages, in the form of its checkpoint's template or as one raw text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from decoding.serving.model_queue import never
from decoding.serving.text_decoder import Completion, SamplingParams, TextDecoder, TextDelta

_ROLES = {"human": "user", "ai": "assistant", "system": "system"}


class Message(Protocol):
    """type: "human", "ai" or "system"."""

    type: str

    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ChatModel:
    """Messages in, texts out, decoded by a `TextDecoder`.

    `raw` concatenates the messages' texts as they are instead of applying the checkpoint's chat template. With the
    template, a last message of the assistant is the beginning of its answer, and reasoning models answer without a thought.
    Every field of `SamplingParams` may be given per call in `options`; strings to stop at are added to those of `settings`.
    """

    decoder: TextDecoder
    settings: SamplingParams = field(default_factory=SamplingParams)
    raw: bool = False
    cancelled: Callable[[], bool] = never

    @contextmanager
    def reserved(
        self, texts: int, cancelled: Callable[[], bool], waiting: Callable[[int], None] = lambda ahead: None
    ) -> Iterator["ChatModel"]:
        """This model with seats for `texts` texts at once, which end when `cancelled`; see `TextDecoder.reserved`."""
        with self.decoder.reserved(texts, cancelled, waiting) as decoder:
            yield replace(self, decoder=decoder, cancelled=cancelled)

    def prompt(self, messages: Sequence[Message]) -> str:
        """The text that the model is fed."""
        if self.raw:
            return "".join(str(message.text) for message in messages)
        begun = [messages[-1].text] if messages and messages[-1].type == "ai" else []
        asked = messages[: len(messages) - len(begun)]
        chat = [{"role": _ROLES[message.type], "content": message.text} for message in asked]
        return "".join([_thought(self.decoder.tokenizer.chat(chat, enable_thinking=False)), *begun])

    def stream(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Iterator[TextDelta | Completion]:
        """One text, as it comes and at the end as a whole."""
        return self.decoder.stream(self.prompt(messages), [self._settings(options)], self.cancelled)

    def complete(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Completion:
        """One text."""
        return self.samples(messages, options, 1)[0]

    def samples(self, messages: Sequence[Message], options: Mapping[str, Any], count: int) -> list[Completion]:
        """Several texts, decoded together: of more than one the first is greedy, and the others have derived seeds."""
        settings = self._settings(options)
        seeds = (settings.sampler.derive("sample", index).seed for index in range(1, count))
        others = [replace(settings, seed=seed) for seed in seeds]
        first = replace(settings, temperature=0.0) if others else settings
        return self.decoder.samples(self.prompt(messages), [first, *others], self.cancelled)

    def _settings(self, options: Mapping[str, Any]) -> SamplingParams:
        return replace(self.settings, **{**options, "stop": (*self.settings.stop, *options.get("stop", ()))})


def _thought(prompt: str) -> str:
    """The prompt with an empty thought where its template has opened one and knows no `enable_thinking`."""
    return f"{prompt.rstrip()}\n\n</think>\n\n" if prompt.rstrip().endswith("<think>") else prompt
