"""The compact profile: the prompts on which the embedded model is trained. Every byte matters, because this file also
writes the training data.

The weights name the version of the prompts that they know (`prompt_version` in their adapter), and the agent writes that
version. A change of any byte needs a new version and a retrained model; `tests/agent/prompts/test_profiles.py` holds hashes
of the prompts of all versions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from langchain_core.messages import BaseMessage, HumanMessage

from agent.prompts.profiles import compact_v1, compact_v2
from agent.prompts.profiles.profile import Form, ModelStep, UnknownPromptVersion
from agent.prompts.slots import Slots, one_line
from tools.schema import Schema

LONG_SQL = 80
"""Words, signs and literals, about 120 of the 160 tokens; of 7,000 training queries of Spider 19 have more."""

PROMPT_VERSION = 2  # of training data, and for models that name no version


@dataclass(frozen=True, slots=True)
class Wording:
    """How a version writes a prompt. `schema_first`: nothing stands before the schema, so that all questions share its KV."""

    schema: Callable[[Schema], str]
    question: Callable[[Slots], str]
    schema_first: bool = True


VERSIONS: Mapping[int, Wording] = {
    1: Wording(compact_v1.schema_text, compact_v1.question_text),
    2: Wording(compact_v2.schema_text, compact_v2.question_text),
    # An experiment: version 2 with the question before the schema as well as after it.
    3: Wording(compact_v2.schema_text, compact_v2.question_text, schema_first=False),
}


class Compact:
    """One line per slot; the model answers with one line."""

    name = "compact"
    raw = True

    def __init__(self, version: int = PROMPT_VERSION) -> None:
        """Raises UnknownPromptVersion."""
        if version not in VERSIONS:
            known = ", ".join(map(str, VERSIONS))
            raise UnknownPromptVersion(f"no prompts have version {version}; this release writes versions {known}")
        self.version = version
        self._wording = VERSIONS[version]
        self.shows_choices = self._wording.schema is not compact_v1.schema_text

    def messages(self, step: ModelStep, slots: Slots) -> list[BaseMessage]:
        return [HumanMessage(self.text(step, slots))]

    def prefix(self, slots: Slots) -> str:
        """The part of the prompt before the slots of the question: the same for all questions on a schema, if it comes
        first."""
        before = "" if self._wording.schema_first else f"question: {one_line(slots.question, 800)}\n"
        return before + self._wording.schema(slots.schema)

    def text(self, step: ModelStep, slots: Slots) -> str:
        """The whole prompt of a step."""
        prompt = self.prefix(slots) + self._wording.question(slots) + "plan:"
        if step == "plan":
            return prompt
        prompt += f" {one_line(slots.plan, 800) or compact_v1.NONE}\nsql:"
        for attempt in slots.tries:
            prompt += f" {one_line(attempt.sql, 1200)}\nerror: {one_line(attempt.trouble)}\nsql:"
        return prompt

    def dialect(self, database: str) -> str:
        """SQLite's for DuckDB: such statements fail less often, and the confidences were fitted on them."""
        return "sqlite" if database == "duckdb" else database

    def lead(self, step: ModelStep) -> str:
        return "plan: " if step == "plan" else "\nsql: "

    def form(self, step: ModelStep) -> Form:
        return Form("line") if step == "plan" else Form("line", LONG_SQL)

    def max_new_tokens(self, step: ModelStep) -> int:
        return 96 if step == "plan" else 160

    def stop(self, step: ModelStep) -> tuple[str, ...]:
        return ("\n",)

    def response_format(self, step: ModelStep, slots: Slots) -> None:
        return None

    def read_plan(self, text: str) -> str:
        return text.strip()

    def read_sql(self, text: str) -> str:
        return text.strip().rstrip(";").strip()
