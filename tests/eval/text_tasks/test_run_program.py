"""Programs run to their end, and get at nothing of this machine."""

from pathlib import Path

import pytest

from eval.accuracy.text_tasks import Ending, run_program

HOME = Path(__file__).resolve()


def ended(program: str, timeout_s: float = 20.0) -> Ending:
    return run_program(program, timeout_s)


@pytest.mark.parametrize(
    "program",
    [
        "assert 1 + 1 == 2",
        "import math, re, heapq, hashlib, itertools, collections, typing, string, random, decimal, fractions, datetime\n"
        "assert hashlib.md5(b'x').hexdigest()",
        "print('anything')",
        "import json, copy, functools, operator, statistics, textwrap, unicodedata\nassert json.loads('[1]') == [1]",
        "x = 'größer'\nassert len(x) == 6",
    ],
)
def test_ordinary_programs_pass(program: str) -> None:
    assert ended(program) == Ending("passed")


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("assert 1 == 2, 'one is not two'", "one is not two"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(0)", ""),
        ("import os\nos._exit(0)", ""),
        ("exit()", "exit"),
        ("x = [0] * 10**10", "MemoryError"),
        (f"open({str(HOME)!r})", "may open no file"),
        ("open('new.txt', 'w')", "may open no file"),
        ("open('/etc/passwd')", "may open no file"),
        ("import os\nos.listdir('/')", "may look at no folder"),
        ("import os\nos.system('true')", "may not do this: os.system"),
        ("import os\nos.remove('x')", "may not do this: os.remove"),
        ("import os\nos.fork()", "may not do this: os.fork"),
        ("import subprocess\nsubprocess.run(['true'])", "may not import subprocess"),
        ("import socket", "may not import socket"),
        ("import _socket", "may not import _socket"),
        ("import ctypes", "may not import ctypes"),
        ("import gc\ngc.get_objects()", "may not do this: gc."),
        ("import importlib\nimportlib.import_module('socket')", "may not import"),
    ],
)
def test_other_programs_fail_and_say_why(program: str, says: str) -> None:
    ending = ended(program)
    assert ending.kind == "failed" and says in ending.said


@pytest.mark.parametrize("program", ["while True: pass", "import time\ntime.sleep(60)"])
def test_a_program_without_an_end_is_stopped(program: str) -> None:
    ending = ended(program, timeout_s=2.0)
    assert ending.kind in ("timed out", "failed")


def test_nothing_is_left_and_nothing_is_seen_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "42")
    assert ended("import os\nassert 'SECRET' not in os.environ") == Ending("passed")
    assert ended("import sys\nassert not any('sqlagent' in name for name in sys.modules)") == Ending("passed")
