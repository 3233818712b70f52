"""What a prompt is made of. The same slots for both profiles and for training data; every slot may be empty."""

from dataclasses import dataclass

from tools.linking import Link
from tools.schema import Schema
from tools.values import ValueMatch


@dataclass(frozen=True, slots=True)
class Try:
    """An SQL that was tried in this question, and the trouble with it in one line."""

    sql: str
    trouble: str


@dataclass(frozen=True, slots=True)
class Slots:
    schema: Schema  # what the prompt shows: the whole schema while it is small
    dialect: str
    question: str
    evidence: str = ""  # what the asker says about the data's meaning (BIRD's evidence)
    knowledge: tuple[str, ...] = ()  # terms and rules kept for this database
    history: tuple[tuple[str, str], ...] = ()  # earlier (question, SQL) pairs of the conversation, oldest first
    values: tuple[ValueMatch, ...] = ()
    links: tuple[Link, ...] = ()
    joins: tuple[str, ...] = ()  # join conditions between the likeliest tables
    plan: str = ""
    tries: tuple[Try, ...] = ()


def one_line(text: str, limit: int = 400) -> str:
    """Text from a person or a database, made harmless for a prompt: one line, bounded, without control tokens."""
    flat = " ".join(text.split()).replace("<|", "< |").replace("|>", "| >")
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
