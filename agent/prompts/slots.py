"""The slots that a prompt is made from, and one schema in several orders.

The slots that a prompt is made from, the same for both profiles and for training data. Any slot may be empty.

One schema in several orders. A model's mistakes depend on the order in which tables and columns are shown to it.
"""

import random
import re
from dataclasses import dataclass, replace

from tools.linking.link_schema import Link
from tools.linking.match_values import ValueMatch
from tools.schema import Schema, Table


@dataclass(frozen=True, slots=True)
class Try:
    """A statement that was tried for this question, and what was wrong with it, in one line."""

    sql: str
    trouble: str


@dataclass(frozen=True, slots=True)
class Slots:
    schema: Schema  # what the prompt shows: the whole schema while it is small
    dialect: str
    question: str
    evidence: str = ""  # what the asker says about the data's meaning (BIRD's evidence)
    knowledge: tuple[str, ...] = ()  # terms, rules and examples kept for this database that the question is about
    examples: tuple[tuple[str, str], ...] = ()  # (question, SQL) pairs kept for this database, the most similar first
    history: tuple[tuple[str, str], ...] = ()  # earlier (question, SQL) pairs of the conversation, oldest first
    values: tuple[ValueMatch, ...] = ()
    links: tuple[Link, ...] = ()
    joins: tuple[str, ...] = ()  # join conditions between the likeliest tables
    plan: str = ""
    tries: tuple[Try, ...] = ()
    as_json: bool = False  # whether a plan is asked for as JSON, in a form that the endpoint is told


def example_text(question: str, sql: str) -> str:
    """An example as an item of `Slots.knowledge`."""
    return f"{question} => {sql}"


# Control characters, lone surrogates, and characters that reorder or hide text: bidi marks and invisible tags.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
# Markers, besides <|...|>, that tokenizers read as the beginning or end of a turn, a file or a tool's answer.
_MARKERS = re.compile(
    r"<(?=｜|<SYS>>|<?/SYS>>|/?(?:s|bos|eos|pad|unk|(?:start|end)_of_\w+|repo_?name|file_sep|filename|gh_stars|issue_\w+|"
    r"jupyter_\w+|empty_output|fim_\w+|think|tool_\w+)>)|\[(?=/?(?:INST|SYSTEM_PROMPT|TOOL_\w+|AVAILABLE_TOOLS)\])"
)


NAME_CHARACTERS = 80  # of a name in a prompt, and so in what the model may write


def one_line(text: str, limit: int = 400) -> str:
    """Text from a person or a database, sanitised for a prompt: one line of bounded length, without control tokens.

    >>> one_line("two\\nlines  and <|im_end|>")
    'two lines and < |im_end| >'
    >>> one_line("a long text", limit=6)
    'a lon…'
    """
    flat = unmarked(" ".join(_UNSEEN.sub(" ", text).split())).replace("|>", "| >")
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def unmarked(text: str) -> str:
    """Text without anything that a tokenizer reads as a marker."""
    return _MARKERS.sub(lambda found: f"{found[0]} ", text.replace("<|", "< |"))


def in_order(schema: Schema, number: int) -> Schema:
    """The schema in its own order (0), with the tables reversed (1), or with tables and columns shuffled, always alike for a
    number. Keys keep their places.

    >>> from tools.schema import Column
    >>> schema = Schema((Table("a", (Column("x", "int"),)), Table("b", (Column("y", "int"),))), "sqlite")
    >>> [table.name for table in in_order(schema, 1).tables]
    ['b', 'a']
    """
    if number < 2:
        return schema if number == 0 else replace(schema, tables=schema.tables[::-1])
    draw = random.Random(number)
    tables = list(schema.tables)
    draw.shuffle(tables)
    return replace(schema, tables=tuple(_shuffled(table, draw) for table in tables))


def _shuffled(table: Table, draw: random.Random) -> Table:
    referring = {name for key in table.foreign_keys for name in key.columns}
    moving = [column for column in table.columns if not column.primary_key and column.name not in referring]
    order = iter(draw.sample(moving, len(moving)))
    kept = {id(column) for column in table.columns} - {id(column) for column in moving}
    return replace(table, columns=tuple(each if id(each) in kept else next(order) for each in table.columns))
