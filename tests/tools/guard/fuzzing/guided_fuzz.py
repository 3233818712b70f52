"""Coverage-guided fuzzing of the guard and of sqlglot's parser under it, by atheris (libFuzzer): `make fuzz minutes=60`.

    python -m tests.tools.guard.fuzzing.guided_fuzz MINUTES [FOLDER]      fuzz; the corpus in FOLDER is taken up and grows
    python -m tests.tools.guard.fuzzing.guided_fuzz STATEMENT-FILE ...    run statements that were at fault again

Branches taken in `tools` and `sqlglot` decide which statements are kept and changed further; engines without locks judge
(`fuzz.py`). Ends with 0 and counts; at the first harm, crash or hang with 1 and the statement in FOLDER/crash-*.
"""

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr
from io import StringIO
from pathlib import Path

import atheris

with redirect_stderr(StringIO()), atheris.instrument_imports(include=["sqlglot", "tools"]):  # it names every module
    from tests.tools.guard.fuzzing.fuzz import Fuzzer, fuzzers

LONGEST = 2000  # bytes of a statement
HANG_S = 60
MEMORY_MB = 4096
PROGRESS_S = 10.0


class Run:
    """Owner of the counts: what libFuzzer calls with each statement, and with a statement to change."""

    def __init__(self, engines: dict[str, Fuzzer], corpus: Path, minutes: float, clear_up: Callable[[], None]) -> None:
        self._engines, self._corpus, self._clear_up = engines, corpus, clear_up
        self._tried, self._passed = 0, dict.fromkeys(engines, 0)
        self._found_before = _files(corpus)
        self._ends_s, self._said_s = time.monotonic() + 60 * minutes, time.monotonic()

    def one(self, data: bytes) -> None:
        """Every engine's verdict on a statement. Raises Harm; ends the process when time is up."""
        sql = data.decode("utf-8", "replace")
        self._tried += 1
        for dialect, engine in self._engines.items():
            self._passed[dialect] += engine.check(sql)
        if (now := time.monotonic()) > self._ends_s:
            print(f"no harm: {self}", flush=True)
            self._clear_up()
            os._exit(0)  # libFuzzer's loop has no other end that runs code of ours
        if now > self._said_s + PROGRESS_S:
            self._said_s = now
            print(self, file=sys.stderr)

    def change(self, data: bytes, size: int, seed: int) -> bytes:
        """Another statement: three times of four by words, else by bytes."""
        chance = random.Random(seed)
        engine = chance.choice(list(self._engines.values()))
        if chance.random() < 0.25:
            return bytes(atheris.Mutate(data, size))
        changed = engine.neighbour(data.decode("utf-8", "replace"), chance) if data else engine.statement(chance)
        return changed.encode("utf-8", "replace")[:size]

    def __str__(self) -> str:
        new = _files(self._corpus) - self._found_before
        return f"tried {self._tried}, passed by the guard and run {self._passed}, with new coverage {new}"


def fuzz(minutes: float, folder: Path) -> None:
    """Does not return: libFuzzer ends the process."""
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        engines, seeds = stack.enter_context(fuzzers()), stack.enter_context(tempfile.TemporaryDirectory())
        for number, sql in enumerate(sql for engine in engines.values() for sql in engine.seeds):
            (Path(seeds) / str(number)).write_bytes(sql.encode("utf-8", "replace"))
        run = Run(engines, corpus, minutes, stack.close)
        limits = [f"-max_len={LONGEST}", f"-timeout={HANG_S}", f"-report_slow_units={HANG_S}"]
        limits += [f"-rss_limit_mb={MEMORY_MB}", "-error_exitcode=1"]
        places = [f"-artifact_prefix={folder}/", str(corpus), seeds]
        atheris.Setup([sys.argv[0], *limits, "-verbosity=0", *places], run.one, custom_mutator=run.change)
        atheris.Fuzz()


def again(files: list[Path]) -> None:
    """Raises Harm."""
    with fuzzers() as engines:
        for file in files:
            for engine in engines.values():
                engine.check(file.read_bytes().decode("utf-8", "replace"))


def _files(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


if __name__ == "__main__":
    if Path(sys.argv[1]).is_file():
        again([Path(name) for name in sys.argv[1:]])
    else:
        fuzz(float(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "out/fuzz"))
