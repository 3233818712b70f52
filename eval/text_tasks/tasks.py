"""HumanEval (arXiv 2107.03374) and GSM8K (arXiv 2110.14168) from their published files: how a task is put, and judged."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from eval.datasets.official import DatasetError
from eval.text_tasks.run_program import Ending, run_program

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
