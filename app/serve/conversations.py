"""Keeps the conversations of those who ask a server, by names that nobody guesses."""

from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.assistant import Assistant
    from agent.conversation.conversation import Conversation

MOST_CONVERSATIONS = 64


class Conversations:
    """The newest conversations of this server, by names that nobody guesses."""

    def __init__(self, assistant: "Assistant") -> None:
        self._assistant, self._lock = assistant, Lock()
        self._known: dict[str, Conversation] = {}

    def begin(self) -> "Conversation":
        """A new conversation; the oldest is forgotten where there are too many."""
        talk = self._assistant.conversation()
        with self._lock:
            self._known[talk.thread] = talk
            while len(self._known) > MOST_CONVERSATIONS:
                del self._known[next(iter(self._known))]
        return talk

    def find(self, name: str) -> "Conversation | None":
        """A conversation, which becomes the newest by that; None where there is none of that name."""
        with self._lock:
            if name in self._known:
                self._known[name] = self._known.pop(name)
            return self._known.get(name)
