"""HumanEval (arXiv 2107.03374) and GSM8K (arXiv 2110.14168): tasks, programs that are run, and the study of several decoders.

A program that a model wrote runs in a process of its own, under two locks: the kernel's (limits, and where the system allows it
a network namespace without a network) and Python's audit events (PEP 578), which refuse files, sockets, processes and native
code. Neither makes it safe to run what an attacker wrote with care; the programs of a benchmark are mistakes at worst.
"""

import json
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Self

from decoding.serving.text_decoder import SamplingParams, TextDecoder
from eval.accuracy.record import RecordLog, known_fields
from eval.accuracy.summary import wilson_95
from eval.datasets.official import DatasetError

CHILD = Path(__file__).with_name("program_process.py")
MEMORY_MB = 1024  # of a program
MOST_OUTPUT = 2000  # characters of the error that are kept


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended; `said`: its error, on one line."""

    kind: Literal["passed", "failed", "timed out"]
    said: str = ""


def run_program(program: str, timeout_s: float) -> Ending:
    """Run a program to its end. It has passed if its last line was reached without an error."""
    word = secrets.token_hex(16)
    command = [sys.executable, "-I", "-S", "-B", str(CHILD), str(MEMORY_MB), str(int(timeout_s) + 1)]
    with tempfile.TemporaryDirectory() as empty:
        try:
            done = subprocess.run(
                command,
                input=f"{word}\n{program}".encode(errors="surrogatepass"),
                capture_output=True,
                cwd=empty,
                env={},
                timeout=timeout_s,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return Ending("timed out", f"after {timeout_s:g} s")
    if done.stdout.rstrip().endswith(word.encode()):
        return Ending("passed")
    error = done.stderr.decode(errors="replace")[-MOST_OUTPUT:].strip()
    return Ending("failed", error.splitlines()[-1][:200] if error else f"exit code {done.returncode}")


TIMEOUT_S = 10.0
_CODE = re.compile(r"```[a-zA-Z]*\n(.*?)(?:```|\Z)", re.DOTALL)
_NUMBER = re.compile(r"-?\$?-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`why`: what is wrong with a wrong answer, in a few words."""

    right: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """`chat`: what a chat model is asked. `start`: what a base model continues, up to one of `stop`."""

    id: str
    chat: str
    start: str
    stop: tuple[str, ...]
    judge: Callable[[str, bool], Verdict]
    """(text, whether it continues `start`) -> verdict."""


def human_eval(entry: Mapping[str, Any]) -> Task:
    """A function to complete, judged by its tests. Raises KeyError."""
    start, name, tests = (str(entry[key]) for key in ("prompt", "entry_point", "test"))

    def judge(text: str, continues: bool) -> Verdict:
        code = start + text if continues else whole_function(text, start, name)
        ending = run_program(f"{code}\n\n{tests}\n\ncheck({name})\n", TIMEOUT_S)
        return Verdict(ending.kind == "passed", said(ending))

    chat = f"Complete this Python function. Answer with the whole function in one code block.\n\n```python\n{start}```"
    return Task(
        entry["task_id"], chat, start, ("\ndef ", "\nclass ", "\nif __name__", "\nprint(", "\n#", "\n```"), judge
    )


def whole_function(text: str, start: str, name: str) -> str:
    """The program in a chat model's answer: its first code block that defines the function, or the text, after the imports of
    the task; a text that does not define it continues the task."""
    blocks: list[str] = [*_CODE.findall(text), text]
    defined = next((block for block in blocks if re.search(rf"^def {re.escape(name)}\b", block, re.MULTILINE)), None)
    if defined is None:
        return start + blocks[0]
    return start[: start.rindex(f"def {name}")] + defined


def said(ending: Ending) -> str:
    """How a program ended, in a few words."""
    return "" if ending.kind == "passed" else f"{ending.kind}: {ending.said}" if ending.said else ending.kind


def gsm8k(number: int, entry: Mapping[str, Any]) -> Task:
    """A problem in words, judged by its last number. Raises KeyError and ValueError."""
    wanted = amount(entry["answer"].rpartition("####")[2])
    if wanted is None:
        raise ValueError("no number after ####")

    def judge(text: str, continues: bool) -> Verdict:
        found = final_amount(text)
        return Verdict(found == wanted, "" if found == wanted else f"{found} instead of {wanted}")

    question = entry["question"]
    chat = f"{question}\n\nThink step by step, and end with a line that has #### and the number alone."
    return Task(f"GSM8K/{number}", chat, f"Question: {question}\nAnswer:", ("\nQuestion:",), judge)


def final_amount(text: str) -> Decimal | None:
    """The number after the first ####, or else the last one of the text."""
    _, marked, after = text.partition("####")
    if marked and (found := amount(after.split("\n")[0])) is not None:
        return found
    numbers = _NUMBER.findall(text)
    return amount(numbers[-1]) if numbers else None


def amount(text: str) -> Decimal | None:
    """The first number in a text: 1,000 and $1000.00 are the same."""
    found = _NUMBER.search(text)
    try:
        return Decimal(re.sub(r"[$,]", "", found[0])).normalize() if found else None
    except InvalidOperation:
        return None


def read_tasks(kind: str, file: Path, limit: int | None = None) -> list[Task]:
    """The tasks of a published file, at most `limit`, evenly spaced. Raises DatasetError."""
    try:
        entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        tasks = [human_eval(each) if kind == "humaneval" else gsm8k(n, each) for n, each in enumerate(entries)]
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"cannot read {file}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        wanted = "HumanEval (task_id, prompt, entry_point, test)" if kind == "humaneval" else "GSM8K (question, answer)"
        raise DatasetError(f"{file} is no file of {wanted}, as JSON Lines") from error
    if not tasks:
        raise DatasetError(f"{file} holds no task")
    return spaced(tasks, limit or len(tasks))


def spaced(tasks: Sequence[Task], most: int) -> list[Task]:
    """At most so many, evenly spaced."""
    most = min(most, len(tasks))
    return [tasks[place * len(tasks) // most] for place in range(most)]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A task's text under a decoder. `equal`: to the first decoder's. wall_ms: with the prompt in the prefix cache."""

    decoder: str
    tokens: int
    target_forwards: int
    plain_forwards: int
    wall_ms: float
    equal: bool


@dataclass(frozen=True, slots=True)
class Solved:
    """A line of records.jsonl. `text` and its verdict are the first decoder's."""

    id: str
    text: str
    finish: str
    right: bool
    why: str
    runs: tuple[Decoded, ...]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The record in a line. Raises KeyError for a missing field."""
        return cls(**known_fields(cls, values) | {"runs": tuple(Decoded(**run) for run in values["runs"])})


def solve_all(
    decoder: TextDecoder,
    tasks: Sequence[Task],
    methods: Sequence[str],
    settings: SamplingParams,
    continues: bool,
    out: Path,
    asked: Mapping[str, Any],
    say: Callable[[str], None],
) -> list[Solved]:
    """Every task's record, written to `out` as it comes; an interrupted run there goes on.

    `asked`: what the records depend on besides, as JSON values. `continues`: as a base model, which is given the start of the
    text instead of a chat. Raises ResumeError, UnsupportedModel.
    """
    log = RecordLog(out, {**asked, "methods": list(methods), "tasks": [task.id for task in tasks]}, Solved)
    try:
        done = {record.id for record in log.records}
        for number, task in enumerate(tasks, 1):
            if task.id not in done:
                log.append(_solved(decoder, task, methods, settings, continues))
            right = sum(record.right for record in log.records)
            say(f"{number} of {len(tasks)}: {right} right")
        return log.in_order([task.id for task in tasks])
    finally:
        log.close()


def _solved(
    decoder: TextDecoder, task: Task, methods: Sequence[str], settings: SamplingParams, continues: bool
) -> Solved:
    prompt = task.start if continues else decoder.tokenizer.chat([{"role": "user", "content": task.chat}])
    settings = replace(settings, stop=task.stop if continues else ())
    decoder.generate(
        prompt, replace(settings, decoder="plain", options={}, max_new_tokens=1)
    )  # so that no one computes it
    first, runs = None, list[Decoded]()
    for method in methods:
        start = perf_counter()
        done = decoder.generate(prompt, replace(settings, decoder=method, options={}))
        wall_ms = 1e3 * (perf_counter() - start)
        first = first or done
        totals = done.metrics
        equal = done.text == first.text
        runs.append(Decoded(method, len(done.tokens), totals.target_forwards, totals.plain_forwards, wall_ms, equal))
    assert first is not None
    verdict = task.judge(first.text, continues)
    return Solved(task.id, first.text, first.finish, verdict.right, verdict.why, tuple(runs))


def summary(records: Sequence[Solved]) -> dict[str, Any]:
    """Accuracy with its interval, and a row for each decoder; the first one is what speeds are compared with."""
    right = sum(record.right for record in records)
    return {
        "n": len(records),
        "pass_at_1": right / len(records),
        "pass_at_1_ci95": wilson_95(right, len(records)),
        "cut_off": sum(record.finish == "length" for record in records),
        "rows": list(_rows(records)),
    }


def _rows(records: Sequence[Solved]) -> Iterator[dict[str, Any]]:
    names = [run.decoder for run in records[0].runs]
    by_name = {name: [record.runs[place] for record in records] for place, name in enumerate(names)}
    base_ms = sum(run.wall_ms for run in by_name[names[0]])
    for name, runs in by_name.items():
        forwards, tokens = sum(run.target_forwards for run in runs), sum(run.tokens for run in runs)
        wall_ms = sum(run.wall_ms for run in runs)
        yield {
            "decoder": name,
            "fewer_forwards": sum(run.plain_forwards for run in runs) / forwards,
            "tokens": tokens,
            "tokens_per_s": 1e3 * tokens / wall_ms,
            "times_first": base_ms / wall_ms,
            "equal": sum(run.equal for run in runs),
        }


def write_summary(out: Path, found: Mapping[str, Any]) -> None:
    """Write summary.json."""
    (out / "summary.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
