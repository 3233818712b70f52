"""What each step of an answer does, in words for people."""

from agent.observe.node_table import NODES

_WITHIN_NODES = {
    "choose": "Choosing a reading",
    "verify": "Comparing the readings",
}


def step_title(step: str) -> str:
    """The title of a step; for a step without one, its name written like the beginning of a sentence.

    >>> step_title("generate"), step_title("read_samples")
    ('Writing SQL', 'Read samples')
    """
    if step in NODES:
        return NODES[step].title
    return _WITHIN_NODES.get(step, step.replace("_", " ").capitalize())
