"""Collects what a verifier is fitted on: for each question the readings that the agent samples, and which of them are right."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Self

from agent.assemble import LoadedModel
from agent.graph.doubt.doubt_node import Reading
from agent.graph.doubt.query_states import query_summaries
from agent.graph.doubt.verifier import Vector
from agent.graph.toolbox import OTHER_PLANS, AgentOptions, Toolbox
from eval.accuracy.accuracy_bar import AccuracyBar
from eval.accuracy.run import Scorer, fingerprint
from eval.datasets.golds.sources import HELD_BACK, WITHOUT_ROWS, spider_questions, syn_questions
from eval.datasets.official import Example, database_file
from eval.predict.agent_predict import AgentPredict, Watching
from eval.predict.asking import answered
from eval.predict.record import RecordLog, known_fields
from eval.scoring.spider.spider_rules import SPIDER
from tools.result import Limits

DIGITS = 4  # of a state that are kept
Seen = tuple[Reading, Vector]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A reading of a question. summary: `agent.graph.doubt.verifier.summary` of its states, nothing if it was not read; votes:
    how many of the other plans give its rows.
    """

    sql: str
    right: bool
    votes: int
    confidence: float | None
    summary: list[float]


@dataclass(frozen=True, slots=True)
class Pool:
    """One line of records.jsonl: the readings of a question with different rows, the agent's own answer first. An answer that
    was not doubtful is the only one.
    """

    id: str
    db_id: str
    candidates: list[Candidate]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The pool in a line. Raises KeyError."""
        known = known_fields(cls, values)
        return cls(**known | {"candidates": [Candidate(**each) for each in known["candidates"]]})


def training_examples(data: Path, per_database: int, seed: int = 0) -> list[Example]:
    """At most `per_database` questions of Spider and Spider-Syn on each training database that has rows, drawn at random;
    those on held-back databases are left out. Raises DatasetError."""
    questions = [
        Example(question.id, question.db_id, question.text, question.gold, database=file)
        for question in (*spider_questions(data), *syn_questions(data))
        if (file := database_file(data / "spider" / "database", question.db_id))
        and question.db_id not in (*HELD_BACK, *WITHOUT_ROWS)
    ]
    Random(seed).shuffle(questions)
    by_database: dict[str, list[Example]] = defaultdict(list)
    for question in questions:
        by_database[question.db_id].append(question)
    return [example for _, own in sorted(by_database.items()) for example in own[:per_database]]


def collect(
    examples: Sequence[Example],
    model: LoadedModel,
    tap: int,
    out: Path,
    settings: Mapping[str, Any],
    *,
    look_below: float = 1.0,
    plans: int = OTHER_PLANS,
    at_once: int = 1,
    timeout_s: float = 30.0,
    progress: bool = True,
) -> list[Pool]:
    """Ask every example that has no record in `out` and record its pool; returns all of them.

    `plans` other plans are written where the confidence is below `look_below`.

    A question to which there is no answer, or one that a rule gave, has an empty pool. Raises ResumeError if `out` holds
    another run.
    """
    log = RecordLog(
        out,
        {**settings, "tap": tap, "look_below": look_below, "plans": plans, "questions": fingerprint(examples)},
        Pool,
    )
    scorer = Scorer(SPIDER, "sqlite", None, timeout_s, 0)
    done, seen = {pool.id for pool in log.records}, dict[str, list[Seen]]()

    def watch(example: Example, toolbox: Toolbox, readings: Sequence[Reading]) -> None:
        summaries = query_summaries([one.state for one in readings], toolbox, tap)
        seen[example.id] = list(zip(readings, summaries, strict=True))

    watching, limits = Watching(watch, look_below, plans), Limits(deadline_s=timeout_s)
    ask = AgentPredict(lambda: model, "sqlite", AgentOptions(), limits, watching=watching)
    try:
        with AccuracyBar(len(examples), progress) as bar:
            for example, prediction in answered([[one] for one in examples if one.id not in done], ask, at_once):
                judged = [_judged(one, found, example, scorer) for one, found in seen.pop(example.id, [])]
                if not judged and prediction and prediction.confidence is not None:
                    right = scorer.verdict(example, prediction.sql).correct
                    judged = [Candidate(prediction.sql, right, 0, prediction.confidence, [])]
                log.append(Pool(example.id, example.db_id, judged))
                bar.show(len(log.records), [pool.candidates[0].right for pool in log.records if pool.candidates])
    finally:
        ask.close()
        log.close()
        scorer.close()
    return log.records


def _judged(reading: Reading, found: Vector, example: Example, scorer: Scorer) -> Candidate:
    return Candidate(
        sql=reading.state["sql"],
        right=scorer.verdict(example, reading.state["sql"]).correct,
        votes=reading.votes,
        confidence=reading.judgement["confidence"],
        summary=[round(float(each), DIGITS) for each in found],
    )
