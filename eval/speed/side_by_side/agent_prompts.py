"""Collects prompts for the decoding benchmark: the agent's prompts for real questions."""

from collections.abc import Callable, Iterator, Sequence

from agent.assemble import LoadedModel
from agent.graph.toolbox import AgentOptions
from eval.datasets.official import Example
from eval.speed.agent_calls import agent_calls
from eval.speed.side_by_side.compare import Prompt

_TIMEOUT_S = 30.0  # deadline of each query that the agent runs


def agent_prompts(
    loaded: LoadedModel, examples: Sequence[Example], say: Callable[[str], None] = lambda text: None
) -> Iterator[Prompt]:
    """Prompt and recall of every text that the agent asks for when it answers the executable examples on SQLite."""
    executable = [example for example in examples if example.executable]
    answered = agent_calls(loaded, executable, AgentOptions(), _TIMEOUT_S)
    for number, (_, _, _, calls) in enumerate(answered, 1):
        say(f"prompts of question {number} of {len(executable)}")
        for call in calls:
            yield Prompt(call.prompt, call.step, call.settings.recall)
