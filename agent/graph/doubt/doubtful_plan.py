"""A plan with an unlikely token is written again, behind several orders of the schema.

Such plans are wrong four times out of five, and the mean of what the model says behind other orders mends one in twelve of
them (log/2026-11-24-schema-orders.md). The first plan is what drafts copy from then, so the second costs few forwards.
"""

from dataclasses import replace

from agent.graph.ask_model import Reply, ask_model
from agent.graph.toolbox import Toolbox
from agent.prompts.slots import Slots
from decoding.serving.chat_model import FastChatModel

LEAST = -0.92  # natural logarithm of 0.4
MOST_TABLES = 9  # of a schema: behind ten tables the mean named tables that no single order leads to


def is_doubtful(toolbox: Toolbox, slots: Slots, reply: Reply) -> bool:
    """Whether a token that no grammar forced has a probability below 0.4. Only a local model's probabilities are known,
    and for a large schema there is no remedy.
    """
    options = toolbox.options
    may = options.orders > 1 and len(slots.schema.tables) <= MOST_TABLES
    return may and isinstance(toolbox.model, FastChatModel) and min(reply.log_probs[0], default=0.0) < LEAST


def rewritten(toolbox: Toolbox, slots: Slots) -> Reply:
    """The plan as the model writes it behind several orders of the schema."""
    reply = ask_model(toolbox, "plan", slots, orders=toolbox.options.orders)
    return replace(reply, step=replace(reply.step, detail=f"behind {toolbox.options.orders} orders of the schema"))
