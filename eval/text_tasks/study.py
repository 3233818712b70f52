"""Lets a model solve tasks with several decoders, and judges what it wrote."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Self

from decoding.serving.text_decoder import Settings, TextDecoder
from eval.accuracy.summary import wilson_95
from eval.predict.record import RecordLog, known_fields
from eval.text_tasks.tasks import Task


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
    settings: Settings,
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


def _solved(decoder: TextDecoder, task: Task, methods: Sequence[str], settings: Settings, continues: bool) -> Solved:
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
