"""The compact profile: the prompts on which the embedded model is trained. Every byte matters, because this file also
writes the training data.

The weights name the version of the prompts that they know (`prompt_version` in their adapter). A change of any byte needs a
new version and a retrained model; `tests/agent/prompts/test_profiles.py` holds hashes of the prompts.
"""

from langchain_core.messages import BaseMessage, HumanMessage

from agent.prompts.profile import Form, ModelStep
from agent.prompts.profiles.compact_text import question_text, schema_text
from agent.prompts.slots import Slots, one_line

LONG_SQL = 80
"""Words, signs and literals, about 120 of the 160 tokens; of 7,000 training queries of Spider 19 have more."""

PROMPT_VERSION = 2  # raised with a change of any byte; weights name it, and those of another version are refused


class Compact:
    """One line per slot; the model answers with one line."""

    name = "compact"
    raw = True
    shows_choices = True

    def messages(self, step: ModelStep, slots: Slots) -> list[BaseMessage]:
        return [HumanMessage(self.text(step, slots))]

    def prefix(self, slots: Slots) -> str:
        """The part of the prompt before the slots of the question: the same for all questions on a schema."""
        return schema_text(slots.schema)

    def text(self, step: ModelStep, slots: Slots) -> str:
        """The whole prompt of a step."""
        prompt = self.prefix(slots) + question_text(slots) + "plan:"
        if step == "plan":
            return prompt
        prompt += f" {one_line(slots.plan, 800) or '-'}\nsql:"
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
