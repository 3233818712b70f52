"""The plan format of the compact profile: the tables and columns, and the SQL's skeleton, on one line.

`singer: country, age; concert: year | SELECT COUNT(*) FROM _ WHERE _ = _ GROUP BY _`

A table without columns is only named (`singer; concert: year`). Names are written as in the prompt's schema: in double
quotes where necessary. This module only converts text; it does not decide what a plan should say.
"""

import re
from dataclasses import dataclass

from agent.prompts.slots import NAME_CHARACTERS, one_line

_NAME = r'"(?:[^"]|"")*"|[^\s":;,|]+'
_NAME_AND_SIGN = re.compile(rf"\s*({_NAME})\s*([:;,|]?)")
BAR = "|"


class PlanError(ValueError):
    """The text is not a plan; the one-line message says where it is wrong."""


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table, and those of its columns that the SQL needs other than for joins."""

    name: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan. `skeleton` is the SQL with `_` for every name and literal, and without join conditions.

    A table with two columns, and one that is only joined:

    >>> tables = (PlannedTable("singer", ("country", "home town")), PlannedTable("concert"))
    >>> Plan(tables, "SELECT COUNT(*) FROM _ WHERE _ = _").text()
    'singer: country, "home town"; concert | SELECT COUNT(*) FROM _ WHERE _ = _'
    """

    tables: tuple[PlannedTable, ...]
    skeleton: str

    def text(self) -> str:
        """The plan as the model writes it: no newline, no outer spaces."""
        return f"{'; '.join(_table_text(table) for table in self.tables)} {BAR} {self.skeleton}".strip()


def parse_plan(text: str) -> Plan:
    """Parse one line, the inverse of `Plan.text`. Raises PlanError.

    A name with a space is in double quotes; a line without a bar is not a plan:

    >>> plan = parse_plan('singer: country, "home town"; concert | SELECT COUNT(*) FROM _ WHERE _ = _')
    >>> [(table.name, table.columns) for table in plan.tables], plan.skeleton
    ([('singer', ('country', 'home town')), ('concert', ())], 'SELECT COUNT(*) FROM _ WHERE _ = _')
    >>> parse_plan("singer: country")
    Traceback (most recent call last):
        ...
    agent.prompts.plan_format.PlanError: no '|' between the tables and the skeleton: singer: country
    """
    tables: list[PlannedTable] = []
    names: list[str] = []
    place, sign = 0, ""
    while sign != BAR and (match := _NAME_AND_SIGN.match(text, place)) is not None:
        sign, place = match[2], match.end()
        if (sign == ":") != (not names) and sign in (":", ","):
            raise PlanError(f"{sign!r} is misplaced: {text[:place][-80:]}")
        names.append(_unquoted(match[1]))
        if sign in (";", BAR):
            tables.append(PlannedTable(names[0], tuple(names[1:])))
            names = []
    if sign != BAR:
        raise PlanError(f"no {BAR!r} between the tables and the skeleton: {text[:80]}")
    return Plan(tuple(tables), text[place:].strip())


def quoted_name(name: str) -> str:
    """A name as the compact prompt writes it: quoted unless it is a plain identifier.

    >>> quoted_name("country"), quoted_name("home town")
    ('country', '"home town"')
    """
    if name.isidentifier() and name.isascii():
        return name
    return '"' + one_line(name, NAME_CHARACTERS).replace('"', '""') + '"'


def _unquoted(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text


def _table_text(table: PlannedTable) -> str:
    columns = ", ".join(map(quoted_name, table.columns))
    return quoted_name(table.name) + (f": {columns}" if columns else "")
