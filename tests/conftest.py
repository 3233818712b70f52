"""Triton without a GPU, a cache folder and servers for tests, and the rule that nothing is skipped in silence where all should
run."""

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from decoding.checkpoints.cache_folder import cache_root

if TYPE_CHECKING:
    from tests.tools.databases.server.servers import Server

if not torch.cuda.is_available():  # said before Triton is imported: its kernels then run on a processor
    os.environ.setdefault("TRITON_INTERPRET", "1")

os.environ.setdefault("SQLAGENT_LOG", "off")  # what tests ask is no entry in anybody's log
os.environ.setdefault("SQLAGENT_TURNS", "off")  # nor does anybody wait for them

_LINKED = ("models", "downloads", "locks", "kernels")  # what is fetched or compiled once for everybody
_LINKED_EACH = ("packed",)  # of which only what is there is of use to tests


def _own_home() -> None:
    """Tests have a cache folder of their own, so that nothing of theirs stays in the user's; big files are linked into it. The
    processes of pytest-xdist inherit it. Its name does not begin as the program's own temporary folders do, which are cleared.
    """
    user, home = cache_root(), Path(tempfile.mkdtemp(prefix="tests-of-sqlagent-"))
    for name in _LINKED:
        (user / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / name).symlink_to(user / name)
    for name in _LINKED_EACH:
        (home / name).mkdir()
        for each in (user / name).glob("*"):
            (home / name / each.name).symlink_to(each)
    atexit.register(_remove, home, os.getpid())
    os.environ["SQLAGENT_HOME"] = str(home)


def _remove(home: Path, owner: int) -> None:
    """Remove links, and not what they lead to; a child that was forked leaves it to its parent."""
    if os.getpid() == owner:
        shutil.rmtree(home, ignore_errors=True)


if "PYTEST_XDIST_WORKER" not in os.environ:
    _own_home()

ALLOWED = os.environ.get("SQLAGENT_ALLOWED_SKIPS")
"""A regular expression of reasons; where it is given, a skip for any other reason is a failure."""


def _server(kind: str) -> "Iterator[Server]":
    from tests.tools.databases.server.servers import running  # not where only CUDA is tested, which lacks SQLAlchemy

    try:
        with running(kind) as server:
            yield server
    except FileNotFoundError as error:
        pytest.skip(f"{error}; on Debian and Ubuntu: apt install postgresql mariadb-server")


@pytest.fixture(scope="session")
def postgresql() -> "Iterator[Server]":
    yield from _server("postgresql")


@pytest.fixture(scope="session")
def mariadb() -> "Iterator[Server]":
    yield from _server("mariadb")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    reason = str(report.longrepr[2]) if report.skipped and isinstance(report.longrepr, tuple) else ""
    if reason and ALLOWED is not None and not hasattr(report, "wasxfail") and not re.search(ALLOWED, reason):
        report.outcome, report.longrepr = "failed", f"a skip that is not on the list: {reason}"
    return report
