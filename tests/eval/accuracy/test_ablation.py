"""The ablation's rows: one part more each time, and figures that are those of the records."""

from dataclasses import fields
from itertools import pairwise

import pytest

from agent.graph.toolbox import AgentOptions
from eval.accuracy.ablation import BARE, Row, markdown, stages


def test_each_row_has_one_part_more_and_the_last_two_are_the_default_without_and_with_votes() -> None:
    rows = stages("auto", AgentOptions(), samples=4)
    assert [row.adapter for row in rows] == ["none", *["auto"] * (len(rows) - 1)]
    for before, row in pairwise(rows[1:]):
        changed = {
            f.name for f in fields(AgentOptions) if getattr(before.options, f.name) != getattr(row.options, f.name)
        }
        assert len(changed) == 1 or changed == {"max_attempts", "refine_empty"}
    assert [row.options for row in rows[-2:]] == [AgentOptions(), AgentOptions(samples=4)]
    off = {f.name for f in fields(AgentOptions) if getattr(BARE, f.name) != getattr(AgentOptions(), f.name)}
    assert off == {"max_attempts", "constrain", "values", "hints", "repair", "mends"}


def test_a_part_that_is_off_by_default_has_no_row() -> None:
    names = [row.name for row in stages("auto", AgentOptions(hints=False), samples=1)]
    assert "+ linking" not in names and "+ 1 votes" not in names and "+ refine" in names


@pytest.mark.parametrize(("gain", "shown"), [(None, "|  |  |"), (0.05, "| +5.0 | -1.0 to +11.0 |")])
def test_the_table_shows_percent(gain: float | None, shown: str) -> None:
    row = Row("+ grammar", 40, 0.4, [0.26, 0.55], gain, (-0.01, 0.11) if gain else None, 0.005, 1.234)
    last = markdown([row]).splitlines()[-1]
    assert shown in last and "| 40.0 % | 26.0 to 55.0 |" in last and last.endswith("| 0.5 % | 1.23 |")
