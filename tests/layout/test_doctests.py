"""The examples in docstrings hold: each module that contains one is run by `doctest`."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

from tests.layout.test_layout import PACKAGES, ROOT

FEWEST = 12


def _has_examples(source: Path) -> bool:
    return any(line.lstrip().startswith(">>> ") for line in source.read_text().splitlines())


def _name(source: Path) -> str:
    return ".".join(source.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


SOURCES = sorted(source for package in PACKAGES for source in (ROOT / package).rglob("*.py"))
MODULES = [_name(source) for source in SOURCES if _has_examples(source)]


def _told(name: str) -> tuple[int, str]:
    """How many examples ran, and what went wrong, one report after the other."""
    module = import_module(name)
    reports: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module):
        runner.run(test, out=reports.append)
    return runner.tries, "".join(reports)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    ran, reports = _told(name)
    assert ran, f"{name} contains '>>>', but no docstring that doctest finds"
    assert not reports, f"examples of {name} do not say what the code does:\n{reports}"


def test_modules_have_examples() -> None:
    """Guards against a search that finds nothing, after which every example would count as checked."""
    assert len(MODULES) >= FEWEST, MODULES


def test_a_wrong_example_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_example.py").write_text('"""Adds.\n\n>>> 1 + 1\n3\n"""\n')
    monkeypatch.syspath_prepend(tmp_path)
    ran, reports = _told("wrong_example")
    assert ran == 1 and "Expected:\n    3\nGot:\n    2" in reports
