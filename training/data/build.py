"""Builds training data from benchmark folders: groups of pairs for the trainer, and a manifest that describes them.

It writes `OUT/train.jsonl`, `OUT/held_out.jsonl`, `OUT/manifest.json`, and `OUT/skeletons.txt`, the most frequent skeletons of
the training plans (`agent/prompts/skeletons.txt` is a copy). `OUT/parts/` keeps finished databases, so that an interrupted
build can be continued. The same options and folder give the same bytes.

For each database, gold SQL is verified, values are matched and second questions are added. From the authored data come each
question in its three wordings and the later turns of its dialogues. A turn that continues another has that turn as its history,
as the agent shows it; a turn that stands alone is a first question. Questions that the data cannot answer have no SQL and make
no item. Both kinds of databases are asked under their own names and under new ones.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

from sqlglot import exp

from agent.prompts.compact import PROMPT_VERSION
from agent.prompts.slots import parse_plan
from eval.datasets.authored import Authored, Part, json_lines, made_database, read_authored
from eval.datasets.gold_databases import (
    Target,
    TrainingDatabase,
    described_schema,
    empty_database,
    gold_target,
    open_training,
)
from eval.datasets.gold_sql import GoldError, place_of, real_tables
from eval.datasets.official import (
    HELD_OUT_DATABASES,
    DatasetError,
    Question,
    load_dev,
    load_questions,
    synonym_questions,
    without_dev,
)
from tools.databases.choices import with_choices
from tools.databases.open_database import open_database
from tools.schema import ColumnRef, Schema, Table
from training.data.examples import Item, Placed, Setting, pairs
from training.data.options import CountTokens, Material, Options, Tally
from training.data.parts import (
    HELD_OUT,
    HELD_OUT_FILE,
    TRAIN_FILE,
    Made,
    Maker,
    Others,
    Record,
    found_values,
    join_parts,
    make_parts,
    second,
    summed,
)
from training.packs.groups import Group
from training.variants.mistakes import read_synonyms
from training.variants.schemas import distractors, draw, original
from training.wikisql.parts import invented, is_held_out, wikisql_parts
from training.wikisql.questions import WikiTable


def paraphrased(questions: Iterable[Question], folder: Path) -> list[Question]:
    """The questions in the wordings that the folder's `paraphrases.jsonl.xz` has for them. Raises DatasetError."""
    by_id = {line["id"]: (line["other"], line["short"]) for line in json_lines(folder / "paraphrases.jsonl.xz")}
    return [
        replace(question, id=f"paraphrase/{question.id}/{number}", text=text)
        for question in questions
        for number, text in enumerate(by_id.get(question.id, ()))
    ]


def open_authored(authored: Authored) -> TrainingDatabase:
    """An authored database."""
    native = open_database(made_database(authored), engine="sqlite")
    return TrainingDatabase(authored.name, with_choices(native.schema(), native), native, has_rows=True)


def authored_items(authored: Authored, database: TrainingDatabase, tally: Tally) -> Iterator[Item]:
    """Every question and turn whose gold SQL is verified."""
    yield from _questions(authored, database, tally)
    yield from _turns(authored, database, tally)


def _questions(authored: Authored, database: TrainingDatabase, tally: Tally) -> Iterator[Item]:
    for number, line in enumerate(authored.questions, 1):
        target = _authored_target(line["sql"], database, tally)
        if target is None:
            continue
        evidence = line.get("evidence", "")
        for wording, text in enumerate((line["question"], *line["paraphrases"])):
            values = found_values(database, f"{text} {evidence}".strip())
            yield Item(f"authored/{authored.name}/{number}/{wording}", text, evidence, target, values)


def _turns(authored: Authored, database: TrainingDatabase, tally: Tally) -> Iterator[Item]:
    for number, line in enumerate(authored.dialogues, 1):
        known: dict[int, tuple[str, Target]] = {}
        for place, turn in enumerate(line["turns"], 1):
            target = _authored_target(turn["sql"], database, tally)
            if target is None:
                continue
            known[place] = (turn["question"], target)
            before = known.get(turn["continues"] or 0)
            if turn["continues"] and before is None:
                continue
            values = found_values(database, turn["question"])
            kind = turn["kind"] if before else ""
            history = (before,) if before else ()
            name = f"authored/{authored.name}/turn-{number}-{place}"
            yield Item(name, turn["question"], "", target, values, history, kind)


def _authored_target(sql: str, database: TrainingDatabase, tally: Tally) -> Target | None:
    if not sql:
        return None
    tally.golds["all"] += 1
    try:
        return gold_target(sql, database)
    except GoldError as error:
        tally.left_out[f"gold: {str(error).split(':')[0]}"] += 1
        return None


def items(
    questions: Sequence[Question], database: TrainingDatabase, follow_ups: float, rng: Random, tally: Tally
) -> list[Item]:
    """Every question whose gold SQL is verified, each followed, with probability `follow_ups`, by a second question."""
    others = Others(list(_held(questions, database, tally)), database, tally)
    found: list[Item] = []
    for item in others.items:
        found.append(item)
        if database.has_rows and rng.random() < follow_ups:
            found += second(item, others, rng)
    return found


def _held(questions: Sequence[Question], database: TrainingDatabase, tally: Tally) -> Iterator[Item]:
    """Every question whose gold SQL is verified."""
    targets: dict[str, Target | str] = {}
    for question in questions:
        if question.gold not in targets:
            targets[question.gold] = _target(question.gold, database)
        target = targets[question.gold]
        tally.golds.update(_outcomes(target))
        if isinstance(target, str):
            tally.left_out[f"gold: {target}"] += 1
            continue
        values = found_values(database, f"{question.text} {question.evidence}".strip())
        yield Item(question.id, question.text, question.evidence, target, values)


def _target(gold: str, database: TrainingDatabase) -> Target | str:
    """The target, or in a word or two why there is none."""
    try:
        return gold_target(gold, database)
    except GoldError as error:
        return str(error).split(":")[0]


def _outcomes(target: Target | str) -> list[str]:
    if isinstance(target, str):
        return ["all", "left out"]
    by_rows = "bound, no rows to compare" if target.rows is None else "same rows"
    return ["all", by_rows]


Report = Callable[[str], None]
SKELETONS = 200  # they cover about two thirds of all plans


def build(data: Path, out: Path, options: Options, count_tokens: CountTokens, report: Report) -> dict[str, Any]:
    """Write the files and return the manifest. `count_tokens` counts an answer's tokens. Raises DatasetError."""
    dev = load_dev(data)
    questions, out_of_dev = without_dev(load_questions(data), dev)
    assert not {q.db_id for q in questions} & dev.db_ids, "a dev database among the training data"
    if options.authored:
        questions += paraphrased(questions, Path(options.authored))
    by_database = _by_database(questions, options)
    guests = _guests(data, questions)
    material = Material(data, options, guests, read_synonyms(synonym_questions(data)), count_tokens)
    tables = wikisql_parts(data) if options.wikisql and not options.databases else {}
    makers: dict[str, Maker] = {
        **{name: partial(_of_database, own, material, name in HELD_OUT_DATABASES) for name, own in by_database.items()},
        **{name: partial(wikisql_groups, name, own, material) for name, own in tables.items()},
        **_authored(material),
    }
    made_with = {**asdict(options), "databases": None, "jobs": None}
    records = make_parts(makers, out / "parts", made_with, count_tokens, options.jobs, report)
    join_parts(out, records)
    (out / "skeletons.txt").write_text("".join(f"{line}\n" for line in _skeletons(out)), encoding="utf-8")
    manifest = _manifest(options, questions, out_of_dev, records)
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def _by_database(questions: Sequence[Question], options: Options) -> dict[str, list[Question]]:
    """The questions by the name of their part: the database's name, for BIRD with the prefix `bird-`."""
    found: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        if not options.databases or question.db_id in options.databases:
            found[("bird-" if question.source == "bird" else "") + question.db_id].append(question)
    if not found:
        raise DatasetError(f"no training question on {', '.join(options.databases or ())}")
    return dict(sorted(found.items()))


def _guests(data: Path, questions: Sequence[Question]) -> tuple[Table, ...]:
    """Tables to add as distractors: from Spider's training databases, but from none of dev's or the held-out ones."""
    names = {q.db_id for q in questions if q.source == "spider"} - set(HELD_OUT_DATABASES)
    return distractors([described_schema(data, name) for name in sorted(names)])


def _of_database(questions: Sequence[Question], material: Material, held_out: bool, scratch: Path) -> Made:
    groups, tally = database_groups(questions, material, scratch, held_out=held_out)
    return Made({HELD_OUT_FILE if held_out else TRAIN_FILE: groups}, tally, len(questions))


def _authored(material: Material) -> dict[str, Maker]:
    """The makers of the authored databases: those for choosing are held out, and nothing is made of the sealed ones."""
    if not material.options.authored:
        return {}
    folder = Path(material.options.authored)
    parts: dict[Part, str] = {"train": TRAIN_FILE, "choosing": f"{HELD_OUT}/authored.jsonl"}
    return {
        f"authored-{each.name}": partial(authored_groups, each, file, material)
        for part, file in parts.items()
        for each in read_authored(folder, part)
    }


def authored_groups(authored: Authored, file: str, material: Material, scratch: Path) -> Made:
    """Pairs of one authored database's questions and turns."""
    tally, chance = Tally(), Random(f"{material.options.seed}/authored/{authored.name}")
    database = open_authored(authored)
    try:
        found = list(authored_items(authored, database, tally))
        placed = _placed(found, database, material, scratch, chance, tally, held_out=file != TRAIN_FILE)
    finally:
        database.close()
    return Made({file: _grouped(placed)}, tally, len(found))


def wikisql_groups(name: str, tables: Sequence[WikiTable], material: Material, scratch: Path) -> Made:
    """Pairs of WikiSQL's questions on schemas invented again in each pass."""
    options, tally, groups = material.options, Tally(), list[Group]()
    sparse = replace(material, options=replace(options, queries=options.wikisql_queries, refine=0.0))
    for number, share in enumerate(_passes(options.wikisql)):
        chance = Random(f"{options.seed}/{name}/{number}")
        for database, found in invented(tables, share, scratch, chance, tally):
            setting = Setting(database, original(database.schema), database.engine)
            groups += _grouped([placed for item in found for placed in _fitting(item, setting, sparse, chance, tally)])
    file = f"{HELD_OUT}/wikisql.jsonl" if is_held_out(name) else TRAIN_FILE
    return Made({file: groups}, tally, sum(len(table.questions) for table in tables))


def database_groups(
    questions: Sequence[Question], material: Material, scratch: Path, *, held_out: bool = False
) -> tuple[list[Group], Tally]:
    """All groups of one database's questions. Held-out questions are asked only under the original names."""
    options, tally = material.options, Tally()
    material = replace(material, options=replace(options, queries=1.0, gold_hints=0.0)) if held_out else material
    database = open_training(material.data, questions, scratch)
    try:
        chance = Random(f"{options.seed}/{questions[0].source}/{database.db_id}")
        kept = questions if held_out else _kept(questions, options, chance)
        found = items(kept, database, options.follow_ups, chance, tally)
        placed = _placed(found, database, material, scratch, chance, tally, held_out=held_out)
    finally:
        database.close()
    return _grouped(placed), tally


def _placed(
    found: Sequence[Item],
    database: TrainingDatabase,
    material: Material,
    scratch: Path,
    chance: Random,
    tally: Tally,
    *,
    held_out: bool,
) -> list[Placed]:
    """A share of the items on the real database, and passes over them on new schemas; held-out ones on the real one alone."""
    options = material.options
    originals, passes = (1.0, []) if held_out else (options.originals, _passes(options.variants))
    placed = list(_original(found, database, material, chance, tally, originals))
    for share in passes:
        chosen = [item for item in found if chance.random() < share]
        placed += _varied(chosen, database, material, scratch, chance, tally)
    return placed


def _passes(variants: float) -> list[float]:
    """The share of the questions in each pass: 2.5 means two full passes and one over half of the questions."""
    return [min(1.0, variants - done) for done in range(ceil(variants))]


def _kept(questions: Sequence[Question], options: Options, chance: Random) -> list[Question]:
    shares = {"spider": options.spider, "spider_syn": options.spider_syn, "bird": options.bird}
    return [question for question in questions if chance.random() < shares[question.source]]


def _original(
    found: Sequence[Item], database: TrainingDatabase, material: Material, chance: Random, tally: Tally, share: float
) -> Iterator[Placed]:
    """A share of the items, on the real database."""
    setting = Setting(database, original(database.schema), database.engine)
    for item in found:
        if chance.random() < share:
            yield from _fitting(item, setting, material, chance, tally)


def _varied(
    found: Sequence[Item],
    database: TrainingDatabase,
    material: Material,
    scratch: Path,
    chance: Random,
    tally: Tally,
) -> Iterator[Placed]:
    """Every item once; a few items share each new schema."""
    size, order = material.options.per_schema, chance.sample(list(found), len(found))
    for chunk in (order[place : place + size] for place in range(0, len(order), size)):
        needed = {place for item in chunk for place in _needed(item, database.schema)}
        variant = draw(database.schema, needed, material.guests, material.synonyms, chance)
        bare = empty_database(variant.schema, scratch)
        setting = Setting(database, variant, bare)
        for item in chunk:
            yield from _fitting(item, setting, material, chance, tally)
        bare.close()


def _needed(item: Item, schema: Schema) -> Iterator[ColumnRef]:
    """The columns that the item's SQL uses; a table that is used without columns contributes its first."""
    for target in (item.target, *(target for _, target in item.history)):
        yield from ((name, table.columns[0].name) for name, table in _tables(target.tree, schema))
        yield from (p for c in target.tree.find_all(exp.Column) if (p := place_of(c, schema)) is not None)


def _tables(tree: exp.Query, schema: Schema) -> Iterator[tuple[str, Table]]:
    found = ((name, schema.table(name)) for _, name in real_tables(tree, schema))
    return ((name, table) for name, table in found if table is not None)


def _fitting(item: Item, setting: Setting, material: Material, chance: Random, tally: Tally) -> list[Placed]:
    """The item's pairs; none if one of its answers is longer than the agent lets the model write."""
    try:
        made = list(pairs(item, setting, material.manner, chance))
    except GoldError as error:
        tally.left_out[f"variant: {str(error).split(':')[0]}"] += 1
        return []
    for placed in made:
        if material.count_tokens(placed.pair.answer) > material.manner.profile.max_new_tokens(placed.step):
            tally.left_out[f"{placed.step} is too long"] += 1
            return []
    if chance.random() >= material.options.queries:
        made = [placed for placed in made if placed.step != "generate"]
    source = " ".join(filter(None, (item.id.split("/")[0], "follow-up" if item.history else "", item.kind)))
    tally.pairs.update(f"{source} {placed.pair.step}" for placed in made)
    return made


def _grouped(placed: Iterable[Placed]) -> list[Group]:
    """One group per schema text, in the order of first appearance."""
    by_prefix: dict[str, list[Placed]] = defaultdict(list)
    for each in placed:
        by_prefix[each.prefix].append(each)
    return [Group(prefix, tuple(each.pair for each in own)) for prefix, own in by_prefix.items()]


def _skeletons(out: Path) -> list[str]:
    """The most frequent skeletons of the training plans, most frequent first."""
    lines = (out / "train.jsonl").read_text(encoding="utf-8").splitlines()
    plans = (pair["answer"] for line in lines for pair in json.loads(line)["pairs"] if pair["step"] == "plan")
    counts = Counter(parse_plan(plan).skeleton for plan in plans)
    return sorted(counts, key=lambda each: (-counts[each], each))[:SKELETONS]


def _manifest(
    options: Options,
    questions: Sequence[Question],
    out_of_dev: Sequence[str],
    records: Mapping[str, Record],
) -> dict[str, Any]:
    """What was built, in numbers."""
    training = [record for record in records.values() if TRAIN_FILE in record["groups"]]
    apart = [record for record in records.values() if TRAIN_FILE not in record["groups"]]
    return {
        "prompt_version": PROMPT_VERSION,
        "options": asdict(options),
        "questions": dict(Counter(question.source for question in questions)),
        "left_out_as_dev": list(out_of_dev),
        "held_out": [name for name in HELD_OUT_DATABASES if name in records],
        "train": summed(training),
        "held_out_counts": summed(apart),
        "databases": {name: sum(record["pairs"].values()) for name, record in records.items()},
    }
