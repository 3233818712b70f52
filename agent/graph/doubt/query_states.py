"""What a local model's hidden states say about a query: the summary that a `Verifier` judges."""

from typing import cast

from agent.graph.call_options import messages_of
from agent.graph.doubt.verifier import Vector, summary
from agent.graph.nodes.node_state import slots
from agent.graph.toolbox import Toolbox
from agent.prompts.profiles import ModelStep
from agent.state import State
from decoding.serving.chat_model import FastChatModel
from decoding.serving.given_text import text_states

STEPS: tuple[ModelStep, ModelStep] = ("plan", "generate")


def query_summary(state: State, toolbox: Toolbox, tap: int) -> Vector:
    """The summary of the plan and the SQL that the model wrote, behind the prompt of the plan. One forward, and another one
    where the prompt is cached without states."""
    model = cast("FastChatModel", toolbox.model)
    untried = slots(State(**{**state, "attempts": []}), toolbox)
    prompt, after_plan = (model.prompt(messages_of(toolbox, step, untried)) for step in STEPS)
    sql = f" {state['candidate']}"
    states = text_states(model.decoder, prompt, after_plan + sql, (tap,))
    return summary(states[:, 0], len(model.decoder.tokenizer.encode(sql)))
