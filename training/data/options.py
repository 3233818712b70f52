"""The options of a build of training data, and the count of what it made and left out.

Counts what a build made, and what it left out and why.

The options of a build, and what its parts are made from.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agent.prompts.compact import Compact
from tools.schema import Table
from training.data.examples import Manner
from training.packs.groups import Group
from training.variants.mistakes import Synonyms


@dataclass(slots=True)
class Tally:
    """Counts of `golds` by outcome, `pairs` by "source step", `tokens` by source, and `left_out` by reason.

    A second question counts as "source follow-up kind step", without "follow-up" if no history is shown.
    """

    golds: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def count_tokens(self, groups: Iterable[Group], count: Callable[[str], int]) -> None:
        """Add the tokens that a trainer feeds: a schema once for its group, as "schemas", and what pairs of one id share once.

        A pair counts for its source, the first part of its id.
        """
        for group in groups:
            self.tokens["schemas"] += count(group.prefix)
            before = ("", "")  # the id of the former pair, and its text
            for pair in group.pairs:
                known = before[1] if before[0] == pair.id and pair.prompt.startswith(before[1]) else ""
                self.tokens[pair.id.split("/")[0]] += count(pair.prompt.removeprefix(known) + pair.answer)
                before = (pair.id, pair.prompt + pair.answer)


CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Options:
    """variants: passes over the questions under new names, in addition to the original names; 0.5 is half of the questions.

    per_schema: questions that share one new schema; about as many as fit in one pack of the trainer.
    originals: share of questions that are also asked under the original names.
    queries: share of questions for which SQL is asked in addition to the plan, which is harder to learn.
    refine: share of questions that get a correction. follow_ups: share that get a second question (`training.data.parts`).
    gold_hints: see `Manner`.
    authored: folder of authored data (`eval.datasets.official`), whose questions are asked under their own names, and whose
    paraphrases of the other questions are added; "": none.
    databases: only these databases; all if empty.
    spider, spider_syn, bird: share of each source's questions. All held-out questions are kept, under the original names.
    wikisql: passes over WikiSQL's questions, each on newly invented schemas. wikisql_queries: share that asks for SQL, too.
    tables, sets, superlatives, conditions, blanks, amounts, times: share of what the templates of that kind make
    (`eval.datasets.templates`).
    jobs: processes that build at the same time; the files are the same for any number.
    """

    seed: int = 0
    variants: float = 3.0
    per_schema: int = 8
    originals: float = 1.0
    spider: float = 1.0
    spider_syn: float = 1.0
    bird: float = 1.0
    queries: float = 1.0
    refine: float = 0.3
    follow_ups: float = 0.3
    wikisql: float = 1.0
    wikisql_queries: float = 0.15
    tables: float = 0.5
    sets: float = 0.5
    superlatives: float = 0.5
    conditions: float = 0.5
    blanks: float = 0.25
    amounts: float = 0.5
    times: float = 0.5
    gold_hints: float = 0.6
    authored: str = ""
    databases: tuple[str, ...] = ()
    jobs: int = 1


@dataclass(frozen=True, slots=True)
class Material:
    """What the parts of all databases are made from."""

    data: Path
    options: Options
    guests: tuple[Table, ...]
    synonyms: Synonyms
    count_tokens: CountTokens

    @property
    def manner(self) -> Manner:
        """How pairs are made."""
        options = self.options
        return Manner(Compact(), options.refine, options.gold_hints)
