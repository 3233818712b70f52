"""Judges an answer: how sure it is, and what is doubtful about it."""

import math
from typing import NotRequired, TypedDict

from agent.graph.doubt.calibration import Calibration
from agent.graph.doubt.features import CERTAIN, Features, features_of, signs
from agent.state import State
from tools.schema import Schema

GUESSED = math.log(CERTAIN + math.log(4))
"""The doubt of a text with a token that had a chance of one in four."""


class OtherReading(TypedDict):
    """Another query that the question may mean, and what it does in words."""

    sql: str
    words: str
    confidence: float
    votes: int  # how many of the other plans give these rows


class Judgement(TypedDict):
    """What is known of an answer's worth. confidence: None where the model was not calibrated. features: its reasons.

    probably_wrong: whether the confidence is so low that people are told. alternatives, votes: where others were looked for;
    votes: how many of the other plans give the answer's own rows.
    """

    confidence: float | None
    probably_wrong: bool
    doubts: list[str]
    features: Features
    alternatives: NotRequired[list[OtherReading]]
    votes: NotRequired[int]


def judge(state: State, schema: Schema, calibration: Calibration | None, compared: Features | None = None) -> Judgement:
    """The judgement on the SQL that ran. compared: what is known besides, where several readings were compared."""
    seen = signs(state, schema)
    features = features_of(state, schema, seen) | (compared or {})
    confidence = calibration.confidence(features) if calibration else None
    doubtful = calibration is not None and confidence is not None and confidence < calibration.doubtful_below
    doubts = [sign.sentence for sign in seen] + (_more_doubts(state, features) if doubtful else [])
    return Judgement(confidence=confidence, probably_wrong=doubtful, doubts=doubts, features=features)


def _more_doubts(state: State, features: Features) -> list[str]:
    """What else speaks against an answer that is doubtful in all."""
    found = []
    if features["empty"]:
        found.append("It found no rows.")
    if any(attempt["error"] for attempt in state["attempts"]):
        found.append("The first query failed.")
    if features["uncovered"] > 1 / 2:
        found.append("It uses less than half of what the question names.")
    if features.get("sql_doubt", -math.inf) > GUESSED:
        found.append("The model wavered between several readings.")
    return found
