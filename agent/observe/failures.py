"""What becomes of an exception while a question is answered: a kind, one line for people, and the traceback for the log.

People are never shown a traceback. It is written to the audit log as an entry of its own (`Trail.failed`), and to Python's
logger `sqlagent`, which prints nothing unless the host program wants it.
"""

import logging
from traceback import format_exception

from decoding.engine.method import UnknownMethod
from decoding.engine.target import PromptTooLong
from decoding.errors import ModelError, is_want_of_memory
from decoding.serving.model_queue import QueueFull
from tools.result import OpenError, without_passwords

FAILURE = "failure"
"""The kind of an error that nobody expected; that of a model is "model", of a database "connection", of options "usage"."""
LONGEST = 300  # characters of an exception's message that people are shown
_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (ModelError, "model"),
    (QueueFull, "model"),
    (OpenError, "connection"),
    (PromptTooLong, "usage"),
    (UnknownMethod, "usage"),
)

OPTIONAL_STEPS = {
    "rewrite": "writing the doubtful plan again",
    "choose": "choosing a reading",
    "translate": "translating the SQL between dialects",
    "repair": "repairing the SQL",
    "confidence": "saying how sure the answer is",
    "readings": "looking for other readings",
    "present": "presenting the rows",
    "sentence": "putting the answer into words",
    "remember": "remembering the question for follow-ups",
}
"""Steps without which there is an answer all the same (`AgentContext.optional`), in words for people."""

logger = logging.getLogger("sqlagent")
logger.addHandler(logging.NullHandler())  # otherwise Python prints errors on stderr


class NodeFailed(Exception):
    """A node of the graph raised the exception that is this one's cause; `node` is its name."""

    def __init__(self, node: str) -> None:
        super().__init__(f"the node {node} failed")
        self.node = node


def kind_of(error: BaseException) -> str:
    """The kind of an answer's error that an exception makes."""
    if any(each.__module__.partition(".")[0] == "openai" for each in type(error).__mro__):
        return "model"
    return next((kind for known, kind in _KINDS if isinstance(error, known)), FAILURE)


def in_one_line(error: BaseException) -> str:
    """The exception's message as one line without passwords; with its type, where its message is not made for people."""
    said = without_passwords(" ".join(str(error).split()))
    said = said if len(said) <= LONGEST else f"{said[:LONGEST]} …"
    if is_want_of_memory(error):
        return f"there is not enough memory ({said or 'no more is given'})"
    if kind_of(error) != FAILURE:
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def with_traceback(error: BaseException) -> str:
    """One line and the traceback, for the log."""
    return f"{in_one_line(error)}\n{without_passwords(''.join(format_exception(error)))}"
