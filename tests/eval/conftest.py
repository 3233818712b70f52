"""Databases for the eval tests: the invented ones of `databases.py`, and the real benchmarks where they are there."""

from pathlib import Path
from typing import Any

import pytest

from decoding.serving.text_decoder import TextDecoder
from tests.eval.databases import build

_SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def invented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in Spider's layout, without dev.json: tables.json and database/DB/DB.sqlite."""
    root = tmp_path_factory.mktemp("invented")
    build(root)
    return root


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts each call of a decoder has decoded; filled while the test runs."""
    counts: list[int] = []
    decoded = TextDecoder._decoded

    def counting(self: TextDecoder, prompt: str, settings: Any, cancelled: Any) -> Any:
        counts.append(len(settings))
        return decoded(self, prompt, settings, cancelled)

    monkeypatch.setattr(TextDecoder, "_decoded", counting)
    return counts


@pytest.fixture(scope="session")
def spider() -> Path:
    """Spider's own folder."""
    return _benchmark("spider")


@pytest.fixture(scope="session")
def bird() -> Path:
    """The folder that holds BIRD's dev/ and minidev/."""
    return _benchmark("bird")


def _benchmark(name: str) -> Path:
    if not (_SHARED / name).is_dir():
        pytest.skip(f"no benchmark data in {_SHARED}")
    return _SHARED / name
