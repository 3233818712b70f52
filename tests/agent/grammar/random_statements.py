"""Random statements, lexeme by lexeme from the grammar's own positions: short ones that use every corner of it."""

import random

from agent.grammar.machine import Position, beginning
from agent.grammar.scope import catalog_of
from tools.schema import Schema

_CLOSING = (")", "from", "then", "end", "as", "and", "1", "'a'")


def random_statement(schema: Schema, dialect: str, seed: int, length: int = 120) -> str | None:
    """A complete statement, or None where `length` lexemes did not do. Fails where a position leads nowhere."""
    dice, position, words = random.Random(seed), beginning(catalog_of(schema, dialect)), list[str]()
    while not position.complete or (len(words) < length and dice.random() < 0.6):
        offered = list(choices(position, dice))
        if not offered:
            break
        if len(words) > length:
            return None
        closing = [choice for choice in offered if choice[1].lower() in _CLOSING]
        hurry = dice.random() < min(0.9, len(words) / 60)
        kind, text = dice.choice(closing if closing and hurry else offered)
        after = position.after(kind, text.lower())
        if after is None:  # a new name that is taken
            continue
        position = after
        words.append(text)
    return " ".join(words)


def choices(position: Position, dice: random.Random, without: str = ";") -> list[tuple[str, str]]:
    """`offers`, of which there must be some."""
    found = offers(position, dice, without)
    assert found or position.complete, "a position that leads nowhere"
    return found


def offers(position: Position, dice: random.Random, without: str = ";") -> list[tuple[str, str]]:
    """One choice per keyword and mark, a few per set of names; none at a dead end."""
    frontier = position.frontier
    found = [("word" if text[0].isalpha() else "operator", text) for text in frontier.fixed if text != without]
    for _, words, _ in frontier.names:
        spelled = [written for _, written in words.words.values()]
        found += [(_kind(text), text) for text in dice.sample(spelled, min(4, len(spelled)))]
    found += [("word", f"x{dice.randrange(100)}") for _ in frontier.fresh[:1]]
    return found + [("number", "1")] * bool(frontier.numbers) + [("string", "'a'")] * bool(frontier.strings)


def _kind(text: str) -> str:
    return "quoted" if text[0] in '"`[' else "number" if text[0].isdigit() else "word"
