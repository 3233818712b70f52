"""Questions about a database from Python, in four lines:

    import sqlagent

    with sqlagent.open("shop.sqlite") as shop:
        print(shop.ask("How many customers are there?").answer)

Everything here lives elsewhere and is imported when it is first used: `open`, `Assistant` and `Answer` (`agent`),
`AgentOptions`, `Limits`, `Result` and `QueryError` (`tools`), `OpenError`.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.assistant import Assistant
    from agent.context import AgentOptions
    from agent.conversation import Answer, Conversation, Retry
    from tools.result import Limits, OpenError, QueryError, Result

__all__ = [
    "AgentOptions",
    "Answer",
    "Assistant",
    "Conversation",
    "Limits",
    "OpenError",
    "QueryError",
    "Result",
    "Retry",
    "open",
]  # fmt: skip

_PLACES = {
    "Retry": "agent.conversation",
    "AgentOptions": "agent.context",
    "Answer": "agent.conversation",
    "Assistant": "agent.assistant",
    "Conversation": "agent.conversation",
    "Limits": "tools.result",
    "OpenError": "tools.result",
    "QueryError": "tools.result",
    "Result": "tools.result",
}


__version__ = "0.1.0"

if not Path(__file__).with_name("agent").exists():
    from sqlagent.repository import give_installed_names

    give_installed_names()


def open(source: Any, **options: Any) -> "Assistant":
    """An assistant for a file, files, a folder or a URL; the options are those of `Assistant.open`. Raises OpenError."""
    from agent.assistant import Assistant

    return Assistant.open(source, **options)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'sqlagent' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
