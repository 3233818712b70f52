"""WikiSQL's questions as items on invented databases: SQL that runs, and the values that the agent finds there."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from sqlglot import exp

from eval.datasets.gold_databases import Target, TrainingDatabase, empty_file, opened_file, run
from eval.datasets.gold_sql import GoldError, normalise, sql_text
from tools.databases.choices import with_choices
from tools.linking.match_values import ValueMatch, match_values
from tools.schema import ColumnRef
from training.data.examples import Item
from training.data.options import Tally
from training.wikisql.questions import (
    WikiQuestion,
    WikiTable,
    cleaned,
    counts_distinct,
    load_wikisql,
    number_of,
    spoken,
)
from training.wikisql.schemas import Cells, Composition, Invented, Pool, compose, fill, together

PARTS = 40  # of the tables
MISSED = 0.07  # probability that a value is not shown though it is found


def wikisql_parts(data: Path) -> dict[str, list[WikiTable]]:
    """The cleaned tables that have a question, in parts; the same for every seed, so that held-out tables stay held out."""
    tables = [table for table in map(cleaned, load_wikisql(data)) if table.questions]
    Random("wikisql").shuffle(tables)
    return {f"wikisql-{number:02}": tables[number::PARTS] for number in range(PARTS if tables else 0)}


def is_held_out(part: str) -> bool:
    """Whether the part's tables are not trained on: the last one."""
    return part == f"wikisql-{PARTS - 1:02}"


def invented(
    tables: Sequence[WikiTable], share: float, scratch: Path, rng: Random, tally: Tally
) -> Iterator[tuple[TrainingDatabase, list[Item]]]:
    """Invented databases that stay open until the next one is asked for, each with the items of its tables. `share`: of the
    questions."""
    pool = Pool(tables)
    for group in together(tables, rng):
        kept = [replace(t, questions=tuple(q for q in t.questions if rng.random() < share)) for t in group]
        composition = compose(kept, rng)
        file = empty_file(composition.schema, scratch)
        cells = fill(composition, pool, file, rng)
        bare = opened_file(file)
        database = TrainingDatabase(group[0].id, with_choices(bare.schema(), bare), bare, has_rows=False)
        yield database, list(_items(composition, database, cells, rng, tally))
        database.close()
        file.unlink()


def _items(
    composition: Composition, database: TrainingDatabase, cells: Mapping[str, Cells], rng: Random, tally: Tally
) -> Iterator[Item]:
    for own in composition.tables:
        for number, question in enumerate(own.table.questions):
            tally.golds["all"] += 1
            try:
                item = _item(question, own, composition, database, cells[own.table.id])
            except GoldError as error:
                tally.left_out[f"wikisql: {str(error).split(':')[0]}"] += 1
                continue
            shown = tuple(value for value in item.values if not (_said(value) and rng.random() < MISSED))
            yield replace(item, id=f"{item.id}/{number}", values=shown)


def _said(value: ValueMatch) -> bool:
    """Whether the question has the value as it is, so that a query can be right though the value is not shown."""
    return value.value == value.phrase


def _item(
    question: WikiQuestion, own: Invented, composition: Composition, database: TrainingDatabase, cells: Cells
) -> Item:
    """Raises GoldError, whose text begins with the reason."""
    values = match_values(database.engine, question.text)
    wanted = [
        (header, cells.spelling[header, value.casefold()])
        for header, _, value in question.conditions
        if not own.table.column(header).numeric
    ]
    shown = {(value.table, value.column, value.value) for value in values}
    for header, value in wanted:
        if value not in question.text and (*own.places[header], value) not in shown:
            raise GoldError("the value is neither found nor said")
    if any(_fits_too(other, question, wanted, shown) for other in composition.tables if other is not own):
        raise GoldError("another table fits, too")
    tree = normalise(_sql(question, own, cells), database.schema)
    result = run(sql_text(tree), database.engine)
    if not result.rows:
        raise GoldError("no rows")
    target = Target(tree, len(result.rows))
    return Item(f"wikisql/{own.table.id}", question.text, "", target, values)


def _fits_too(
    other: Invented, question: WikiQuestion, wanted: Sequence[tuple[str, str]], shown: Collection[tuple[str, str, str]]
) -> bool:
    """Whether the other table has all of the question's columns, and as many of its values."""
    if not question.columns <= other.places.keys():
        return False
    folded = {(table, column, value.casefold()) for table, column, value in shown}
    return all((*other.places[header], value.casefold()) in folded for header, value in wanted)


def _sql(question: WikiQuestion, own: Invented, cells: Cells) -> str:
    """The query as SQLite's SQL, its conditions in the order in which the question says them. Raises GoldError."""
    used = {own.places[header][0] for header in question.columns}
    if own.moved and used == {own.places[own.moved][0]}:
        raise GoldError("only about the moved column")
    said = sorted(question.conditions, key=lambda each: question.text.find(spoken(each[2], question.text) or ""))
    conditions = [_condition(each, own, cells).sql("sqlite") for each in said]
    tables = own.rows_in.name if len(used) == 1 else _joined(own)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    source = _quoted(tables) if len(used) == 1 else tables
    return f"SELECT {_selected(question, own)} FROM {source}{where}"


def _joined(own: Invented) -> str:
    key = own.rows_in.foreign_keys[0]
    here, there = (own.rows_in.name, key.columns[0]), (key.ref_table, key.ref_columns[0])
    ends = f"{_column(here).sql('sqlite')} = {_column(there).sql('sqlite')}"
    return f"{_quoted(own.rows_in.name)} JOIN {_quoted(key.ref_table)} ON {ends}"


def _selected(question: WikiQuestion, own: Invented) -> str:
    column = _column(own.places[question.select]).sql("sqlite")
    if question.aggregate == "COUNT":
        return f"COUNT(DISTINCT {column})" if counts_distinct(question) else "COUNT(*)"
    return f"{question.aggregate}({column})" if question.aggregate else column


def _condition(condition: tuple[str, str, str], own: Invented, cells: Cells) -> exp.Condition:
    header, operator, value = condition
    number = number_of(value) if own.table.column(header).numeric else None
    literal = exp.Literal.number(number) if number else exp.Literal.string(cells.spelling[header, value.casefold()])
    return _OPERATORS[operator](this=_column(own.places[header]), expression=literal)


_OPERATORS: Mapping[str, type[exp.Binary]] = {"=": exp.EQ, ">": exp.GT, "<": exp.LT}


def _column(place: ColumnRef) -> exp.Column:
    return exp.column(place[1], table=place[0], quoted=True)


def _quoted(name: str) -> str:
    return exp.to_identifier(name, quoted=True).sql("sqlite")
