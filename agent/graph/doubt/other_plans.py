"""Other plans for a question whose answer is doubtful.

A model that is sure of a wrong word writes it in nearly every sample. So a local model is asked for the likeliest plans that
leave its own at one place: what else it might have written there, and how it goes on from there, greedily.
"""

from agent.graph.ask_model import Reply, ask_model
from agent.graph.call_options import call_of
from agent.graph.nodes.node_state import slots
from agent.graph.toolbox import OTHER_PLANS, Toolbox
from agent.graph.vote import drawn_plans
from agent.observe.step_record import Step
from agent.state import DrawnPlan, State
from decoding.serving.chat_model import FastChatModel
from decoding.serving.given_text import other_beginnings

TEMPERATURE = 1.0  # of the samples that are drawn instead where no grammar tells what else a plan may say


def other_plans(state: State, toolbox: Toolbox) -> tuple[list[DrawnPlan], list[Step]]:
    """The plans, of which some may be the state's own, and what they cost. `drawn`: how many texts gave the plan."""
    replies = _left(state, toolbox) or [_sampled(state, toolbox)]
    texts = [toolbox.profile.read_plan(text) for reply in replies for text in reply.texts]
    likelihoods = [each for reply in replies for each in reply.log_likelihoods]
    return drawn_plans(texts, likelihoods, state["reading"]), [reply.step for reply in replies]


def _left(state: State, toolbox: Toolbox) -> list[Reply]:
    """The model's own plan behind one order of the schema, and those that leave it; nothing without a grammar."""
    model, prompt = toolbox.model, slots(State(**{**state, "plan": ""}), toolbox)
    if not isinstance(model, FastChatModel):
        return []
    call = call_of(toolbox, "plan", prompt, attempt=0, temperature=None, bound=True, orders=1)
    if call.options["constraint"] is None:
        return []
    own = ask_model(toolbox, "plan", prompt, beginnings=[()], aside=True)
    tokens = [token for each in own.rounds[0] for token in each.text_tokens]
    text, constraint = model.prompt(call.messages), call.options["constraint"]
    ways = other_beginnings(model.decoder, text, tokens, constraint, _count(toolbox))
    return [own, ask_model(toolbox, "plan", prompt, beginnings=ways, aside=True)] if ways else [own]


def _count(toolbox: Toolbox) -> int:
    return toolbox.watch.plans if toolbox.watch else OTHER_PLANS


def _sampled(state: State, toolbox: Toolbox) -> Reply:
    prompt = slots(State(**{**state, "plan": ""}), toolbox)
    return ask_model(toolbox, "plan", prompt, samples=_count(toolbox), temperature=TEMPERATURE, attempt=1)
