"""The options of a build of training data, what its parts are made from, and the count of what it made and left out."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

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
    """The options of `sqlagent data build`. A schema is shared by about as many questions as fit in one pack of the trainer.
    All held-out questions are kept, under the original names.
    """

    variants: Annotated[
        float, typer.Option("--variants", min=0.0, help="Passes over the questions with new schemas; 0.5 takes half.")
    ] = 3.0
    per_schema: Annotated[int, typer.Option("--per-schema", min=1, help="Questions that share a new schema.")] = 8
    originals: Annotated[
        float,
        typer.Option("--originals", min=0.0, max=1.0, help="Share asked under the original names, in each dialect."),
    ] = 1.0
    spider: Annotated[float, typer.Option("--spider", min=0.0, max=1.0, help="Share of Spider's questions.")] = 1.0
    spider_syn: Annotated[
        float, typer.Option("--spider-syn", min=0.0, max=1.0, help="Share of Spider-Syn's questions.")
    ] = 1.0
    bird: Annotated[float, typer.Option("--bird", min=0.0, max=1.0, help="Share of BIRD's questions.")] = 1.0
    queries: Annotated[
        float, typer.Option("--queries", min=0.0, max=1.0, help="Share that asks for SQL besides its plan.")
    ] = 1.0
    refine: Annotated[float, typer.Option("--refine", min=0.0, max=1.0, help="Share that gets a correction.")] = 0.3
    follow_ups: Annotated[
        float,
        typer.Option(
            "--follow-ups",
            min=0.0,
            max=1.0,
            help="Share that gets a second question: one that leans on it, an unrelated or a contrasting one.",
        ),
    ] = 0.3
    wikisql: Annotated[
        float, typer.Option("--wikisql", min=0.0, help="Passes over WikiSQL's questions, on invented schemas.")
    ] = 1.0
    wikisql_queries: Annotated[
        float, typer.Option("--wikisql-queries", min=0.0, max=1.0, help="Share of those that asks for SQL, too.")
    ] = 0.15
    gold_hints: Annotated[
        float,
        typer.Option(
            "--gold-hints", min=0.0, max=1.0, help="Share of what the answer needs and linking misses that is hinted."
        ),
    ] = 0.6
    authored: Annotated[
        str, typer.Option("--authored", help="Folder of authored data, training/authored, whose questions are added.")
    ] = ""
    databases: Annotated[list[str] | None, typer.Option("--database", help="Only this database; repeatable.")] = None
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes; the files are the same for any number.")] = 2
    seed: Annotated[int, typer.Option("--seed", help="Seed of every random choice.")] = 0


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
