"""How a question is called off while it is answered."""

import threading

from decoding.serving.model_queue import Stopped


class StopSignal:
    """One asker's wish to stop. Nodes, the decoder and those who wait for the model look at it."""

    def __init__(self) -> None:
        self._set = threading.Event()

    def stop(self) -> None:
        """Call the running question off."""
        self._set.set()

    def clear(self) -> None:
        """Make ready for the next question."""
        self._set.clear()

    def is_set(self) -> bool:
        return self._set.is_set()

    def check(self) -> None:
        """Raise Stopped when the question was called off."""
        if self.is_set():
            raise Stopped
