"""Version 1 of the compact prompts: names and keys of the schema; every slot of the question, filled or not."""

from collections.abc import Iterable

from agent.prompts.slots import Slots, one_line
from tools.schema import ForeignKey, Schema, Table

NONE = "-"
HISTORY_TURNS = 2
LINKS = 8  # best links of a question, from which hints are chosen
# The four best links that score 0.8 or more are 2.2 columns per question, 61 % of them in the gold SQL (700 Spider training
# questions); eight links of any score took 35 tokens, more than question and SQL.
HINT_SCORE = 0.8
MOST_HINTS = 4


def schema_text(schema: Schema) -> str:
    """`table(column, column)` lines with starred primary keys, then one `join` line per foreign key, written as in SQL."""
    tables = "".join(f"{name(table.name)}({', '.join(_columns(table))})\n" for table in schema.tables)
    return tables + "".join(join_line(table, key) for table in schema.tables for key in table.foreign_keys)


def _columns(table: Table) -> Iterable[str]:
    return (name(column.name) + "*" * column.primary_key for column in table.columns)


def join_line(table: Table, key: ForeignKey) -> str:
    """A foreign key as a line."""
    pairs = zip(key.columns, key.ref_columns, strict=True)
    here, there = name(table.name), name(key.ref_table)
    return "join " + " and ".join(f"{here}.{name(a)} = {there}.{name(b)}" for a, b in pairs) + "\n"


def question_text(slots: Slots) -> str:
    """All slots but the schema, one per line."""
    values = [f"{name(v.table)}.{name(v.column)} = {literal(v.value)}" for v in slots.values]
    likely = [link for link in slots.links[:LINKS] if link.column and link.score >= HINT_SCORE][:MOST_HINTS]
    hints = [f"{name(link.table)}.{name(link.column or '')}" for link in likely]
    lines = slot_lines(slots, ", ".join(values), ", ".join(hints))
    return "".join(f"{slot}: {text or NONE}\n" for slot, text in lines.items())


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


def name(text: str) -> str:
    """An identifier as SQL writes it: quoted if necessary."""
    return text if text.isidentifier() and text.isascii() else '"' + one_line(text, 80).replace('"', '""') + '"'


def literal(value: str) -> str:
    """A text as SQL writes it."""
    return "'" + one_line(value, 80).replace("'", "''") + "'"
