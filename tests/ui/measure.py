"""How the chat feels, measured in a real browser: python -m tests.ui.measure [part ...]. Needs the embedded model and Chromium.

First paint and first token of a warm server, a result of 100,000 rows, a conversation of 60 turns, ten people at once.
"""

import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from agent.archive import Archive
from agent.assemble import ModelChoice, load_model
from agent.observe.events import Wrote
from app.shared.databases import open_named
from tests.ui.browser import ask, choose_file, open_browser, open_page, served, side_tab, until
from tests.ui.workspaces import scripted_workspace
from tools.linking.questions import starters
from ui.session.session import Session
from ui.session.workspace import Workspace

PEOPLE, TURNS, ROWS = 10, 60, 100_000
COUNT, MANY = "How many albums?", "All numbers?"
SCRIPT = {
    COUNT: "SELECT COUNT(*) AS albums FROM albums",
    MANY: f"SELECT i, i * 2 AS twice, 'row ' || i AS name FROM range({ROWS}) AS numbers(i)",
}
# The longest that the page's own thread was busy, since the last call: so long a click may wait.
_WATCH = """() => { window.longest = 0; new PerformanceObserver(list => list.getEntries().forEach(
    e => { window.longest = Math.max(window.longest, e.duration) })).observe({type: 'longtask'}) }"""
_LONGEST = "() => { const longest = window.longest; window.longest = 0; return longest }"
_PAINT = "() => performance.getEntriesByType('paint').find(e => e.name === 'first-contentful-paint').startTime"
# Something is written under the first step that writes, or the answer itself came before anybody looked.
_FIRST_TOKEN = """turns => document.querySelector('#chat .written')
    || document.querySelectorAll('#chat .bot strong').length > turns"""
_ANSWERED = "turns => document.querySelectorAll('#chat .bot strong').length > turns"


@dataclass(frozen=True, slots=True)
class Measured:
    """`bound`: what is promised on two cores that do nothing else; None where nothing is."""

    what: str
    value: float
    unit: str
    bound: float | None = None

    def __str__(self) -> str:
        bound = "" if self.bound is None else f"   (at most {self.bound:g} {self.unit})"
        return f"{self.what:<62} {self.value:8.2f} {self.unit}{bound}"


def embedded_workspace(folder: Path) -> Workspace:
    workspace = Workspace(ModelChoice(), Archive(folder / "chats.sqlite"), load_model, lambda: open_named(None))
    workspace.warm()
    return workspace


def first_sight(browser: Any, folder: Path) -> Iterator[Measured]:
    """First paint, and first token of a first and of a later question."""
    with served(embedded_workspace(folder)) as address:
        page = open_page(browser.new_context(), address)
        yield Measured("first paint", page.evaluate(_PAINT) / 1e3, "s", 2.0)
        for turns, (number, bound) in enumerate((("first", None), ("second", 1.0))):
            start = perf_counter()
            ask(page, f"How many {'albums' if bound else 'artists'} are there?")
            page.wait_for_function(_FIRST_TOKEN, arg=turns, polling=20)
            yield Measured(f"first token of the {number} question", perf_counter() - start, "s", bound)
            page.wait_for_function(_ANSWERED, arg=turns)


def many_rows(browser: Any, folder: Path) -> Iterator[Measured]:
    workspace = scripted_workspace(folder, SCRIPT)
    with served(workspace) as address:
        page = open_page(browser.new_context(), address)
        for session in list(workspace._sessions.values()):
            session.settings = replace(session.settings, max_rows=ROWS)
        yield from _responsive(page, MANY, 0, f"{ROWS:,} rows")
        until(page, "#caption", f"{ROWS:,} rows")


def many_turns(browser: Any, folder: Path) -> Iterator[Measured]:
    workspace = scripted_workspace(folder, SCRIPT)
    writer = workspace.session("writer", "writer")
    for _ in range(TURNS):
        list(writer.ask(COUNT))
    with served(workspace) as address:
        page = open_page(browser.new_context(), address)
        side_tab(page, "Chats")
        start = perf_counter()
        choose_file(page, "#replay", writer.share())
        _shown(page, TURNS)
        yield Measured(f"opening {TURNS} turns", perf_counter() - start, "s")
        yield from _responsive(page, COUNT, TURNS, f"one more turn after {TURNS}")


def _shown(page: Any, turns: int) -> None:
    page.wait_for_function(f"() => document.querySelectorAll('#chat .user.message').length >= {turns}")


def _responsive(page: Any, question: str, turns: int, what: str) -> Iterator[Measured]:
    """Ask after so many turns: time to the answer, a key press afterwards, the longest that the page did not react."""
    page.evaluate(_WATCH)
    start = perf_counter()
    ask(page, question)
    _shown(page, turns + 1)
    page.wait_for_selector("#question [data-testid=submit-button]")
    yield Measured(f"{what}: time to the answer", perf_counter() - start, "s")
    start = perf_counter()
    page.type("#question textarea", "x")
    yield Measured(f"{what}: a key press afterwards", 1e3 * (perf_counter() - start), "ms", 200.0)
    yield Measured(f"{what}: longest that the page was busy", page.evaluate(_LONGEST), "ms")


def many_people(browser: Any, folder: Path) -> Iterator[Measured]:
    """Ten ask the embedded model at once. Right: the answer that each gets when nobody else is there."""
    workspace = embedded_workspace(folder)
    questions = starters(workspace.open_default().schema())
    alone = {question: _asked(workspace.session(question, "alone"), question) for question in questions}
    before_mib = _memory_mib()
    asked = [questions[i % len(questions)] for i in range(PEOPLE)]
    told: dict[int, tuple[str, float, float]] = {}

    def work(number: int, session: Session) -> None:
        told[number] = _asked(session, asked[number])

    sessions = [workspace.session(f"s{i}", f"user {i}") for i in range(PEOPLE)]
    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield Measured("one person alone: mean time to the answer", sum(a[2] for a in alone.values()) / len(alone), "s")
    yield Measured(f"{PEOPLE} at once: longest wait for the first token", max(t[1] for t in told.values()), "s")
    yield Measured(f"{PEOPLE} at once: longest time to the answer", max(t[2] for t in told.values()), "s")
    wrong = sum(told[i][0] != alone[question][0] for i, question in enumerate(asked))
    yield Measured(f"{PEOPLE} at once: answers that differ from those given alone", wrong, "", 0)
    yield Measured(f"{PEOPLE} at once: memory on top of {before_mib:,.0f} MiB", _memory_mib() - before_mib, "MiB")
    workspace.close()


def _asked(session: Session, question: str) -> tuple[str, float, float]:
    """Answer, seconds to the first token, seconds to the answer. The order of rows is left out where SQL leaves it open."""
    start, first_s = perf_counter(), 0.0
    for event in session.ask(question):
        if isinstance(event, Wrote) and not first_s:
            first_s = perf_counter() - start
    answer = session.view.turns[-1].answer
    if answer is None:
        return "", first_s, perf_counter() - start
    is_ordered = "ORDER BY" in answer["sql"].upper()
    rows = answer["rows"] if is_ordered else sorted(answer["rows"], key=str)
    return str((answer["sql"], rows)), first_s, perf_counter() - start


def _memory_mib() -> float:
    """The most that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


PARTS: dict[str, Callable[[Any, Path], Iterator[Measured]]] = {
    "sight": first_sight, "rows": many_rows, "turns": many_turns, "people": many_people
}  # fmt: skip


def main(wanted: list[str]) -> int:
    """Measure the wanted parts (all where none is named); 1 where a bound was missed."""
    load, missed = os.getloadavg()[0], False
    print(f"{os.cpu_count()} cores, load {load:.1f} before", flush=True)
    with open_browser() as browser:
        for name in wanted or PARTS:
            with TemporaryDirectory() as folder:
                for measured in PARTS[name](browser, Path(folder)):
                    print(measured, flush=True)
                    missed |= measured.bound is not None and measured.value > measured.bound
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
