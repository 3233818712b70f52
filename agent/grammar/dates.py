"""Dates and times that a question may mean, spelled as a column spells them.

A question says "in March 2023" or "before 10 in the morning", and its SQL compares with '2023-03-01', 20230331 or '10:00'.
All days and months of the years that were said are therefore literals that the asker named, and so are the half hours of a
day.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import prod

_MONTHS, _DAYS = range(1, 13), range(1, 32)
_ISO = "{year}-{month:02}-{day:02}"
_DAY = ("{year}-{month:02}", "{year}")  # the beginnings of a day, with which texts are compared, too
_FORMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\d{4}-\d\d-\d\d", (_ISO, *_DAY)),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d", (_ISO, _ISO + " 00:00", _ISO + " 23:59", *_DAY)),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d.*", (_ISO, _ISO + " 00:00:00", _ISO + " 23:59:59", *_DAY)),
    (r"\d{4}/\d\d/\d\d", ("{year}/{month:02}/{day:02}",)),
    (r"\d{4}\.\d\d\.\d\d", ("{year}.{month:02}.{day:02}",)),
    (r"\d\d?\.\d\d?\.\d{4}", ("{day:02}.{month:02}.{year}",)),
    (r"\d\d?/\d\d?/\d{4}", ("{month:02}/{day:02}/{year}", "{day:02}/{month:02}/{year}")),
    (r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])", ("{year}{month:02}{day:02}",)),
    (r"(?:19|20)\d\d(?:0[1-9]|1[0-2])", ("{year}{month:02}",)),
    (r"\d{4}-\d\d", ("{year}-{month:02}", "{year}")),
)
_READ = re.compile(
    r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?|\d\d:\d\d(?::\d\d(?:\.\d+)?)?"
)  # what SQLite's functions of dates understand
_SINCE = range(200_000_000, 3_000_000_000)  # seconds since 1970 from 1976 to 2065
_YEAR = re.compile(r"(?:19|20)\d\d")
_CLOCK = re.compile(r"\d\d:\d\d(?P<seconds>:\d\d)?")


def moments_like(samples: Sequence[str], said: frozenset[str]) -> frozenset[str]:
    """Literals in the form of the samples that lie in a year that was said, or begin the year after it; half hours for times of
    the day. Empty where the samples have no such form. `said`: the numbers of the question.

    >>> days = moments_like(("2021-05-06", "2021-05-07"), frozenset({"2023", "7"}))
    >>> "2023-03-31" in days, "2024-01-01" in days, "2021-05-06" in days
    (True, True, False)
    >>> "20231201" in moments_like(("20240131",), frozenset({"2023"})), "07:30" in moments_like(("09:15",), frozenset())
    (True, True)
    """
    if not samples:
        return frozenset()
    clock = _CLOCK.fullmatch(samples[0])
    if clock is not None and all(map(_CLOCK.fullmatch, samples)):
        return _half_hours(bool(clock["seconds"]))
    years = frozenset(number for number in said if _YEAR.fullmatch(number))
    for form, spellings in _FORMS if years else ():
        if all(re.fullmatch(form, sample) for sample in samples):
            return frozenset(text for year in years for text in _in_year(int(year), spellings))
    return frozenset()


def spelling(samples: Sequence[str], declared: bool) -> str:
    """How a column with these samples holds dates: as "text" that SQLite reads, as "seconds" or "milliseconds" since 1970,
    or in an "other" spelling; empty if it holds none. declared: its type says that it holds some.

    >>> [spelling([sample], False) for sample in ("2021-05-06 10:00", "1620295200", "06.05.2021", "2021", "Ada")]
    ['text', 'seconds', 'other', '', '']
    """
    if not samples:
        return "text" if declared else ""
    if all(map(_READ.fullmatch, samples)):
        return "text"
    whole = [int(sample) for sample in samples if sample.isascii() and sample.isdigit()]
    if len(whole) == len(samples):
        if all(number in _SINCE for number in whole):
            return "seconds"
        if all(number // 1000 in _SINCE for number in whole):
            return "milliseconds"
    if any(all(re.fullmatch(form, sample) for sample in samples) for form, _ in _FORMS):
        return "other"
    return "text" if declared else ""


_PARTS = {
    "%y": tuple(f"{year}" for year in range(1900, 2100)),
    "%m": tuple(f"{part:02}" for part in range(60)),  # months or minutes
    "%d": tuple(f"{day:02}" for day in _DAYS),
    "%h": tuple(f"{hour:02}" for hour in range(24)),
    "%w": (*map(str, range(7)), *(f"{week:02}" for week in range(54))),  # days of a week or weeks of a year
    "%j": tuple(f"{day:03}" for day in range(1, 367)),
}
_MANY = 5000


@lru_cache(maxsize=256)
def written_as(form: str, said: frozenset[str]) -> frozenset[str]:
    """The texts that STRFTIME writes in this form, which is in lower case; of whole days only those of the years that were said
    and of the following ones. Empty where there are too many.

    >>> months = written_as("%y-%m", frozenset())
    >>> "2024-03" in months, "2024" in months, "2024-13" in months
    (True, False, False)
    >>> len(written_as("%y-%m-%d", frozenset({"2024"}))), len(written_as("%y-%m-%d", frozenset()))
    (744, 0)
    """
    parts = [_PARTS.get(part, (part,) if "%" not in part else ()) for part in re.split(r"(%\w)", form) if part]
    if "%m" in form and not form.startswith("%h") and form != "%m":
        parts[parts.index(_PARTS["%m"])] = tuple(f"{month:02}" for month in _MONTHS)
    years = {int(number) for number in said if _YEAR.fullmatch(number)}
    if form.startswith("%y") and prod(map(len, parts)) > _MANY:
        parts[0] = tuple(str(year) for year in sorted({*years, *(year + 1 for year in years)}))
    return frozenset(map("".join, product(*parts))) if prod(map(len, parts)) <= _MANY else frozenset()


@lru_cache(maxsize=2)
def _half_hours(with_seconds: bool) -> frozenset[str]:
    end = ":00" if with_seconds else ""
    return frozenset(f"{hour:02}:{minute:02}{end}" for hour, minute in product(range(24), (0, 30)))


@lru_cache(maxsize=64)
def _in_year(year: int, spellings: tuple[str, ...]) -> frozenset[str]:
    days = [*product((year,), _MONTHS, _DAYS), (year + 1, 1, 1)]
    return frozenset(form.format(year=of, month=month, day=day) for form in spellings for of, month, day in days)
