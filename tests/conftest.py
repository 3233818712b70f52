"""Triton without a GPU, servers for tests, and the rule that nothing is skipped in silence where all should run."""

import os
import re
from collections.abc import Generator, Iterator

import pytest
import torch

from tests.tools.databases.server.servers import Server, running

if not torch.cuda.is_available():  # said before Triton is imported: its kernels then run on a processor
    os.environ.setdefault("TRITON_INTERPRET", "1")

os.environ.setdefault("SQLAGENT_LOG", "off")  # what tests ask is no entry in anybody's log
os.environ.setdefault("SQLAGENT_TURNS", "off")  # nor does anybody wait for them

ALLOWED = os.environ.get("SQLAGENT_ALLOWED_SKIPS")
"""A regular expression of reasons; where it is given, a skip for any other reason is a failure."""


def _server(kind: str) -> Iterator[Server]:
    try:
        with running(kind) as server:
            yield server
    except FileNotFoundError as error:
        pytest.skip(f"{error}; on Debian and Ubuntu: apt install postgresql mariadb-server")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    yield from _server("postgresql")


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    yield from _server("mariadb")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    reason = str(report.longrepr[2]) if report.skipped and isinstance(report.longrepr, tuple) else ""
    if reason and ALLOWED is not None and not hasattr(report, "wasxfail") and not re.search(ALLOWED, reason):
        report.outcome, report.longrepr = "failed", f"a skip that is not on the list: {reason}"
    return report
