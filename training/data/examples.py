"""Turns a question into pairs of prompt and answer, one per step of the agent. The prompts are the agent's own:
`agent.ask_model` fills the slots as in a conversation, and the compact profile writes them.

Lets hints deserve trust: what the answer needs and linking misses becomes a link, with a given probability.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random

from sqlglot import exp

from agent.ask_model import prompt_slots, tries_of
from agent.context import AgentOptions
from agent.prompts.compact import Compact, LeastScores
from agent.prompts.slots import ModelStep, Plan, Slots
from agent.state import Attempt
from eval.datasets.gold_databases import LIMITS, Target, TrainingDatabase, with_notes
from eval.datasets.gold_sql import GoldError, place_of, plan_answer, real_tables, sql_text
from tools.databases.choices import with_choices
from tools.databases.database import Database
from tools.linking.link_schema import Link, link
from tools.linking.match_values import ValueMatch
from tools.linking.mentions import QuestionContext
from tools.repair.rules import repair_query
from tools.schema import Schema
from training.packs.groups import Pair
from training.variants.mistakes import BINDING, corrupted
from training.variants.schemas import UNNAMED, Variant, rename_schema, rename_sql, rename_values


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


OPTIONS = AgentOptions()  # the agent's options, for which the prompts are written
DRAWS = 4  # corruptions tried until one gives an error that the agent would meet


@dataclass(frozen=True, slots=True)
class Item:
    """A question with its verified SQL, and the turns before it.

    `kind`: how a second question relates to the first (`KINDS` in `training.data.parts`); "" for a question of the benchmark.
    """

    id: str
    text: str
    evidence: str
    target: Target
    values: tuple[ValueMatch, ...]
    history: tuple[tuple[str, Target], ...] = ()
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Manner:
    """How pairs are made. refine: probability of a correction. gold_hints: probability that a table or column of the answer
    which linking misses is among the hints nevertheless, so that hints deserve trust."""

    profile: Compact = field(default_factory=Compact)
    refine: float = 0.3
    gold_hints: float = 0.0


@dataclass(frozen=True, slots=True)
class Setting:
    """Where an item is asked: a variant of its database's schema, and an engine with that schema's names. SQL is SQLite's,
    which the model writes for DuckDB, too (`agent.candidates`).

    `bare` is the database with these names: with rows if the names are the original ones, otherwise empty.
    """

    database: TrainingDatabase
    variant: Variant
    bare: Database

    @property
    def schema(self) -> Schema:
        """The schema that the prompt shows. Where there are no rows, as under new names, it copies what is known of them."""
        found = self.bare.schema()
        if self.variant.naming is UNNAMED and self.database.has_rows:
            return with_choices(found, self.bare)
        return with_notes(found, self.variant.schema)

    def renamed(self, tree: exp.Query) -> exp.Query:
        """The query under the variant's names. Raises GoldError if it cannot be renamed back, or needs what was cut."""
        base = self.variant.base
        if self.variant.naming is UNNAMED:
            return tree
        missing = [name for _, name in real_tables(tree, self.database.engine.schema()) if base.table(name) is None]
        places = (place_of(column, self.database.engine.schema()) for column in tree.find_all(exp.Column))
        missing += [c for place in places if place for t, c in [place] if not _has(base, t, c)]
        if missing:
            raise GoldError(f"the variant lacks {missing[0]}")
        new = rename_sql(tree, base, self.variant.naming)
        back = rename_sql(new, rename_schema(base, self.variant.naming), self.variant.naming.undone())
        if sql_text(back) != sql_text(tree):
            raise GoldError("renaming cannot be undone")
        return new


def _has(schema: Schema, table: str, column: str) -> bool:
    known = schema.table(table)
    return known is not None and known.column(column) is not None


@dataclass(frozen=True, slots=True)
class Placed:
    """A pair, and the schema text with which its prompt begins."""

    prefix: str
    step: ModelStep
    pair: Pair


def slots_of(
    item: Item, setting: Setting, attempts: Sequence[Attempt] = (), plan: str = "", links: Sequence[Link] | None = None
) -> Slots:
    """The slots as a conversation would fill them for the item, as a follow-up if there are turns before it. `links`: those
    of the question unless given."""
    schema, values = setting.schema, _values(item, setting)
    links = link(schema, item.text, values) if links is None else links
    turns = [(text, _sql(target.tree, setting)) for text, target in item.history]
    return prompt_slots(
        item.text,
        schema,
        schema.dialect,
        OPTIONS,
        links=tuple(links),
        values=values,
        history=tuple(turns[-1:]),
        plan=plan,
        tries=tries_of(attempts),
        evidence=item.evidence,
    )


def _values(item: Item, setting: Setting) -> tuple[ValueMatch, ...]:
    """The item's values under the setting's names."""
    values = rename_values(item.values, setting.variant.naming)
    return tuple(value for value in values if _has(setting.schema, value.table, value.column))


def pairs(item: Item, setting: Setting, manner: Manner, rng: Random) -> Iterator[Placed]:
    """The pairs for plan and generate and, with some probability, one correction. Raises GoldError if the SQL does not fit
    the setting's schema."""
    tree = setting.renamed(item.target.tree)
    sql = sql_text(tree)
    error = setting.bare.explain(sql)
    if error is not None:
        raise GoldError(f"does not bind: {error.message}")
    answer = plan_answer(tree, setting.schema)
    found = link(setting.schema, item.text, _values(item, setting))
    links = with_gold(found, answer, setting.schema, manner.gold_hints, rng)
    filled, plan = slots_of(item, setting, links=links), answer.text()
    profile = manner.profile
    yield _placed(profile, "plan", filled, plan, item, setting)
    yield _placed(profile, "generate", replace(filled, plan=plan), sql, item, setting)
    attempt = _attempt(item, tree, setting, rng) if rng.random() < manner.refine else None
    if attempt is not None:
        yield _placed(profile, "refine", slots_of(item, setting, [attempt], plan, links), sql, item, setting)


def _placed(profile: Compact, step: ModelStep, filled: Slots, answer: str, item: Item, setting: Setting) -> Placed:
    prefix, whole = profile.prefix(filled), profile.text(step, filled)
    return Placed(prefix, step, Pair(whole.removeprefix(prefix), f" {answer}", step, item.id))


def _sql(tree: exp.Query, setting: Setting) -> str:
    return sql_text(setting.renamed(tree))


def _attempt(item: Item, tree: exp.Query, setting: Setting, rng: Random) -> Attempt | None:
    """A wrong query that the agent could not repair, with its engine's error."""
    return next(filter(None, (_unbound(item, tree, setting, rng) for _ in range(DRAWS))), None)


def _unbound(item: Item, tree: exp.Query, setting: Setting, rng: Random) -> Attempt | None:
    wrong = corrupted(tree, setting.schema, list(BINDING.values()), rng)
    if wrong is None:
        return None
    context = QuestionContext(item.text, _values(item, setting))
    sql, error = repair_query(sql_text(wrong), setting.bare, context, LIMITS)
    if error is None or error.kind == "refused":
        return None
    return Attempt(sql=sql, repaired=False, error=asdict(error), row_count=None)
