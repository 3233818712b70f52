"""What several test modules of the decoder share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds take no time, so what `adaptive` drafts by default does not depend on the machine."""
    monkeypatch.setattr("decoding.engine.loop.perf_counter", lambda: 0.0)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny matrices: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
