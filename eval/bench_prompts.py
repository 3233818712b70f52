"""Prompts for the decoding benchmark: the agent's own SQL-writing prompts for real questions."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from agent.profiles import Profile
from agent.slots import Slots
from decoding.chat_model import FastChatModel
from decoding.text import TextDecoder
from eval.dataset import Example
from tools.database import open_database
from tools.linking import link
from tools.values import match_values


def sql_prompts(decoder: TextDecoder, profile: Profile, examples: Sequence[Example]) -> list[str]:
    """The `generate` prompt of each example, without a plan, for SQLite."""
    model = FastChatModel(decoder=decoder, raw=profile.raw)
    return [model.prompt(profile.messages("generate", slots)) for slots in _slots(examples)]


def _slots(examples: Sequence[Example]) -> Iterator[Slots]:
    for path, group in groupby(examples, key=lambda example: example.database):
        if path is None:
            continue
        database = open_database(path, engine="sqlite")
        for example in group:
            values = match_values(database, example.question)
            schema = database.schema()
            links = link(schema, example.question, values)[:8]
            yield Slots(schema, database.dialect, example.question, example.evidence, values=values, links=links)
        database.close()
