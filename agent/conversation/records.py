"""Prepares a question's events to be shown and stored: adds the text of token ids, and limits the rows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from agent.conversation.conversation import Again, Conversation
from agent.conversation.json_values import plain_rows
from agent.observe.events import Answered, Event, Wrote
from decoding.engine.records.rounds import Round
from decoding.serving.chat_model import FastChatModel
from decoding.tokenizer.tokenizer import Tokenizer


def records(
    conversation: Conversation, question: str, evidence: str = "", shown: int = 1000, again: Again | None = None
) -> Iterator[Event]:
    """Ask the question and yield its events. `shown`: most rows that an `Answered` carries. Raises Stopped."""
    model = conversation.toolbox.model
    tokenizer = model.decoder.tokenizer if isinstance(model, FastChatModel) else None
    for event in conversation.events(question, evidence, again):
        if isinstance(event, Wrote) and tokenizer:
            yield replace(event, spelling=spell(tokenizer, event.rounds))
        elif isinstance(event, Answered):
            yield replace(event, answer=event.answer | _plain(event.answer, shown))
        else:
            yield event


def _plain(answer: Mapping[str, Any], most: int) -> dict[str, Any]:
    """The rows of an answer, its own and those shown, as JSON can hold them."""
    seen = answer["shown"]
    cut = seen and seen | {"rows": plain_rows(seen["rows"][:most])}
    return {"rows": plain_rows(answer["rows"][:most]), "shown": cut}


def spell(tokenizer: Tokenizer, rounds: Iterable[Round]) -> dict[int, str]:
    """Maps every token id in `rounds` to its text; ids beyond the vocabulary are mask tokens."""
    ids = {token for r in rounds for token in (*r.draft_tokens, *r.text_tokens)}
    return {token: tokenizer.decode([token]) if token < tokenizer.size else "<mask>" for token in sorted(ids)}
