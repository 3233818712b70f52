"""Guards the documents: every test, file and folder that they name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [path.relative_to(ROOT).as_posix() for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])]
_TEST = re.compile(r"`(test_[a-z_0-9*]+)`")
_PLACE = re.compile(r"`((?:app|agent|decoding|kernels|tools|ui|eval|training|tests)/[\w/.*-]+)`")


def named_tests() -> set[str]:
    """The names of all test functions and files."""
    sources = list((ROOT / "tests").rglob("test_*.py"))
    functions = (re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE) for path in sources)
    return {name for names in functions for name in names} | {path.stem for path in sources}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_test_that_a_document_names_is_there(document: str) -> None:
    known = named_tests()
    for name in _TEST.findall((ROOT / document).read_text(encoding="utf-8")):
        stem = name.removesuffix("*")
        assert name in known or (stem != name and any(each.startswith(stem) for each in known)), name


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_place_that_a_document_names_is_there(document: str) -> None:
    for place in _PLACE.findall((ROOT / document).read_text(encoding="utf-8")):
        assert list(ROOT.glob(place.rstrip("/"))), place
