"""Fits the verifier of readings on pools of candidates, and says what choosing by it is worth on others.

Collects what a verifier is fitted on: for each question the readings that the agent samples, and which of them are right.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from agent.assemble import LoadedModel
from agent.calibration import Vector, Verifier
from agent.context import OTHER_PLANS, AgentContext, AgentOptions
from agent.nodes.assess import SURER, RankedReading, query_summaries
from eval.accuracy.predict import AgentPredict, Watching, answered
from eval.accuracy.record import RecordLog, known_fields
from eval.accuracy.run import AccuracyBar, Scorer, fingerprint
from eval.accuracy.summary import auroc, paired_difference, trust
from eval.datasets.official import (
    HELD_OUT_DATABASES,
    WITHOUT_ROWS,
    DatasetError,
    Example,
    database_file,
    spider_questions,
    syn_questions,
)
from eval.scoring.spider_rules import SPIDER
from tools.result import Limits
from training.fit_confidence import bounds, held_out, logistic, newton, threshold

DIGITS = 4  # of a state that are kept
Seen = tuple[RankedReading, Vector]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A reading of a question. summary: `agent.calibration.summary` of its states, nothing if it was not read; votes:
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
    those on held-out databases are left out. Raises DatasetError."""
    questions = [
        Example(question.id, question.db_id, question.text, question.gold, database=file)
        for question in (*spider_questions(data), *syn_questions(data))
        if (file := database_file(data / "spider" / "database", question.db_id))
        and question.db_id not in (*HELD_OUT_DATABASES, *WITHOUT_ROWS)
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
    scorer = Scorer(SPIDER, "sqlite", timeout_s, 0)
    done, seen = {pool.id for pool in log.records}, dict[str, list[Seen]]()

    def watch(example: Example, toolbox: AgentContext, readings: Sequence[RankedReading]) -> None:
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


def _judged(reading: RankedReading, found: Vector, example: Example, scorer: Scorer) -> Candidate:
    return Candidate(
        sql=reading.state["sql"],
        right=scorer.verdict(example, reading.state["sql"]).correct,
        votes=reading.votes,
        confidence=reading.judgement["confidence"],
        summary=[round(float(each), DIGITS) for each in found],
    )


Matrix = npt.NDArray[np.float64]
PENALTY = 1000.0  # of the squared weights of standardised summaries


@dataclass(frozen=True, slots=True)
class Choice:
    """What choosing a candidate is worth. right: of n questions; won, lost: against the agent's own answer."""

    right: int
    won: int
    lost: int
    difference: float
    difference_ci95: tuple[float, float]


def fit(pools: Sequence[Pool], tap: int, look_below: float, margin: float, about: Mapping[str, Any]) -> Verifier:
    """Logistic regression on all candidates of the pools. Raises DatasetError if they are too few."""
    candidates = [each for pool in pools for each in pool.candidates if each.summary]
    right = np.array([each.right for each in candidates], np.float64)
    if len(set(right)) < 2:
        raise DatasetError("a verifier needs right and wrong candidates")
    rows: Matrix = np.array([each.summary for each in candidates])
    means, scales = rows.mean(0), rows.std(0)
    scales[scales == 0] = 1.0
    bias, *weights = newton((rows - means) / scales, right, PENALTY)
    scaled = np.array(weights) / scales
    return Verifier(tap, scaled.astype(np.float32), float(bias - scaled @ means), look_below, margin, about=about)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A verifier that knows how often its choices are right. trusted: the figures of the confidences of all answers, those of
    chosen ones cross-validated by database; answer_from: `fit_confidence.bounds` of the same."""

    verifier: Verifier
    trusted: Mapping[str, Any]
    answer_from: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Chosen:
    """An answer that was chosen after a second look, with its `Verifier.features`."""

    db_id: str
    features: Mapping[str, float]
    correct: bool


def calibrated(verifier: Verifier, pools: Sequence[Pool]) -> Calibrated:
    """With the calibration of the answers that the verifier chooses from pools which it was not fitted on (Platt 1999).

    Raises DatasetError if the pools have too few answers that are looked at again.
    """
    sure, chosen = list[Candidate](), list[Chosen]()
    for pool in filter(lambda pool: pool.candidates, pools):
        if _is_doubtful(pool.candidates[0], verifier.look_below):
            chosen.append(_chosen(pool, verifier))
        else:
            sure.append(pool.candidates[0])
    databases = sorted({each.db_id for each in chosen})
    if len(databases) < 2 or len({each.correct for each in chosen}) < 2:
        raise DatasetError("a calibration needs right and wrong answers that are doubtful, on two databases at least")
    doubtful = held_out(chosen, databases)
    below = threshold(doubtful)
    judged = [*doubtful, *((_confidence(each), each.right) for each in sure)]
    headed = [confidence < below for confidence, _ in doubtful] + [False] * len(sure)
    made = replace(verifier, calibration=logistic(chosen, below))
    return Calibrated(made, trust(judged, headed) or {}, bounds(judged))


def _chosen(pool: Pool, verifier: Verifier) -> Chosen:
    best = _by_verifier(pool.candidates, verifier)
    return Chosen(pool.db_id, verifier.features(_summary(best), _confidence(best), best.votes), best.right)


def figures(pools: Sequence[Pool], verifier: Verifier) -> dict[str, Any]:
    """What the verifier is worth on pools, as the agent uses it, and what the confidence alone is worth there."""
    known = [pool.candidates for pool in pools if pool.candidates]
    every = [each for own in known for each in own]
    read = [each for each in every if each.summary]
    return {
        "questions": len(known),
        "candidates": len(every),
        "own_answer_right": sum(own[0].right for own in known),
        "some_candidate_right": sum(any(each.right for each in own) for own in known),
        "auroc": auroc([(verifier.log_odds(_summary(each)), each.right) for each in read]),
        "looked_at": sum(_is_doubtful(own[0], verifier.look_below) for own in known),
        "by_confidence": asdict(_choice(known, [_surest(own, verifier.look_below) for own in known])),
        "by_verifier": asdict(_choice(known, [_by_verifier(own, verifier) for own in known])),
    }


def _by_verifier(own: Sequence[Candidate], verifier: Verifier) -> Candidate:
    """The candidate that the agent answers with."""
    if not _is_doubtful(own[0], verifier.look_below):
        return own[0]
    best = max(own, key=lambda each: _worth(each, verifier))
    return best if _worth(best, verifier) > _worth(own[0], verifier) + verifier.margin else own[0]


def _surest(own: Sequence[Candidate], look_below: float) -> Candidate:
    """The candidate that the agent answers with where there is no verifier."""
    if not _is_doubtful(own[0], look_below):
        return own[0]
    best = max(own, key=_confidence)
    return best if _confidence(best) > _confidence(own[0]) + SURER else own[0]


def _confidence(candidate: Candidate) -> float:
    return candidate.confidence or 0.0


def _is_doubtful(candidate: Candidate, look_below: float) -> bool:
    return candidate.confidence is not None and candidate.confidence < look_below


def _worth(candidate: Candidate, verifier: Verifier) -> float:
    return verifier.worth(_summary(candidate), _confidence(candidate))


def _summary(candidate: Candidate) -> Vector:
    return np.array(candidate.summary, np.float32)


def _choice(known: Sequence[Sequence[Candidate]], chosen: Sequence[Candidate]) -> Choice:
    pairs = [(each.right, own[0].right) for each, own in zip(chosen, known, strict=True)]
    difference, low, high = paired_difference(pairs)
    won, lost = sum(now and not before for now, before in pairs), sum(before and not now for now, before in pairs)
    return Choice(sum(now for now, _ in pairs), won, lost, difference, (low, high))
