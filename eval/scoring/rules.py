"""How a benchmark judges an answer: which SQL runs, what makes rows right, which files its official script takes.

`SpiderRules` and `BirdRules` are the official ones. What a subclass leaves out holds as it is here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

Row = tuple[object, ...]

# Stands for "no prediction": the official scripts need something, and this runs on no database.
PLACEHOLDER = "SELECT no_prediction"

ExactMatch = Callable[[str, str, str], bool | None]
"""(db_id, gold, prediction) -> whether both are the same query; None where that cannot be said."""


class Predicted(Protocol):
    """What a record tells a prediction file."""

    @property
    def db_id(self) -> str: ...

    @property
    def gold(self) -> str: ...

    @property
    def sql(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Marks:
    """What rows are worth; `soft_f1` is None where a benchmark has none."""

    correct: bool
    soft_f1: float | None = None


class Rules(ABC):
    """The rules of a benchmark. They hold no state: the scoring process imports the class by its module and name.

    levels: the difficulties in the order of a summary. lenient: bytes that are not UTF-8 are dropped; else such a query fails.
    shared_deadline: the gold query's time counts towards the prediction's. has_soft_f1, has_ves: whether rows have a soft F1,
    and whether correct SQL is timed for R-VES.
    """

    levels: ClassVar[Sequence[str]] = ()
    lenient: ClassVar[bool] = False
    shared_deadline: ClassVar[bool] = False
    has_soft_f1: ClassVar[bool] = False
    has_ves: ClassVar[bool] = False

    @abstractmethod
    def marks(self, gold: str, gold_rows: Sequence[Row], rows: Sequence[Row]) -> Marks:
        """What the predicted `rows` are worth beside those of the query `gold`."""

    def prediction(self, sql: str) -> str:
        """A prediction as files hold it and as it is scored; never empty."""
        return sql.strip() or PLACEHOLDER

    def runnable_gold(self, gold: str) -> str:
        """The gold query as it is run."""
        return gold

    def runnable(self, prediction: str) -> str:
        """What `prediction` gave, as it is run."""
        return prediction

    def databases(self, database: Path) -> Sequence[Path]:
        """The SQLite files on which an answer must be right."""
        return [database]

    def exact_match(self, tables: Path | None) -> ExactMatch:
        """How two queries are compared as texts. `tables`: Spider's tables.json, where the data set has one."""
        return lambda db_id, gold, prediction: None

    def files(self, records: Sequence[Predicted]) -> Mapping[str, str]:
        """What the official script takes: names of files and their content, an entry for each question, in order."""
        return {}
