"""What a prompt is made from: slots, the interface of a profile, and the plan's format.

The slots are the same for both profiles and for training data. Any slot may be empty. A schema may be written in several
orders, because a model's mistakes depend on the order in which tables and columns are shown to it.

A plan reads `singer: country, age; concert: year | SELECT COUNT(*) FROM _ WHERE _ = _ GROUP BY _`. A table without columns is
only named (`singer; concert: year`). Names are written as in the prompt's schema: in double quotes where necessary. This module
only converts text; it does not decide what a plan should say.
"""

import random
import re
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from langchain_core.messages import BaseMessage

from tools.linking.link_schema import Link
from tools.linking.match_values import ValueMatch
from tools.schema import Schema, Table


@dataclass(frozen=True, slots=True)
class Try:
    """A statement that was tried for this question, and what was wrong with it, in one line. runs: it may as well be right."""

    sql: str
    trouble: str
    runs: bool = False


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


ModelStep = Literal["plan", "generate", "refine"]
Ending = Literal["line", "fence"]


@dataclass(frozen=True, slots=True)
class Form:
    """How an answer may be written. ending: what ends it besides a stop token; before a fence it may have several lines. long:
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


_NAME = r'"(?:[^"]|"")*"|[^\s":;,|]+'
_NAME_AND_SIGN = re.compile(rf"\s*({_NAME})\s*([:;,|]?)")
BAR = "|"


class PlanError(ValueError):
    """The text is not a plan; the one-line message says where it is wrong."""


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table, and those of its columns that the SQL needs other than for joins."""

    name: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan. `skeleton` is the SQL with `_` for every name and literal, and without join conditions.

    A table with two columns, and one that is only joined:

    >>> tables = (PlannedTable("singer", ("country", "home town")), PlannedTable("concert"))
    >>> Plan(tables, "SELECT COUNT(*) FROM _ WHERE _ = _").text()
    'singer: country, "home town"; concert | SELECT COUNT(*) FROM _ WHERE _ = _'
    """

    tables: tuple[PlannedTable, ...]
    skeleton: str

    def text(self) -> str:
        """The plan as the model writes it: no newline, no outer spaces."""
        return f"{'; '.join(_table_text(table) for table in self.tables)} {BAR} {self.skeleton}".strip()


def parse_plan(text: str) -> Plan:
    """Parse one line, the inverse of `Plan.text`. Raises PlanError.

    A name with a space is in double quotes; a line without a bar is not a plan:

    >>> plan = parse_plan('singer: country, "home town"; concert | SELECT COUNT(*) FROM _ WHERE _ = _')
    >>> [(table.name, table.columns) for table in plan.tables], plan.skeleton
    ([('singer', ('country', 'home town')), ('concert', ())], 'SELECT COUNT(*) FROM _ WHERE _ = _')
    >>> parse_plan("singer: country")
    Traceback (most recent call last):
        ...
    agent.prompts.slots.PlanError: no '|' between the tables and the skeleton: singer: country
    """
    tables: list[PlannedTable] = []
    names: list[str] = []
    place, sign = 0, ""
    while sign != BAR and (match := _NAME_AND_SIGN.match(text, place)) is not None:
        sign, place = match[2], match.end()
        if (sign == ":") != (not names) and sign in (":", ","):
            raise PlanError(f"{sign!r} is misplaced: {text[:place][-80:]}")
        names.append(_unquoted(match[1]))
        if sign in (";", BAR):
            tables.append(PlannedTable(names[0], tuple(names[1:])))
            names = []
    if sign != BAR:
        raise PlanError(f"no {BAR!r} between the tables and the skeleton: {text[:80]}")
    return Plan(tuple(tables), text[place:].strip())


def quoted_name(name: str) -> str:
    """A name as the compact prompt writes it: quoted unless it is a plain identifier.

    >>> quoted_name("country"), quoted_name("home town")
    ('country', '"home town"')
    """
    if name.isidentifier() and name.isascii():
        return name
    return '"' + one_line(name, NAME_CHARACTERS).replace('"', '""') + '"'


def _unquoted(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text


def _table_text(table: PlannedTable) -> str:
    columns = ", ".join(map(quoted_name, table.columns))
    return quoted_name(table.name) + (f": {columns}" if columns else "")
