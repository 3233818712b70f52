"""The interface of a prompt profile."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from langchain_core.messages import BaseMessage

from agent.prompts.slots import Slots

ModelStep = Literal["plan", "generate", "refine"]
Ending = Literal["line", "fence"]


@dataclass(frozen=True, slots=True)
class Form:
    """How an answer may be written. ending: what ends it beside a stop token; before a fence it may have several lines. long:
    words, signs and literals after which it comes to its end as soon as it can; None: it may go on.
    """

    ending: Ending
    long: int | None = None


class Profile(Protocol):
    """Each step's prompt begins with the whole prompt and answer of the step before, so that their KV is reused."""

    name: str
    raw: bool  # the messages' texts are the prompt as they stand; no chat template
    shows_choices: bool  # the values of columns that have few (`Column.choices`) are looked up and shown

    def messages(self, step: ModelStep, slots: Slots) -> list[BaseMessage]:
        """The messages that put the step to the model."""
        ...

    def dialect(self, database: str) -> str:
        """The dialect in which the model writes for a database of that dialect: its own, or "sqlite" for every one."""
        ...

    def lead(self, step: ModelStep) -> str:
        """The text right before a local model's answer: the end of a raw prompt, otherwise the answer's given beginning."""
        ...

    def form(self, step: ModelStep) -> Form: ...

    def max_new_tokens(self, step: ModelStep) -> int: ...

    def stop(self, step: ModelStep) -> tuple[str, ...]:
        """Strings that end the model's answer."""
        ...

    def response_format(self, step: ModelStep, slots: Slots) -> dict[str, Any] | None:
        """The form in which an endpoint's model is to answer, as OpenAI's API takes it; None where it answers freely."""
        ...

    def read_plan(self, text: str) -> str: ...

    def read_sql(self, text: str) -> str:
        """The SQL in the model's answer; empty if there is none."""
        ...


class UnknownProfile(ValueError):
    """There is no such prompt profile; the message lists those there are."""
