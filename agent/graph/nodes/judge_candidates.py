"""Lets the model choose among candidates whose results differ. Where its answer names none of them, the votes decide."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from agent.graph.ask_model import ask_model
from agent.graph.nodes.node_state import slots
from agent.graph.toolbox import Toolbox
from agent.graph.vote import Candidate, differing
from agent.observe.step_record import Step
from agent.prompts.slots import Judged
from agent.state import State
from tools.result import Result

MOST = 5  # candidates that are shown: those with the most votes


def choose(state: State, toolbox: Toolbox, ranked: Sequence[Candidate]) -> tuple[Candidate, tuple[Step, ...]]:
    """The best of the candidates, and the step that chose it; the first and none where there is nothing to choose.

    ranked: best first (`agent.graph.vote.elect`).
    """
    rivals = differing(ranked, toolbox.database.dialect)[:MOST]
    if not toolbox.options.judge or len(rivals) < 2:
        return ranked[0], ()
    shown = tuple(_judged(each, toolbox.options.preview_rows) for each in rivals)
    reply = ask_model(toolbox, "judge", replace(slots(state, toolbox), judged=shown))
    number = toolbox.profile.read_choice(reply.texts[0], len(rivals))
    chosen = rivals[number or 0]
    said = "its answer names none, the votes decide" if number is None else f"{number + 1} of {len(rivals)}"
    detail = f"{said}: {chosen.votes} of {toolbox.options.samples} votes"
    return chosen, (replace(reply.step, detail="; ".join(filter(None, (detail, reply.step.detail)))),)


def _judged(candidate: Candidate, rows: int) -> Judged:
    result = cast("Result", candidate.outcome)
    shown = tuple(tuple(map(_text, row)) for row in result.rows[:rows])
    return Judged(candidate.sql, tuple(result.columns), shown, len(result.rows))


def _text(cell: object) -> str:
    return "NULL" if cell is None else str(cell)
