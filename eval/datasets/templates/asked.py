"""A question made from a template, and what its author needs: words, values and rows of a database."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from sqlglot import exp

from eval.datasets.golds.gold_sql import sql_text
from eval.datasets.templates.labels import Labels
from eval.datasets.variants.wording import plural
from tools.databases.database import Database
from tools.result import Limits, Result
from tools.schema import Table

LIMITS = Limits(deadline_s=3.0, max_rows=2_000)
LONGEST_VALUE = 30


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and its SQL in SQLite's dialect. `below`: the result must have fewer rows than this table; "" if it may have
    any number. `may_be_empty`: the result need not say anything."""

    text: str
    sql: str
    below: str = ""
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True)
class Author:
    """What templates are filled from; all choices are drawn from `rng`."""

    labels: Labels
    rng: Random

    @property
    def engine(self) -> Database:
        return self.labels.database.engine

    @property
    def tables(self) -> Sequence[Table]:
        """The tables whose rows can be spoken of."""
        return [table for table in self.labels.database.schema.tables if self.labels.is_noun(table)]

    def worded(self, wordings: Sequence[str], **parts: str) -> str:
        """One of the wordings, filled in, with its first letter capitalised."""
        text = self.rng.choice(wordings).format(**parts)
        for label in (parts.get("label", ""), parts.get("measure", ""), parts.get("other", "")):
            if label.endswith("s") and not label.endswith(("ss", "us")):
                text = text.replace(f"{label} is ", f"{label} are ")
        return text[:1].upper() + text[1:]

    def words(self, table: Table) -> dict[str, str]:
        """What wordings call a table's rows, and the column that names them, or a first and a last name."""
        name = self.labels.name(table)
        label = self.labels.column(table, name.name) if name else "name" if self.labels.shown(table) else ""
        names = plural(label) if label else ""
        return {"one": self.labels.one(table), "many": self.labels.many(table), "name": label, "names": names}

    def shown(self, table: Table, *, of_several: bool = False) -> str:
        """The items of a SELECT list that name its rows; "" if none do. of_several: with the table's name in front."""
        front = f"{q(table.name)}." if of_several else ""
        return ", ".join(f"{front}{q(column.name)}" for column in self.labels.shown(table))

    def some(self, meanings: Sequence[Callable[["Author"], Iterator[Asked]]], most: int) -> Iterator[Asked]:
        """At most so many questions of each meaning."""
        for meaning in meanings:
            found = list(meaning(self))
            yield from self.rng.sample(found, min(most, len(found)))

    def rows(self, sql: str) -> Sequence[Sequence[object]]:
        """The rows of a query; none if it fails."""
        found = self.labels.found
        if sql not in found:
            result = self.engine.execute(sql, LIMITS)
            found[sql] = result.rows if isinstance(result, Result) else ()
        return found[sql]

    def values(self, table: Table, column: str, most: int = 200) -> list[str | int | float]:
        """Short distinct values of a column, the most frequent first."""
        place = (
            f"{q(table.name)} WHERE {q(column)} IS NOT NULL GROUP BY {q(column)} ORDER BY COUNT(*) DESC, {q(column)}"
        )
        found = [row[0] for row in self.rows(f"SELECT {q(column)} FROM {place} LIMIT {most}")]
        return [v for v in found if isinstance(v, str | int | float) and 0 < len(str(v).strip()) <= LONGEST_VALUE]

    def classes(self, table: Table, column: str, most: int) -> list[str]:
        """All values of a column that has at most `most`, if they are short words; the most frequent first."""
        counted = self.rows(f"SELECT COUNT(DISTINCT {q(column)}) FROM {q(table.name)}")
        values = (
            [str(value) for value in self.values(table, column)]
            if counted and counted[0][0] in range(2, most + 1)
            else []
        )
        return values if len(values) > 1 and all(any(map(str.isalpha, value)) for value in values) else []

    def distinct_top(self, table: Table, column: str, direction: str, count: int = 1) -> bool:
        """Whether the first `count` rows in this order are well defined: no empty cells, and no tie at the end."""
        if self.rows(f"SELECT 1 FROM {q(table.name)} WHERE {q(column)} IS NULL OR {q(column)} = '' LIMIT 1"):
            return False
        rows = self.rows(f"SELECT {q(column)} FROM {q(table.name)} ORDER BY {q(column)} {direction} LIMIT {count + 1}")
        return len(rows) == count + 1 and rows[-1] != rows[-2]


def q(name: str) -> str:
    """A name in quotes."""
    return exp.to_identifier(name, quoted=True).sql("sqlite")


def literal(value: object) -> str:
    """A value as SQL writes it."""
    number = isinstance(value, int | float)
    return sql_text(exp.Literal.number(value) if number else exp.Literal.string(str(value)))


Template = Iterator[Asked]
