"""Lets hints deserve trust: what the answer needs and linking misses becomes a link, with a given probability."""

from collections.abc import Sequence
from random import Random

from agent.prompts.plan_format import Plan
from agent.prompts.profiles.compact_text import LeastScores
from tools.linking.link_schema import Link
from tools.schema import Schema


def with_gold(links: Sequence[Link], plan: Plan, schema: Schema, share: float, rng: Random) -> tuple[Link, ...]:
    """The links, best first, with a share of the plan's tables and columns that have too low a score to be hints. They get
    any score between the least of a hint and the best; wrong links keep theirs."""
    if not share:
        return tuple(links)
    needed: set[tuple[str, str | None]] = {(table.name, None) for table in plan.tables}
    needed |= {(table.name, column) for table in plan.tables for column in table.columns}
    scores, best = LeastScores(schema), max((link.score for link in links), default=1.0)
    raised = {
        place: rng.uniform(least, max(best, least))
        for place in sorted(needed, key=str)
        for least in [scores.of(*place)]
        if rng.random() < share
    }
    kept = [link for link in links if link.score >= raised.get((link.table, link.column), 0.0)]
    known = {(link.table, link.column) for link in kept}
    kept += [Link(*place, round(score, 4)) for place, score in raised.items() if place not in known]
    return tuple(sorted(kept, key=lambda link: -link.score))
