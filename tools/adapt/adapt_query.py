"""Changes a query as a short second question asks: "and in France?", "only the first three", "sort them by price". A rule acts
only if it is certain: the change must account for every word that carries meaning. It uses no model and runs no query.

Editing the former query instead of writing a new one follows EditSQL (Zhang et al., 2019). The changes themselves are in
`tools.adapt.adapt_filter`, `tools.adapt.adapt_order` and `tools.adapt.adapt_order`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from tools.linking.match_values import ValueMatch
from tools.linking.word_forms import STOP_WORDS, name_stems, split, stem, word_set
from tools.schema import Column, Schema, Table
from tools.sql.scope import parse_or_nothing

_LEAD = re.compile(
    r"[\s.…]*(?:(?:and|but|so|now|then|also|ok|okay|please|or|no|plus|great|thanks|sorry|i meant?|what about|how about"
    r"|can you|could you)\b"
    r"[\s,]*)+|(?:and |ok |now )?(?:let's )?(?:go )?back to [^:,.]*[:,.]\s*(?:and\b)?\s*",
    re.IGNORECASE,
)
_TAIL = re.compile(
    r"(?:[\s,]+(?:please|instead(?: of [\w ]+)?|rather(?: than [\w ]+)?|then|now|thanks|thank you))*[\s.?!]*$",
    re.IGNORECASE,
)
RESULT = r"(?:them|these|those|that|it|this|the (?:list|result|results|rows|answer|ones))"
_EMPTY = word_set(
    "keep limit restrict narrow filter instead too also well please only just thing what how again ok okay no one ones where "
    "whose"
)
_LABELS = word_set("name title")
_OF_A_KIND = word_set("address value")
_TELLING = word_set("name number")  # stop words elsewhere, but names of columns here


@dataclass(frozen=True)
class Request:
    """A second question about a former query's result: its words, and what it names in the schema and the data."""

    text: str
    values: tuple[ValueMatch, ...]
    schema: Schema
    select: exp.Select

    @cached_property
    def core(self) -> str:
        """The words of the request without "and", "please" and punctuation at the ends."""
        text = re.sub(r"\be-mail", "email", self.text, flags=re.IGNORECASE)
        led = _LEAD.match(text)
        return _TAIL.sub("", text[led.end() :] if led else text).strip()

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The tables of the query's own FROM and JOIN clauses, by their aliases."""
        joins = [self.select.args.get("from_"), *(self.select.args.get("joins") or ())]
        entries = [part.this for part in joins if part is not None and isinstance(part.this, exp.Table)]
        found = ((entry.alias_or_name, self.schema.table(entry.name)) for entry in entries)
        return {alias: table for alias, table in found if table is not None}

    @property
    def columns(self) -> Iterator[tuple[str, Table, Column]]:
        """Every column of these tables, with its table and the table's alias."""
        for alias, table in self.tables.items():
            yield from ((alias, table, column) for column in table.columns)

    def column(self, words: str) -> exp.Column | None:
        """The one column of the query's tables that these words name best; None if there is none, or several.

        Every word must occur in the column's or its table's name, except that "the e-mail address" may be `email`.
        """
        wanted = telling(words)
        scored = [
            (len(wanted & names) / len(names | wanted), alias, column.name)
            for alias, table, column in self.columns
            if not _is_unsaid_key(names := name_stems(column.name), wanted)
            and names & wanted
            and wanted <= names | name_stems(table.name) | _OF_A_KIND
        ]
        best = max((score for score, _, _ in scored), default=0.0)
        named = [(alias, name) for score, alias, name in scored if score == best]
        return self.reference(*named[0]) if len(named) == 1 else None

    def label(self, words: str) -> exp.Column | None:
        """The name or title of the table that these words name; the table is joined by its foreign key if necessary."""
        wanted = telling(words) - _LABELS
        named = [table for table in self.schema.tables if wanted and wanted == name_stems(table.name)]
        label = next((c for c in named[0].columns if name_stems(c.name) & _LABELS), None) if len(named) == 1 else None
        if label is None:
            return None
        alias = next((alias for alias, table in self.tables.items() if table.name == named[0].name), None)
        return self.reference(alias, label.name) if alias else self._joined(named[0], label)

    def column_of_parent(self, words: str) -> exp.Column | None:
        """The one column with exactly this name in the tables to which the query's tables refer; its table is joined.

        Such a join repeats no row: each row has at most one parent.
        """
        wanted, read = telling(words), {table.name for table in self.tables.values()}
        parents = {key.ref_table for table in self.tables.values() for key in table.foreign_keys} - read
        tables = [table for table in self.schema.tables if table.name in parents]
        found = [(table, own) for table in tables for own in table.columns if wanted and name_stems(own.name) == wanted]
        return self._joined(*found[0]) if len(found) == 1 else None

    @property
    def rows_of(self) -> Table | None:
        """The table whose rows the query's rows are: the one that refers to the others, to which none of them refers."""
        tables = list(self.tables.values())
        referred = {key.ref_table for table in tables for key in table.foreign_keys}
        own = [table for table in tables if table.name not in referred]
        return own[0] if len(own) == 1 else None

    def _joined(self, other: Table, label: Column) -> exp.Column | None:
        keys = [(alias, k) for alias, t in self.tables.items() for k in t.foreign_keys if k.ref_table == other.name]
        if len(keys) != 1:
            return None
        for column in self.select.find_all(exp.Column):
            if not column.table and len(self.tables) == 1:
                column.set("table", exp.to_identifier(keys[0][0]))
        alias, key = keys[0]
        pairs = zip(key.columns, key.ref_columns, strict=True)
        on = exp.and_(*(exp.column(a, alias).eq(exp.column(b, other.name)) for a, b in pairs))
        self.select.join(exp.to_table(other.name), on=on, copy=False)
        return exp.column(label.name, table=other.name)

    def reference(self, alias: str, name: str) -> exp.Column:
        """A column as the query writes it: with its table if there are several."""
        quoted = exp.to_identifier(name, quoted=not name.isidentifier())
        return exp.column(quoted, table=alias if len(self.tables) > 1 else None)

    @property
    def dates(self) -> list[exp.Column]:
        """The dates and times among the columns, as the query writes them."""
        return [self.reference(alias, own.name) for alias, _, own in self.columns if is_date(own)]

    @property
    def dates_of_rows(self) -> list[exp.Column]:
        """The dates and times of the table whose rows the query's rows are."""
        table = self.rows_of
        return [self.reference(a, own.name) for a, each, own in self.columns if is_date(own) and each is table]

    def year_of(self, date: exp.Column) -> exp.Expr:
        """The year of a date, in the query's dialect; SQLite gives it as text."""
        if self.schema.dialect == "sqlite":
            return exp.Anonymous(this="STRFTIME", expressions=[exp.Literal.string("%Y"), date])
        return exp.Extract(this=exp.var("YEAR"), expression=date)

    def declared(self, column: exp.Column) -> Column | None:
        """The schema's entry of a column that the query names."""
        name = column.name.casefold()
        found = (own for alias, _, own in self.columns if own.name.casefold() == name and column.table in ("", alias))
        return next(found, None)


Change = Callable[[Request], exp.Query | None]
"""The changed query, or None where the rule does not apply. It may change the request's own tree."""


def adapt_query(
    question: str, former: str, values: Sequence[ValueMatch], schema: Schema, changes: Sequence[Change]
) -> str | None:
    """The former query as the question changes it, in the schema's dialect; None if no rule is certain.

    A certain change, and a word that no column has:

    >>> from tools.adapt.adapt_order import ORDER_CHANGES
    >>> shop = Schema((Table("albums", (Column("title", "TEXT"), Column("price", "REAL"))),), "sqlite")
    >>> adapt_query("Sort them by price.", "SELECT title FROM albums", (), shop, ORDER_CHANGES)
    'SELECT title FROM albums ORDER BY price'
    >>> adapt_query("Sort them by colour.", "SELECT title FROM albums", (), shop, ORDER_CHANGES) is None
    True
    """
    trees = parse_or_nothing(former, schema.dialect)
    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select) or select.args.get("with_"):
        return None
    for change in changes:
        changed = change(Request(question, tuple(values), schema, select.copy()))
        if changed is not None and changed != select:
            return changed.sql(schema.dialect)
    return None


def _is_unsaid_key(names: frozenset[str], wanted: frozenset[str]) -> bool:
    """Whether a column is a key that was not asked for, such as `genre_id` for "genre": the asker means the genre's name."""
    return "id" in names and "id" not in wanted


def aggregates_of(select: exp.Expr) -> list[exp.AggFunc]:
    """The aggregates that a query, or one of its expressions, selects. ANY_VALUE is none: it stands for a column."""
    listed = select.expressions if isinstance(select, exp.Select) else [select]
    return [node for each in listed for node in each.find_all(exp.AggFunc) if not isinstance(node, exp.AnyValue)]


def is_date(column: Column) -> bool:
    """Whether a column is declared as a date or a time."""
    return column.type.upper().startswith(("DATE", "TIMESTAMP"))


def telling(text: str) -> frozenset[str]:
    """The stems of the words that carry meaning."""
    keys = (word.key for word in split(text))
    return frozenset(stem(key) for key in keys if key not in STOP_WORDS | _EMPTY or stem(key) in _TELLING)
