"""Finds the fastest method and options for a model on this machine from the measured cost of forwards and the acceptance on
the example database's questions.

The agent answers questions with plain decoding. Every method then decodes the same texts, and its time is predicted from
its rounds (see `decoding.timing.tuned`). Options are searched one after the other. Methods with heads are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from agent.assemble import DEFAULT_DECODER, LoadedModel, ModelChoice
from agent.conversation.conversation import Conversation
from decoding.engine.target import AnyTarget
from decoding.methods.registry import method_options
from decoding.timing.forward_timing import time_forward
from decoding.timing.tuned import ForwardCost, Tuned
from eval.speed.agent_calls import Call, CallRecorder, plain_model, recording
from eval.speed.replay.tune_options import NOISE, Tried, descend
from tools.databases.database import Database

CONTEXTS = (128, 768)  # tokens
NODES = (0, 1, 3, 7, 15, 31, 63)
SPACE: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "prompt_lookup": {"per_matched": (1, 2, 4), "draft_tokens": (8, 16, 24), "matches": (1, 2)},
    "jacobi": {"block_size": (4, 8, 16)},
    "lookahead": {"window": (2, 3, 5), "guesses": (3, 5)},
    "jacobi_forcing": {"block_size": (2, 4, 8, 16), "blocks": (1, 2), "candidates": (1, 2, 3), "per_matched": (2, 4)},
    "adaptive": {"masks": (0, 4, 6), "copies": (1, 3), "budget": (16, 32)},
    "mask_tokens": {"masks": (3, 6), "masked": (1, 3), "budget": (3, 6), "copies": (1, 2)},
}
Say = Callable[[str], None]


def autotune(choice: ModelChoice, database: Database, questions: Sequence[str], say: Say = lambda text: None) -> Tuned:
    """Find the fastest method and options. Raises the same errors as loading the model."""
    loaded, recorder = recording(plain_model(choice))
    say("timing forwards")
    cost = ForwardCost.fit(recorder.alone(_times))
    calls = []
    for number, question in enumerate(questions, 1):
        say(f"question {number} of {len(questions)}")
        calls += _asked(loaded, recorder, database, question)
    return fastest(recorder, calls, cost, say)


def fastest(recorder: CallRecorder, calls: Sequence[Call], cost: ForwardCost, say: Say = lambda text: None) -> Tuned:
    """The method and options with the shortest predicted time for these calls; the default if it is as fast."""
    plain, default = (_predict(name, {}, recorder, calls, cost) for name in ("plain", DEFAULT_DECODER))
    found = {decoder: _fastest(decoder, recorder, calls, cost, say) for decoder in SPACE}
    decoder = max(found, key=lambda name: found[name].tokens_per_s)
    best = found[decoder]
    if best.tokens_per_s <= NOISE * default.tokens_per_s:
        decoder, best = DEFAULT_DECODER, default
    return Tuned(
        decoder=decoder,
        options=best.options or {},
        speedup=best.tokens_per_s / plain.tokens_per_s,
        speedup_of_default=default.tokens_per_s / plain.tokens_per_s,
        text_tokens_per_forward=best.text_tokens / best.forwards,
        cost=cost,
    )


def _times(target: AnyTarget) -> dict[tuple[int, int], float]:
    longest = target.max_length - 1 - max(NODES)
    return time_forward(target, sorted({min(context, longest) for context in CONTEXTS}), NODES, repeats=7)


def _asked(loaded: LoadedModel, recorder: CallRecorder, database: Database, question: str) -> list[Call]:
    toolbox = loaded.toolbox(database)
    toolbox.estimate_plain = None
    return recorder.take(Conversation(toolbox).ask(question).checked().steps)


def _fastest(decoder: str, recorder: CallRecorder, calls: Sequence[Call], cost: ForwardCost, say: Say) -> Tried:
    """The record of a method's best options."""
    known: dict[str, Tried] = {}

    def run(trial: str, points: Sequence[dict[str, Any]]) -> list[Tried]:
        say(f"{decoder}: {trial}")
        for point in points:
            if repr(point) not in known:
                known[repr(point)] = _predict(decoder, point, recorder, calls, cost)
        return [known[repr(point)] for point in points]

    defaults = {option: method_options(decoder)[option] for option in SPACE[decoder]}
    return known[repr(descend(defaults, SPACE[decoder], 1, run))]


def _predict(
    decoder: str, options: dict[str, Any], recorder: CallRecorder, calls: Sequence[Call], cost: ForwardCost
) -> Tried:
    """Decode all texts with a method and predict its time, which is infinite if a text differs from plain decoding's."""
    ms, tokens, forwards = 0.0, 0, 0
    for call in calls:
        settings = replace(call.settings, decoder=decoder, options=options, recall=call.settings.recall.copy())
        again = recorder.inner.generate(call.prompt, settings)
        ms += cost.of(again.rounds, again.prompt_tokens) if again.text == call.generation.text else inf
        tokens, forwards = tokens + len(call.generation.tokens), forwards + len(again.rounds)
    return Tried(decoder, "predicted", options, tokens, forwards, ms)
