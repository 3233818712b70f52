"""Stops the answering of a question."""

import threading

from decoding.serving.model_queue import Stopped


class StopSignal:
    """One asker's request to stop. Nodes, the decoder and threads that wait for the model check it."""

    def __init__(self) -> None:
        self._set = threading.Event()

    def stop(self) -> None:
        """Stop the running question."""
        self._set.set()

    def clear(self) -> None:
        """Reset the signal for the next question."""
        self._set.clear()

    def is_set(self) -> bool:
        return self._set.is_set()

    def check(self) -> None:
        """Raise Stopped if the question was stopped."""
        if self.is_set():
            raise Stopped
