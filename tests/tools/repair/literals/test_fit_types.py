"""Numbers are compared with the numbers that are said, and dates with no words; anything else stays."""

import pytest

from tools.repair.literals.fit_types import fit_types
from tools.schema import Column, Schema, Table

LINE = Table(
    "lines",
    (Column("seconds", "INTEGER"), Column("returned", "DATE"), Column("reason", "TEXT"), Column("day", "INTEGER")),
)
SCHEMA = Schema((LINE,), "duckdb")
FIND = "SELECT COUNT(*) FROM lines WHERE"


@pytest.mark.parametrize(
    ("condition", "question", "then"),
    [
        ("CAST(seconds AS TEXT) ILIKE '3:%'", "Less than 3 minutes?", "seconds = 3"),
        ("CAST(seconds AS TEXT) = 'one'", "one-star ones", "seconds = 1"),
        ("seconds LIKE 'two stars'", "2 stars", "seconds = 2"),
        ("CAST(returned AS TEXT) = 'scratched' AND reason = 'scratched'", "Scratched?", "reason = 'scratched'"),
        ("day > 1 AND reason = 'late' AND returned = 'late'", "Late?", "day > 1 AND reason = 'late'"),
    ],
)
def test_literals_fit_their_columns(condition: str, question: str, then: str) -> None:
    assert fit_types(f"{FIND} {condition}", SCHEMA, question) == f"{FIND} {then}"
    assert fit_types(f"{FIND} {then}", SCHEMA, question) is None


@pytest.mark.parametrize(
    ("condition", "question"),
    [
        ("CAST(day AS TEXT) LIKE '2019%'", "In 2019?"),  # the first digits of a number
        ("CAST(day AS TEXT) LIKE '%3%'", "With a 3?"),
        ("CAST(seconds AS TEXT) = 'one'", "Which ones?"),  # nobody says the number
        ("CAST(seconds AS TEXT) ILIKE '3:5%'", "Between 3 and 5?"),
        ("reason LIKE '3 days'", "After 3 days?"),
        ("CAST(returned AS TEXT) = 'scratched'", "Scratched?"),  # no other condition has it
        ("returned = 'scratched' OR reason = 'scratched'", "Scratched?"),
        ("returned = '2024-05-01' AND reason = '2024-05-01'", "On 2024-05-01?"),
    ],
)
def test_other_comparisons_stay(condition: str, question: str) -> None:
    assert fit_types(f"{FIND} {condition}", SCHEMA, question) is None
    assert fit_types(f"{FIND} {condition} (", SCHEMA, question) is None
