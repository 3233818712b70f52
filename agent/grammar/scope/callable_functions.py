"""The functions that a constrained statement may call, with their numbers of arguments; all of them pass the guard.

These are the functions that questions about data need: a subset of `tools/guard/allowed_functions.py` and of the functions
for which sqlglot has classes.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["aggregate", "scalar", "window"]
ANY = 9


@dataclass(frozen=True, slots=True)
class Function:
    """A function and its least and greatest number of arguments."""

    name: str
    kind: Kind
    least: int
    most: int


def _functions(kind: Kind, text: str) -> dict[str, Function]:
    """Parse entries `name/least` or `name/least-most`, where `+` means any number."""
    found = {}
    for entry in text.split():
        name, _, arity = entry.partition("/")
        least, _, most = arity.partition("-")
        found[name] = Function(name, kind, int(least), ANY if most == "+" else int(most or least))
    return found


_COMMON = {
    **_functions("aggregate", "count/1 sum/1 avg/1 min/1 max/1 group_concat/1-2"),
    **_functions(
        "scalar",
        """abs/1 round/1-2 length/1 lower/1 upper/1 trim/1-2 ltrim/1-2 rtrim/1-2 substr/2-3 substring/2-3 replace/3 instr/2
        coalesce/2-+ ifnull/2 nullif/2 sign/1""",
    ),
    **_functions(
        "window",
        """row_number/0 rank/0 dense_rank/0 percent_rank/0 cume_dist/0 ntile/1 lag/1-3 lead/1-3 first_value/1
        last_value/1""",
    ),
}
_SQLITE = {
    **_COMMON,
    **_functions("aggregate", "total/1"),
    **_functions("scalar", "iif/3 strftime/2-4 date/0-4 time/0-4 datetime/0-4 julianday/0-4 typeof/1 unicode/1"),
}
_DUCKDB = {
    **_COMMON,
    **_functions(
        "aggregate",
        """any_value/1 first/1 last/1 arg_max/2 arg_min/2 max_by/2 min_by/2 median/1 mode/1 stddev/1 variance/1 bool_and/1
        bool_or/1 string_agg/2 list/1 quantile_cont/2 approx_count_distinct/1""",
    ),
    **_functions(
        "scalar",
        """strftime/2 strptime/2 date_part/2 date_trunc/2 date_diff/3 year/1 month/1 day/1 hour/1 minute/1 quarter/1
        week/1 dayofweek/1 contains/2 starts_with/2 ends_with/2 concat/1-+ concat_ws/2-+ left/2 right/2 greatest/2-+
        least/2-+ floor/1 ceil/1 sqrt/1 power/2 ln/1 mod/2 regexp_matches/2 regexp_replace/3-4 split_part/3 make_date/3
        typeof/1 strpos/2 lpad/3 rpad/3 reverse/1 epoch/1 julian/1 now/0 today/0""",
    ),
}
FUNCTIONS = {"sqlite": _SQLITE, "duckdb": _DUCKDB}
