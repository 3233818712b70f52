"""Turns answers that got a thumbs-up into examples in a knowledge folder."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agent.observe.events import Answered, Asked, Event, Judged
from agent.prompts.knowledge import EXAMPLES, examples


def liked(events: Iterable[Event]) -> Iterator[tuple[str, str]]:
    """The question and SQL of a conversation's first turn, if the last judgement of its answer was a thumbs-up. Later turns
    depend on what was said before, so they are no examples by themselves.
    """
    question = sql = ""
    turn, approved = -1, False
    for event in events:
        turn += isinstance(event, Asked)
        if isinstance(event, Asked) and turn == 0:
            question = event.question
        elif isinstance(event, Answered) and turn == 0 and event.answer["error"] is None:
            sql = event.answer["sql"] or ""
        elif isinstance(event, Judged) and event.turn == 0:
            approved = event.liked is True
    if approved and sql:
        yield question, sql


def learn(folder: Path, conversations: Iterable[Sequence[Event]]) -> list[str]:
    """Append the liked pairs whose questions the folder's examples lack; returns these questions.
    Raises KnowledgeError.
    """
    return add_examples(folder, (pair for events in conversations for pair in liked(events)))


def add_examples(folder: Path, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Append pairs of question and SQL whose questions the folder's examples lack; returns these questions.
    Raises KnowledgeError, OSError.
    """
    known = {question.casefold() for question, _ in examples(folder)}
    learnt: list[str] = []
    with (folder / EXAMPLES).open("a", encoding="utf-8") as file:
        for question, sql in pairs:
            heading = " ".join(question.split())
            if heading.casefold() not in known and "```" not in sql:
                file.write(f"\n## {heading}\n\n```sql\n{sql}\n```\n")
                known.add(heading.casefold())
                learnt.append(heading)
    return learnt
