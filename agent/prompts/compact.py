"""The text of the compact prompts: types, values, descriptions and keys at the columns; marked values; hints of tables and
columns; empty slots left out.

    singer(singer_id*, name, sex='F'|'M', age#, debut@: date of the first concert)
    concert(concert_id*, singer_id>singer, theme)
    dialect: sqlite
    values: singer.name ~ 'Joe Sharp'
    hint: singer: name, age; concert
    question: how old is joe sharp?
    plan:

The compact profile: the prompts on which the embedded model is trained. Every byte matters, because this file also
writes the training data.

The weights name the version of the prompts that they know (`prompt_version` in their adapter). A change of any byte needs a
new version and a retrained model; `tests/agent/prompts/test_profiles.py` holds hashes of the prompts.
"""

import re
from collections.abc import Sequence

from langchain_core.messages import BaseMessage, HumanMessage

from agent.prompts.slots import Form, ModelStep, Slots, one_line, quoted_name
from tools.linking.link_schema import Link
from tools.linking.match_values import ValueMatch, key_of
from tools.linking.word_forms import STOP_WORDS, keys, name_words, stem
from tools.schema import Column, ForeignKey, Schema, Table
from tools.sql.scope import is_number, type_kind

HISTORY_TURNS = 2
SCHEMA_CHARACTERS = 1800  # about 600 tokens; values and descriptions are not worth a longer prefill
NOTES = (
    ("choices", "comments"),
    ("comments",),
    ("choices",),
    (),
)  # tried in this order until the schema is short enough
COMMENT_CHARACTERS = 40
# Least scores of a hint. Of the links below them less than a third are in the gold plan, of keys below 1.2 a sixth (1,800
# questions on Spider's training databases).
TABLE_SCORE = 1.2
KEY_SCORE = 1.2
COLUMN_SCORE = 0.8
MOST_TABLES = 3
MOST_COLUMNS = 6
MOST_PARTS = 2  # values of which the question may name a part
SURE = 0.9  # a match of another form of the whole value: French, France
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?(?:[ T]\d\d?:.*)?|\d\d?/\d\d?/\d{4}")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_BARE = re.compile(r"-?\d+(?:\.\d+)?|true|false")
_BREAKS = re.compile(r"[(),;:=|>\"'`]")


def schema_text(schema: Schema) -> str:
    """`table(column, column)` lines, with as many notes as the budget allows."""
    for notes in NOTES:
        text = "".join(_table_text(table, notes) for table in schema.tables)
        if len(text) <= SCHEMA_CHARACTERS:
            break
    wide = ((table, key) for table in schema.tables for key in table.foreign_keys if len(key.columns) > 1)
    return text + "".join(join_line(table, key) for table, key in wide)


def _table_text(table: Table, notes: Sequence[str]) -> str:
    return f"{name(table.name)}({', '.join(_column_text(table, column, notes) for column in table.columns)})\n"


def _column_text(table: Table, column: Column, notes: Sequence[str]) -> str:
    """A key with its star and what it refers to; any other column with its type or its values, and its description."""
    text = name(column.name) + "*" * column.primary_key
    referring = [key for key in table.foreign_keys if key.columns == (column.name,)]
    if referring or column.primary_key:
        return text + "".join(f">{_referred(key)}" for key in referring)
    choices = _choices(column) if "choices" in notes else ""
    said = _description(table, column) if "comments" in notes else ""
    return text + (choices or _TYPE_SIGNS[_kind(column)]) + (f": {said}" if said else "")


def _referred(key: ForeignKey) -> str:
    """The table that a column refers to, and the column there if it has another name."""
    same = key.ref_columns == key.columns
    return name(key.ref_table) + ("" if same else f".{name(key.ref_columns[0])}")


_TYPE_SIGNS = {"text": "", "number": "#", "date": "@"}


def _kind(column: Column) -> str:
    """One of "text", "number" and "date"; by the samples where the type is text or says nothing."""
    kind = type_kind(column.type)
    if is_number(kind) or (kind is None and _all(_NUMBER, column.samples)):
        return "number"
    return "date" if kind == "time" or (kind in ("text", None) and _all(_DATE, column.samples)) else "text"


def _all(pattern: re.Pattern[str], values: Sequence[str]) -> bool:
    return bool(values) and all(map(pattern.fullmatch, values))


def _choices(column: Column) -> str:
    """The few values that the column has, as SQL writes them."""
    bare = type_kind(column.type) != "text" and _all(_BARE, column.choices)
    return "=" + "|".join(v if bare else literal(v) for v in column.choices) if column.choices else ""


def _description(table: Table, column: Column) -> str:
    """The first sentence of the column's description that says more than the names, or its beginning."""
    known = {stem(word) for each in (column.name, table.name) for word in name_words(each)} | STOP_WORDS
    parts = (_BREAKS.sub(" ", one_line(part)) for part in re.split(r"[\n.;]", column.comment))
    telling = (" ".join(part.split()) for part in parts if {stem(word) for word in keys(part)} - known)
    flat = re.sub("^(?:the|a|an) ", "", next(telling, ""), flags=re.IGNORECASE)
    words = flat[: COMMENT_CHARACTERS + 1].split(" ")
    if len(flat) > COMMENT_CHARACTERS:
        words.pop()  # it may be cut
        while words and words[-1].casefold() in STOP_WORDS:
            words.pop()
    return " ".join(words)


def slot_lines(slots: Slots, values: str, hint: str) -> dict[str, str]:
    """The text of each slot, empty if it has none."""
    turns = slots.history[-HISTORY_TURNS:]
    return {
        "dialect": slots.dialect,
        "history": " | ".join(f"{one_line(q)} => {one_line(sql, 800)}" for q, sql in turns),
        "knowledge": " | ".join(one_line(item) for item in slots.knowledge),
        "values": values,
        "hint": hint,
        "evidence": one_line(slots.evidence, 800),
        "question": one_line(slots.question, 800),
    }


def question_text(slots: Slots) -> str:
    """The filled slots but the schema, one per line."""
    lines = slot_lines(slots, ", ".join(_values(slots.values)), hints(slots.links, slots.schema))
    return "".join(f"{slot}: {text}\n" for slot, text in lines.items() if text)


def _values(values: Sequence[ValueMatch]) -> list[str]:
    marked = [(mark(value), value) for value in values]
    parts = [value for sign, value in marked if sign == "?"][:MOST_PARTS]
    return [f"{name(v.table)}.{name(v.column)} {s} {literal(v.value)}" for s, v in marked if s != "?" or v in parts]


def mark(match: ValueMatch) -> str:
    """How sure a value is: `=` the question has it, `~` in another spelling or form, `?` a part of it or something similar."""
    if match.phrase == match.value:
        return "="
    same = match.score >= SURE or key_of(keys(match.phrase)) == key_of(keys(match.value))
    return "~" if same else "?"


def hints(links: Sequence[Link], schema: Schema) -> str:
    """The likeliest tables with their likeliest columns, best first, written as in a plan.

    >>> hints([Link("concert", None, 1.5), Link("singer", "age", 1.2), Link("singer", "name", 0.9)], Schema((), "sqlite"))
    'concert; singer: age, name'
    """
    return "; ".join(_hint(table, columns) for table, columns in likely(links, schema).items())


def likely(links: Sequence[Link], schema: Schema) -> dict[str, list[str]]:
    """The likeliest tables with their likeliest columns, each best first. A table is there for its own score or a column's."""
    least = LeastScores(schema)
    found = [link for link in links if link.score >= least.of(link.table, link.column)]
    columns = [link for link in found if link.column][:MOST_COLUMNS]
    tables = [link for link in found if not link.column][:MOST_TABLES]
    shown = dict.fromkeys(link.table for link in found if link in tables or link in columns)
    return {table: [c.column for c in columns if c.column and c.table == table] for table in shown}


class LeastScores:
    """The least score with which a link is a hint. A plan seldom names keys, since it leaves out what is only joined on."""

    def __init__(self, schema: Schema) -> None:
        self._keys = {
            (table.name, name) for table in schema.tables for key in table.foreign_keys for name in key.columns
        }
        self._keys |= {(table.name, c.name) for table in schema.tables for c in table.columns if c.primary_key}

    def of(self, table: str, column: str | None) -> float:
        """Of a table, or of a column of it."""
        if column is None:
            return TABLE_SCORE
        return KEY_SCORE if (table, column) in self._keys else COLUMN_SCORE


def _hint(table: str, columns: Sequence[str]) -> str:
    return name(table) + (f": {', '.join(map(name, columns))}" if columns else "")


def join_line(table: Table, key: ForeignKey) -> str:
    """A foreign key as a line."""
    pairs = zip(key.columns, key.ref_columns, strict=True)
    here, there = name(table.name), name(key.ref_table)
    return "join " + " and ".join(f"{here}.{name(a)} = {there}.{name(b)}" for a, b in pairs) + "\n"


def name(text: str) -> str:
    """An identifier as SQL writes it: quoted if necessary."""
    return quoted_name(text)


def literal(value: str) -> str:
    """A text as SQL writes it."""
    return "'" + one_line(value, 80).replace("'", "''") + "'"


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
        """SQLite's for every engine: the model was trained on it, the grammar knows it, the confidences were fitted on it."""
        return "sqlite"

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
