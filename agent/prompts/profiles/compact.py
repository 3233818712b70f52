"""The compact profile: the prompts on which the embedded model is trained. Every byte matters, because this file also
writes the training data.

The schema comes first, so that all questions, steps and users of a database share its KV. Every slot is always present.
A change of any byte needs a new PROMPT_VERSION and a retrained model; `tests/agent/prompts/test_profiles.py` holds hashes
of the prompts.
"""

from collections.abc import Iterable

from langchain_core.messages import BaseMessage, HumanMessage

from agent.prompts.profiles.profile import ModelStep
from agent.prompts.slots import Slots, one_line
from tools.schema import ForeignKey, Schema, Table

PROMPT_VERSION = 1
NONE = "-"
HISTORY_TURNS = 2
# The four best links that score 0.8 or more are 2.2 columns per question, 61 % of them in the gold SQL (700 Spider training
# questions); eight links of any score took 35 tokens, more than question and SQL.
HINT_SCORE = 0.8
MOST_HINTS = 4


class Compact:
    """One line per slot; the model answers with one line."""

    name = "compact"
    raw = True

    def messages(self, step: ModelStep, slots: Slots) -> list[BaseMessage]:
        return [HumanMessage(self.text(step, slots))]

    def text(self, step: ModelStep, slots: Slots) -> str:
        """The whole prompt of a step."""
        prompt = schema_text(slots.schema) + _question_text(slots) + "plan:"
        if step == "plan":
            return prompt
        prompt += f" {one_line(slots.plan, 800) or NONE}\nsql:"
        for attempt in slots.tries:
            prompt += f" {one_line(attempt.sql, 1200)}\nerror: {one_line(attempt.trouble)}\nsql:"
        return prompt

    def max_new_tokens(self, step: ModelStep) -> int:
        return 96 if step == "plan" else 160

    def stop(self, step: ModelStep) -> tuple[str, ...]:
        return ("\n",)

    def read_plan(self, text: str) -> str:
        return text.strip()

    def read_sql(self, text: str) -> str:
        return text.strip().rstrip(";").strip()


def schema_text(schema: Schema) -> str:
    """`table(column, column)` lines with starred primary keys, then one `join` line per foreign key, written as in SQL."""
    tables = "".join(f"{_name(table.name)}({', '.join(_columns(table))})\n" for table in schema.tables)
    joins = "".join(f"join {_join(table, key)}\n" for table in schema.tables for key in table.foreign_keys)
    return tables + joins


def _columns(table: Table) -> Iterable[str]:
    return (_name(column.name) + "*" * column.primary_key for column in table.columns)


def _join(table: Table, key: ForeignKey) -> str:
    pairs = zip(key.columns, key.ref_columns, strict=True)
    here, there = _name(table.name), _name(key.ref_table)
    return " and ".join(f"{here}.{_name(a)} = {there}.{_name(b)}" for a, b in pairs)


def _question_text(slots: Slots) -> str:
    turns = slots.history[-HISTORY_TURNS:]
    values = [f"{_name(v.table)}.{_name(v.column)} = {_literal(v.value)}" for v in slots.values]
    likely = [link for link in slots.links if link.column and link.score >= HINT_SCORE][:MOST_HINTS]
    hints = [f"{_name(link.table)}.{_name(link.column or '')}" for link in likely]
    lines = {
        "dialect": slots.dialect,
        "history": " | ".join(f"{one_line(q)} => {one_line(sql, 800)}" for q, sql in turns),
        "knowledge": " | ".join(one_line(item) for item in slots.knowledge),
        "values": ", ".join(values),
        "hint": ", ".join(hints),
        "evidence": one_line(slots.evidence, 800),
        "question": one_line(slots.question, 800),
    }
    return "".join(f"{slot}: {text or NONE}\n" for slot, text in lines.items())


def _name(name: str) -> str:
    """An identifier as SQL writes it: quoted if necessary."""
    return name if name.isidentifier() and name.isascii() else '"' + one_line(name, 80).replace('"', '""') + '"'


def _literal(value: str) -> str:
    return "'" + one_line(value, 80).replace("'", "''") + "'"
