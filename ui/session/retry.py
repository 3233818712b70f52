"""What of the page's turns the agent is to remember, and what another try at one of them should do differently."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.conversation.conversation import Again, Conversation
from agent.follow_ups.follow_up import without_reset
from agent.graph.readings import entity_of
from agent.state import Reading
from ui.session.conversation_view import TurnView

REMEMBERED_TURNS = 6


@dataclass(frozen=True, slots=True)
class Retry:
    """Another try at a question. `before`: the turns that it may lean on. `sampled`: both readings were tried already."""

    before: Sequence[TurnView]
    again: Again
    sampled: bool


def remember(conversation: Conversation, turns: Sequence[TurnView]) -> None:
    """Tell a conversation that begins what was asked before."""
    for number, turn in remembered(turns):
        answer = turn.answer or {}
        conversation.remember(turn.question, turn.sql, number, entity_of(answer.get("rows", ()), turn.row_count))


def remembered(turns: Sequence[TurnView]) -> list[tuple[int, TurnView]]:
    """The newest answered turns since the person last started over, each with its number in the conversation, from 1."""
    starts = [place for place, turn in enumerate(turns) if without_reset(turn.question) is not None]
    since = starts[-1] if starts else 0
    answered = [(place + 1, turn) for place, turn in enumerate(turns) if place >= since and _is_answered(turn)]
    return answered[-REMEMBERED_TURNS:]


def retry_of(turns: Sequence[TurnView], place: int) -> Retry:
    """Try the turn at `place` again: in the other reading first, by sampling once both were seen; never with the same SQL."""
    asked = turns[place]
    tries = [turn for turn in turns if (turn.question, turn.evidence) == (asked.question, asked.evidence)]
    before = [turn for turn in turns[:place] if not any(turn is each for each in tries)]
    readings = {_reading(turn) for turn in tries}
    left: list[Reading] = [each for each in ("standalone", "follow_up") if each not in readings]
    other = left[0] if left and remembered(before) else None
    refused = tuple(dict.fromkeys(turn.sql for turn in tries if turn.sql))
    return Retry(before, Again(other or _reading(tries[0]), refused), sampled=other is None)


def _reading(turn: TurnView) -> Reading:
    return "follow_up" if turn.answer and turn.answer.get("continues") else "standalone"


def _is_answered(turn: TurnView) -> bool:
    return turn.answer is not None and turn.answer["error"] is None and bool(turn.sql)
