"""Guards the documents: every test, file and folder that they name is there, and links lead somewhere.

Tests leave nothing in the cache folder of the person who runs them.
"""

import re
import tempfile
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from decoding.checkpoints.cache_folder import cache_root, models_folder
from tools.processes import PREFIX

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("app", "agent", "decoding", "kernels", "tools", "ui", "eval", "training", "tests")
DOCUMENTS = [path.relative_to(ROOT).as_posix() for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])]
PAGES = [
    *DOCUMENTS,
    *(path.relative_to(ROOT).as_posix() for top in ("log", "decoding") for path in (ROOT / top).rglob("*.md")),
]
_FILE = re.compile(r"`([\w/]+\.py)`")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
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


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_module_that_a_document_names_by_its_end_is_there(document: str) -> None:
    """SECURITY named `given_back.py` and four others that had been merged into other files. Examples name their own."""
    text = (ROOT / document).read_text(encoding="utf-8")
    files = {path.relative_to(ROOT).as_posix() for top in TOPS for path in (ROOT / top).rglob("*.py")}
    for name in _FILE.findall(text):
        assert f"# {name}\n" in text or any(f"/{each}".endswith(f"/{name}") for each in files), name


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """A page of the log linked to CAPACITY.md, which had become a section of another document."""
    for link in _LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        assert (ROOT / page).parent.joinpath(link).exists(), link


def test_tests_have_a_cache_folder_of_their_own() -> None:
    home = cache_root()
    assert home != user_cache_path("sqlagent", appauthor=False) and home.is_relative_to(tempfile.gettempdir())
    assert not home.name.startswith(PREFIX)  # or it would be taken for one that a killed process left


def test_what_is_measured_stays_there_and_models_are_not_fetched_again() -> None:
    user = user_cache_path("sqlagent", appauthor=False)
    for name in ("costs", "values", "log.sqlite", "chats.sqlite"):
        assert not (cache_root() / name).resolve().is_relative_to(user.resolve()), name
    assert models_folder().is_symlink() and Path(models_folder()).is_dir()
