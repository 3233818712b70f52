"""What a local model's hidden states say about a query: the summary that a `Verifier` judges."""

from collections.abc import Sequence
from typing import cast

from agent.graph.call_options import messages_of
from agent.graph.doubt.verifier import Vector, summary
from agent.graph.nodes.node_state import slots
from agent.graph.toolbox import Toolbox
from agent.state import State
from decoding.serving.chat_model import FastChatModel
from decoding.serving.given_text import text_states


def query_summaries(states: Sequence[State], toolbox: Toolbox, tap: int) -> list[Vector]:
    """The summary of the plan and the SQL that the model wrote, for each of some readings of one question: one forward for all
    of them, which reads them behind the prompt of the plan."""
    model = cast("FastChatModel", toolbox.model)
    untried = [slots(State(**{**state, "attempts": []}), toolbox) for state in states]
    prompt = model.prompt(messages_of(toolbox, "plan", untried[0]))
    after_plans = [model.prompt(messages_of(toolbox, "generate", each)) for each in untried]
    sqls = [f" {state['candidate']}" for state in states]
    texts = [after_plan + sql for after_plan, sql in zip(after_plans, sqls, strict=True)]
    found = text_states(model.decoder, prompt, texts, (tap,))
    lengths = [len(model.decoder.tokenizer.encode(sql)) for sql in sqls]
    return [summary(rows[:, 0], length) for rows, length in zip(found, lengths, strict=True)]
