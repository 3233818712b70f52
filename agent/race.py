"""A race decodes one step of a question with several methods, round by round, each timed by its own clock."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from agent.context import AgentContext, Call
from agent.conversation import spell
from decoding.engine.constraint import ConstraintError
from decoding.engine.method import LookupCorpus, UnknownMethod
from decoding.engine.rounds import Metrics, Round, measure
from decoding.errors import ModelError
from decoding.serving.text_decoder import ChatModel, Completion, TextDelta

WARMING_TOKENS = 8


class NoRace(ValueError):
    """There can be no race; the message says why."""


@dataclass(slots=True)
class Lane:
    """One method's run. `clock_ms`: the time of its own rounds only, as if it ran alone."""

    method: str
    text: str = ""
    rounds: list[Round] = field(default_factory=list)
    spelling: dict[int, str] = field(default_factory=dict)
    done: bool = False
    trouble: str = ""

    @property
    def metrics(self) -> Metrics:
        return measure(self.rounds)

    @property
    def clock_ms(self) -> float:
        return self.metrics.wall_ms

    @property
    def shared_rounds(self) -> int:
        """Rounds whose forward also decoded other questions, so that their time is not that of this run alone."""
        return sum(r.batch > r.prompts for r in self.rounds)


def race(toolbox: AgentContext, step: str, methods: Sequence[str]) -> Iterator[list[Lane]]:
    """Decode the newest call of `step` again with every method; yields all lanes after each round.

    The lane with the least time on its clock goes next, so that the race looks as it would on separate machines. All
    lanes find the prompt in the prefix cache, and each has the constraint and a copy of the recall that the agent's own
    call had: predicted texts and those of earlier answers, but not this one. Raises NoRace and Stopped.
    """
    call = toolbox.calls.get(step)
    if toolbox.local is None or call is None:
        raise NoRace(f"there is no {step} step to race yet: ask a question first")
    lanes = [Lane(method) for method in methods]
    with toolbox.local.reserved(len(lanes) * call.prompts, toolbox.stop.is_set) as model:
        runs = {lane.method: _run(model, call, lane.method) for lane in lanes}
        try:
            for lane in lanes:
                _warm(model, call, lane.method)
            while running := [lane for lane in lanes if not lane.done]:
                toolbox.stop.check()
                lane = min(running, key=lambda each: each.clock_ms)
                _advance(lane, runs[lane.method], model)
                yield lanes
        finally:
            for run in runs.values():
                run.close()


def plain_time_ms(toolbox: AgentContext, step: str, rounds: Sequence[Round], wall_ms: float) -> float:
    """The milliseconds that the newest call of `step`, which took `wall_ms` in these rounds, takes with plain decoding. It is
    decoded again for that; the prefill and what is around the rounds count as they were. Raises NoRace and Stopped."""
    call = toolbox.calls.get(step)
    if toolbox.local is None or call is None:
        raise NoRace("only steps of the newest answer can be measured, and not those of a model elsewhere")
    with toolbox.local.reserved(call.prompts, toolbox.stop.is_set) as model:
        try:
            again = model.complete(call.messages, {**call.options, "decoder": "plain", "options": {}})
        except ConstraintError as error:
            raise NoRace("this step left the grammar, and cannot be decoded again as it was") from error
    toolbox.stop.check()
    around_ms = max(wall_ms - measure(rounds).wall_ms, 0.0)
    return measure(rounds[:1]).wall_ms + measure(again.rounds[1:]).wall_ms + around_ms


def _run(model: ChatModel, call: Call, method: str, **more: Any) -> Generator[TextDelta | Completion]:
    own = model.settings.options if method == model.settings.decoder else {}
    recall = cast("LookupCorpus", call.options["recall"]).copy()
    changes = {**call.options, "decoder": method, "options": own, "recall": recall, "likelihood": False, **more}
    return cast("Generator[TextDelta | Completion]", model.stream(call.messages, changes))


def _warm(model: ChatModel, call: Call, method: str) -> None:
    """Put the prompt into the prefix cache, with the hidden states that the method needs, and let it draft once, so that its
    clock shows neither prefill nor what is loaded at its first draft.
    """
    with suppress(ConstraintError, ModelError, UnknownMethod):  # its lane says what is wrong
        deque(_run(model, call, method, max_new_tokens=WARMING_TOKENS), maxlen=0)


def _advance(lane: Lane, run: Iterator[TextDelta | Completion], model: ChatModel) -> None:
    try:
        piece = next(run, None)
    except ConstraintError:
        lane.trouble, lane.done = "the grammar came to a dead end", True
        return
    except (ModelError, UnknownMethod) as error:  # there may be no head for it here; the others race on
        lane.trouble, lane.done = str(error), True
        return
    if not isinstance(piece, TextDelta):
        lane.done = True
        return
    lane.text += piece.text
    lane.rounds.append(piece.round)
    lane.spelling |= spell(model.decoder.tokenizer, [piece.round])
