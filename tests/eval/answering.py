"""A model that answers each question by a function of its words: agent and chats run, only the model's words are given."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from langchain_core.language_models import SimpleChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk

from agent.assemble import LoadedModel, ModelChoice
from agent.context import AgentContext, AgentOptions
from agent.prompts.profiles import load_profile
from tools.databases.database import Database
from tools.result import Limits

Answers = Callable[[str], str]


class Answering(SimpleChatModel):
    """Says "plan", then what `answers` gives for the question; `heard` gets every prompt."""

    answers: Answers
    heard: Callable[[str], None]

    @property
    def _llm_type(self) -> str:
        return "answering"

    def _call(self, messages: list[BaseMessage], *args: Any, **kw: Any) -> str:
        prompt = str(messages[-1].content)
        self.heard(prompt)
        return "plan" if prompt.endswith("plan:") else self.answers(re.findall(r"^question: (.*)$", prompt, re.M)[-1])

    def _stream(self, messages: list[BaseMessage], *args: Any, **kw: Any) -> Iterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(self._call(messages)))


class AnsweringModel(LoadedModel):
    """A loaded model of which nothing is loaded. `prompts` are those of all its toolboxes, `seeds` the seeds they had then."""

    answers: Answers
    prompts: list[str]
    seeds: list[int]

    def __init__(self, answers: Answers) -> None:
        super().__init__(ModelChoice(), None, None)  # type: ignore[arg-type]
        for name, value in (("answers", answers), ("prompts", []), ("seeds", [])):
            object.__setattr__(self, name, value)

    def toolbox(
        self, database: Database, options: AgentOptions | None = None, limits: Limits | None = None
    ) -> AgentContext:
        def heard(prompt: str) -> None:
            self.prompts.append(prompt)
            self.seeds.append(toolbox.options.seed)

        model = Answering(answers=self.answers, heard=heard)
        toolbox = AgentContext(database, model, load_profile("compact"), options or AgentOptions(), limits or Limits())
        return toolbox

    def histories(self) -> list[str]:
        """The history line of every prompt for a plan."""
        return [prompt.split("\nhistory: ")[1].split("\n")[0] for prompt in self.prompts if prompt.endswith("plan:")]
