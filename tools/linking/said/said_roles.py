"""Finds foreign keys whose role a question says, where a table has several keys to another: a flight's destination.

Of such keys only the one whose role is said can join; which of them a question means is otherwise open.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from tools.linking.word_forms import name_stems, name_words, split, stem, word_set
from tools.schema import ColumnRef, Schema
from tools.sql.join_graph import Edge, edges

_SILENT = word_set("id code key no number name")
_VOWELS = frozenset("aeiou")

Role = tuple[str, ...]


def said_roles(schema: Schema, question: str) -> frozenset[ColumnRef]:
    """The foreign keys, in lower case, whose role the question says, of tables that have several keys to one table.

    A role is what a key's name says besides the table and the column that it refers to; a single word may lack its vowels:

    >>> from tools.schema import Column, ForeignKey, Table
    >>> airport = Table("airports", (Column("apid", "INTEGER", primary_key=True),))
    >>> keys = [ForeignKey((name,), "airports", ("apid",)) for name in ("src_apid", "dst_apid")]
    >>> route = Table("routes", (Column("src_apid", "INTEGER"), Column("dst_apid", "INTEGER")), tuple(keys))
    >>> sorted(said_roles(Schema((airport, route), "sqlite"), "How many routes have a destination in Canada?"))
    [('routes', 'dst_apid')]
    """
    said = [stem(word.key) for word in split(question)]
    found = frozenset[ColumnRef]()
    for roles in _rivals(schema).values():
        spans = {place: _span(role, said) for place, role in roles.items() if role}
        known = {place: span for place, span in spans.items() if span and (len(span) > 1 or all(roles.values()))}
        found |= {place for place, span in known.items() if not any(_inside(span, other) for other in known.values())}
    return found


def unshared(roles: frozenset[ColumnRef]) -> frozenset[ColumnRef]:
    """The keys whose names no other table's key among them has: these tell which table is meant."""
    count = Counter(column for _, column in roles)
    return frozenset(place for place in roles if count[place[1]] == 1)


def _rivals(schema: Schema) -> Mapping[tuple[str, str], Mapping[ColumnRef, Role]]:
    """For each pair of tables that several keys of one column join: these keys, and their roles."""
    groups: dict[tuple[str, str], dict[ColumnRef, Role]] = defaultdict(dict)
    for edge in edges(schema):
        if len(edge.columns) == 1:
            groups[edge.table, edge.ref_table][_place(edge)] = _role(edge)
    return {tables: keys for tables, keys in groups.items() if len(keys) > 1}


def _place(edge: Edge) -> ColumnRef:
    return edge.table.lower(), edge.columns[0].lower()


def _role(edge: Edge) -> Role:
    """What the key's name says besides its target."""
    target = name_stems(edge.ref_table) | name_stems(edge.ref_columns[0]) | _SILENT
    return tuple(word for word in map(stem, name_words(edge.columns[0])) if word not in target)


def _span(role: Role, said: list[str]) -> range:
    """Where the question says the role; an empty range if nowhere."""
    return next(_spans(role, said), range(0))


def _spans(role: Role, said: list[str]) -> Iterator[range]:
    for first in range(len(said) - len(role) + 1):
        words = said[first : first + len(role)]
        if tuple(words) == role or (len(role) == 1 and _shortens(role[0], words[0])):
            yield range(first, first + len(role))


def _shortens(role: str, word: str) -> bool:
    """Whether a role is a word without its vowels and some more: `src` is the source."""
    letters = iter(word)
    return len(role) > 2 and _VOWELS.isdisjoint(role) and role[0] == word[0] and all(each in letters for each in role)


def _inside(span: range, other: range) -> bool:
    return other.start <= span.start and span.stop <= other.stop and span != other
