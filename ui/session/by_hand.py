"""What a person has done after an answer: other SQL in its place, its steps timed with plain decoding."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

from agent.conversation.json_values import plain_rows
from agent.conversation.race import plain_time_ms
from agent.graph.presentation.present import present
from agent.graph.presentation.shown import shown_as_result
from agent.graph.toolbox import Toolbox
from agent.observe.audit import Trail, run_sql
from agent.observe.events import Measured, Ran
from tools.databases.database import Database
from tools.result import Limits, OpenError, QueryError, Result
from ui.session.conversation_view import TurnView

STORED_ROWS = 200  # of a result, in the archive and in a shared file
LONGEST_SQL = 256_000  # characters of a statement that is run by hand


def ran_by_hand(
    trail: Trail | None, database: Database, sql: str, limits: Limits, turn: int
) -> tuple[Ran, Result | None]:
    """What running a statement for a turn gave; of one that is too long the SQL is not kept."""
    if len(sql) > LONGEST_SQL:
        return Ran(
            turn, "", error=asdict(QueryError("refused", f"refused: more than {LONGEST_SQL:,} characters"))
        ), None
    outcome = run_sql(trail, database, sql, limits)
    if isinstance(outcome, QueryError):
        return Ran(turn, sql, error=asdict(outcome)), None
    rows = tuple(map(tuple, plain_rows(outcome.rows[:STORED_ROWS])))
    ran = Ran(turn, sql, outcome.columns, rows, len(outcome.rows), outcome.truncated, outcome.wall_ms)
    return ran, outcome


def every_row(trail: Trail | None, database: Database, sql: str, limits: Limits, *, as_answered: bool) -> Result:
    """All rows of a query; `as_answered`: with the headings and names that its answer shows. Raises OpenError."""
    run = partial(run_sql, trail, database, limits=limits)
    outcome = run(sql)
    if isinstance(outcome, QueryError):
        raise OpenError(outcome.message)
    return shown_as_result(present(outcome, sql, database.schema(), run), outcome) if as_answered else outcome


def measured(toolbox: Toolbox, turns: Sequence[TurnView]) -> Iterator[Measured]:
    """Time the newest turn's estimated steps with plain decoding. Raises NoRace and Stopped."""
    last = len(turns) - 1
    for place in turns[last].estimated:
        step = turns[last].steps[place]
        wall_ms = (step.record or {})["wall_ms"]
        yield Measured(last, place, plain_time_ms(toolbox, step.name, step.rounds, wall_ms))
