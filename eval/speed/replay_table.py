"""Computes the table of `bench methods` from its records: rows, accuracy with paired differences, Markdown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise, product, zip_longest
from typing import Any

from eval.accuracy.summary import paired_difference, wilson_95
from eval.speed.replay import PLAIN, Asked, Measured

ALL = "all"
THIRDS = ("shortest third", "middle third", "longest third")
Part = Callable[[Measured], bool]
"""Whether a text is one of those that a row is about."""


@dataclass(frozen=True, slots=True)
class Row:
    """A checkpoint and a method, over all texts or a part of them. Figures are ratios of sums over the texts.

    part: a step of the agent, a third of the texts by the length that plain decoding gives them, or `ALL`.
    tokens_per_forward: committed tokens / forwards, without forced tokens. fewer_forwards: forwards of plain decoding with
    the same checkpoint / forwards of this method. Under a grammar, the latter is the fairer of the two, since a method may
    have to guess tokens that the grammar gives plain decoding for free. speedup: over plain decoding with the same
    checkpoint, without prefill; speedup_with_prefill: with the agent's own prefill time added to both. speedup_vs_first:
    tokens/s relative to plain decoding with the first checkpoint, 0 where that wrote nothing. widest_gap: over the
    texts that are not equal (`eval.speed.replay`). nodes_per_forward: drafted tokens that a forward verifies. draft_ms,
    target_ms, verify_ms: per forward. acceptance_by_depth: from depth 1, the share of the rounds that drafted to a depth and
    accepted a token there.
    """

    checkpoint: str
    method: str
    part: str
    texts: int
    tokens: int
    forced_tokens: int
    forwards: int
    tokens_per_forward: float
    fewer_forwards: float
    tokens_per_s: float
    speedup: float
    speedup_with_prefill: float
    speedup_vs_first: float
    equal: int  # number of texts equal to plain decoding's
    widest_gap: float
    nodes_per_forward: float
    draft_ms: float
    target_ms: float
    verify_ms: float
    acceptance_by_depth: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A checkpoint's execution accuracy and its paired difference to the first checkpoint's, with 95 % intervals."""

    checkpoint: str
    scored: int
    ex: float
    ex_ci95: list[float] | None
    difference: float | None  # None for the first checkpoint itself
    difference_ci95: tuple[float, float] | None


def rows(records: Sequence[Asked], parts: Mapping[str, Part] | None = None) -> list[Row]:
    """The rows in the order of checkpoints and methods in the records, for each part by its name; None: of all texts."""
    checkpoints = list(dict.fromkeys(record.checkpoint for record in records))
    runs = {
        name: [run for record in records if record.checkpoint == name for run in record.runs] for name in checkpoints
    }
    methods = sorted(
        dict.fromkeys(run.method for own in runs.values() for run in own), key=lambda name: name != PLAIN.name
    )
    found = []
    for part, holds in ({ALL: lambda run: True} if parts is None else parts).items():
        held = {name: [run for run in own if holds(run)] for name, own in runs.items()}
        for name, method in product(checkpoints, methods):
            if _of(held[name], method):
                found.append(_row(name, method, part, held[name], held[checkpoints[0]]))
    return found


def by_step(records: Sequence[Asked]) -> dict[str, Part]:
    """The agent's steps, in the order of the records."""
    seen = dict.fromkeys(run.step for record in records for run in record.runs)
    return {step: partial(_is_of_step, step) for step in seen}


def by_length(records: Sequence[Asked]) -> dict[str, Part]:
    """Thirds of the texts by their tokens; texts of one length stay together. Nothing for fewer than three texts."""
    lengths = sorted(run.text_tokens for record in records for run in _of(record.runs, PLAIN.name))
    if len(lengths) < len(THIRDS):
        return {}
    bounds = [0, *(lengths[len(lengths) * part // len(THIRDS)] for part in (1, 2)), lengths[-1] + 1]
    return {name: partial(_is_long, *ends) for name, ends in zip(THIRDS, pairwise(bounds), strict=True)}


def _is_of_step(step: str, run: Measured) -> bool:
    return run.step == step


def _is_long(least: int, below: int, run: Measured) -> bool:
    return least <= run.text_tokens < below


def _of(runs: Iterable[Measured], method: str) -> list[Measured]:
    return [run for run in runs if run.method == method]


def _row(checkpoint: str, method: str, part: str, runs: Sequence[Measured], first: Sequence[Measured]) -> Row:
    """runs, first: those of the part, of this checkpoint and of the first one."""
    own, plain = _of(runs, method), _of(runs, PLAIN.name)
    tokens, forwards = sum(run.tokens for run in own), sum(run.forwards for run in own)
    wall_ms, plain_ms = (sum(run.wall_ms for run in each) for each in (own, plain))
    prefill_ms = sum(run.prefill_ms for run in own)
    return Row(
        checkpoint=checkpoint,
        method=method,
        part=part,
        texts=len(own),
        tokens=tokens,
        forced_tokens=sum(run.forced_tokens for run in own),
        forwards=forwards,
        tokens_per_forward=tokens / forwards,
        fewer_forwards=sum(run.forwards for run in plain) / forwards,
        tokens_per_s=_tokens_per_s(own),
        speedup=plain_ms / wall_ms,
        speedup_with_prefill=(prefill_ms + plain_ms) / (prefill_ms + wall_ms),
        speedup_vs_first=_tokens_per_s(own) / (_tokens_per_s(_of(first, PLAIN.name)) or float("inf")),
        equal=sum(run.equal for run in own),
        widest_gap=max(run.gap for run in own),
        nodes_per_forward=sum(run.drafted_tokens for run in own) / forwards,
        draft_ms=sum(run.draft_ms for run in own) / forwards,
        target_ms=sum(run.target_ms for run in own) / forwards,
        verify_ms=sum(run.verify_ms for run in own) / forwards,
        acceptance_by_depth=_by_depth(own),
    )


def _by_depth(runs: Sequence[Measured]) -> tuple[float, ...]:
    drafted = map(sum, zip_longest(*(run.drafted_rounds for run in runs), fillvalue=0))
    accepted = map(sum, zip_longest(*(run.accepted_rounds for run in runs), fillvalue=0))
    return tuple(a / d for a, d in zip(accepted, drafted, strict=True))


def _tokens_per_s(runs: Sequence[Measured]) -> float:
    return 1e3 * sum(run.text_tokens for run in runs) / (sum(run.wall_ms for run in runs) or 1.0)


def accuracies(records: Sequence[Asked]) -> list[Accuracy]:
    """The accuracy of every checkpoint, in order. Differences are over the questions with a verdict for both."""
    verdicts: dict[str, dict[str, bool]] = {}
    for record in records:
        own = verdicts.setdefault(record.checkpoint, {})
        if record.correct is not None:
            own[record.question] = record.correct
    first = next(iter(verdicts.values()), {})
    found = []
    for name, own in verdicts.items():
        difference = None
        if own is not first:
            difference = paired_difference([(own[key], first[key]) for key in own.keys() & first.keys()])
        hits, n = sum(own.values()), len(own)
        interval = (difference[1], difference[2]) if difference else None
        found.append(
            Accuracy(name, n, hits / n if n else 0.0, wilson_95(hits, n), difference and difference[0], interval)
        )
    return found


def to_dict(records: Sequence[Asked], extra_parameters: Mapping[str, int]) -> dict[str, Any]:
    """What summary.json holds. `extra_parameters`: by method."""
    return {
        "extra_parameters": dict(extra_parameters),
        "accuracy": [asdict(each) for each in accuracies(records)],
        "rows": [asdict(row) for row in rows(records)],
        "by_step": [asdict(row) for row in rows(records, by_step(records))],
        "by_length": [asdict(row) for row in rows(records, by_length(records))],
    }


def markdown(summary: Mapping[str, Any]) -> str:
    """The tables of `to_dict` as Markdown."""
    shown = {
        "checkpoint": "checkpoint",
        "method": "method",
        "fewer fwd": "fewer_forwards",
        "x plain": "speedup",
        "tok/fwd": "tokens_per_forward",
        "nodes/fwd": "nodes_per_forward",
        "draft ms": "draft_ms",
        "target ms": "target_ms",
        "verify ms": "verify_ms",
        "tok/s": "tokens_per_s",
        "with prefill": "speedup_with_prefill",
        "x first plain": "speedup_vs_first",
        "equal": "equal",
        "widest gap": "widest_gap",
        "texts": "texts",
    }
    accuracy = [
        [each["checkpoint"], each["scored"], _percent(each["ex"]), _interval(each["ex_ci95"]),
         _percent(each["difference"]), _interval(each["difference_ci95"])]
        for each in summary["accuracy"]
    ]  # fmt: skip
    head = ["checkpoint", "n", "EX %", "95 %", "to the first, points", "95 %"]
    lines = [_cells(row, shown.values()) for row in summary["rows"]]
    in_parts = [[row["part"], *_cells(row, shown.values())] for row in [*summary["by_step"], *summary["by_length"]]]
    depths = [
        [row["checkpoint"], row["method"], f"{summary['extra_parameters'].get(row['method'], 0):,}",
         " ".join(f"{share:.2f}" for share in row["acceptance_by_depth"])]
        for row in summary["rows"] if row["method"] != PLAIN.name
    ]  # fmt: skip
    parts = [
        _table(head, accuracy),
        _table(list(shown), lines),
        _table(["checkpoint", "method", "extra parameters", "accepted at depth 1, 2, ..."], depths),
        _table(["part", *shown], in_parts),
    ]
    return "\n".join(parts)


def _cells(row: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    return [row[name] for name in names]


def _table(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    shown = [[f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *shown])


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _interval(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f}"
