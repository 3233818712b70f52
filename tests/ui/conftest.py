"""One event file from a real run of the embedded model; the page's pure parts need nothing else."""

from pathlib import Path

import pytest

from agent.observe.events import Event, from_json

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> list[Event]:
    lines = (RECORDED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [from_json(line) for line in lines]


@pytest.fixture(scope="session")
def albums() -> list[Event]:
    """Two questions on the bundled database, answered by the embedded model."""
    return recorded("albums")
