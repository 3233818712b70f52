"""Hints of the answer in training data: as often as asked, beside the wrong ones, and never of anything else."""

from random import Random

from agent.prompts.compact import hints
from agent.prompts.plan_format import Plan, PlannedTable
from tools.linking.link_schema import Link
from tools.schema import Column, Schema, Table
from training.data.examples import with_gold

SCHEMA = Schema((Table("dog", (Column("id", "INT", True), Column("age", "INT"), Column("name", "TEXT"))),), "sqlite")
LINKS = (Link("dog", "name", 1.3), Link("dog", None, 0.4), Link("dog", "age", 0.2))
PLAN = Plan((PlannedTable("dog", ("age",)),), "SELECT _ FROM _")


def test_a_share_of_what_linking_misses_is_hinted() -> None:
    assert with_gold(LINKS, PLAN, SCHEMA, 0.0, Random(0)) == LINKS
    assert hints(LINKS, SCHEMA) == "dog: name"
    made = [hints(with_gold(LINKS, PLAN, SCHEMA, 0.6, Random(seed)), SCHEMA) for seed in range(500)]
    assert all("name" in hint and "id" not in hint for hint in made)  # the wrong hint stays, and no other comes
    assert 0.54 < sum("age" in hint for hint in made) / 500 < 0.66


def test_every_hint_of_the_answer_with_share_one_and_the_same_for_a_seed() -> None:
    once, again = (with_gold(LINKS, PLAN, SCHEMA, 1.0, Random(7)) for _ in range(2))
    assert once == again and {link.column for link in once if link.score >= 0.8} == {None, "age", "name"}
    assert list(once) == sorted(once, key=lambda link: -link.score) and len(once) == len(LINKS)
