"""What each step of an answer does, in words for people."""

STEP_TITLES = {
    "relate": "Reading the question in its conversation",
    "link": "Looking at the schema",
    "clarify": "Looking for what is unclear",
    "adapt": "Changing the former SQL",
    "plan": "Planning",
    "generate": "Writing SQL",
    "vote": "Voting",
    "choose": "Choosing a reading",
    "check": "Checking the SQL",
    "execute": "Running the query",
    "refine": "Correcting the SQL",
    "vary": "Looking for another query",
    "answer": "Answering",
}


def step_title(step: str) -> str:
    """The words for a step's name, else the name itself as a sentence would begin with it.

    >>> step_title("generate"), step_title("read_samples")
    ('Writing SQL', 'Read samples')
    """
    return STEP_TITLES.get(step, step.replace("_", " ").capitalize())
