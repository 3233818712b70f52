"""How SQL that the model wrote is checked, repaired, run and compared, and what nodes read from the state.

Several SQL candidates are run, and one is chosen by what they return. The model writes one dialect; if that is not the
database's, its SQL is translated before it is checked, and prompts show the conversation's SQL as the model would have written
it. A question in a conversation has two readings, by itself or as a follow-up; `Reading` says what each shows the model, and
which one's SQL is preferred. That needs no model and runs no query.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from math import isfinite
from time import perf_counter
from typing import Any

from langgraph.runtime import Runtime
from sqlglot import exp, parse_one
from sqlglot.optimizer.normalize_identifiers import normalize_identifiers

from agent.ask_model import Reply, prompt_slots, tries_of
from agent.context import AgentContext
from agent.follow_ups import new_words
from agent.observe.audit import run_sql
from agent.observe.events import Finished, Started
from agent.observe.step_record import Step
from agent.prompts.knowledge import names_in, without_names
from agent.prompts.slots import Slots
from agent.state import Attempt, DrawnPlan, Proposal, Reading, State, Turn, Written
from tools.databases.choices import with_choices
from tools.linking.link_schema import Link, Mentions, link, mentions
from tools.linking.match_values import ValueMatch, spellings
from tools.linking.mentions import QuestionContext, with_plain_numbers
from tools.linking.periods import period_definitions
from tools.linking.taught import (
    Definition,
    as_said,
    definition,
    denied_values,
    expanded,
    is_said,
    used,
    with_definitions,
)
from tools.linking.taught import values_of as values_said
from tools.repair.rules import repair_query
from tools.result import QueryError, Result
from tools.schema import Schema, in_dialect
from tools.sql.from_sqlite import from_sqlite, in_sqlite
from tools.sql.scope import parse_or_nothing
from tools.sql.spelling import qualified
from tools.sql.to_sqlite import bare_names, to_sqlite

Outcome = Result | QueryError
OUT_OF_TIME = QueryError("timeout", "the candidates before it used up the time")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A statement that was run, and what `Proposal` says of it."""

    sql: str
    outcome: Outcome
    log_likelihood: float = 0.0
    drawn: int = 1  # how many samples gave this plan
    votes: int = 0  # how many samples have the same result, including its own
    plan: str = ""
    written: Written | None = None
    repaired: bool = False

    @property
    def proposal(self) -> Proposal:
        return Proposal(sql=self.sql, written=self.written, repaired=self.repaired)


def drawn_plans(texts: Iterable[str], log_likelihoods: Iterable[float], reading: Reading) -> list[DrawnPlan]:
    """The distinct plans among the samples, in order of first appearance."""
    plans: dict[str, DrawnPlan] = {}
    for text, log_likelihood in zip(texts, log_likelihoods, strict=True):
        plan = plans.setdefault(text, DrawnPlan(text=text, drawn=0, log_likelihood=log_likelihood, reading=reading))
        plan["drawn"] += 1
    return list(plans.values())


def outcomes(
    checked: Sequence[tuple[str, QueryError | None]], run: Callable[[str, float], Outcome], deadline_s: float
) -> list[Outcome]:
    """What each checked statement returns; those with an error are not run, and equal ones run once.

    `run` takes a statement and its deadline in seconds. All together have `deadline_s`. A statement that others follow may
    take half of what is left, so that a slow one does not keep a quick one from being run.
    """
    end, done = perf_counter() + deadline_s, {sql: error for sql, error in checked if error is not None}
    waiting = list(dict.fromkeys(sql for sql, error in checked if error is None))
    ran: dict[str, Outcome] = {}
    for place, sql in enumerate(waiting, 1):
        left_s = end - perf_counter()
        share_s = left_s if place == len(waiting) else left_s / 2
        ran[sql] = run(sql, share_s) if left_s > 0 else OUT_OF_TIME
    return [(done | ran)[sql] for sql, _ in checked]


def elect(candidates: Sequence[Candidate], dialect: str) -> list[Candidate]:
    """The candidates, best first: results with rows before empty ones, then by votes, likelihood and order; failures last."""
    prints = [fingerprint(each.outcome, is_ordered(each.sql, dialect)) for each in candidates]
    counts = Counter[object]()
    for each, known in zip(candidates, prints, strict=True):
        counts[known] += each.drawn
    voted = [replace(each, votes=counts[known]) for each, known in zip(candidates, prints, strict=True)]
    return sorted(voted, key=_rank)


def _rank(candidate: Candidate) -> tuple[bool, bool, int, float]:
    failed = isinstance(candidate.outcome, QueryError)
    empty = isinstance(candidate.outcome, Result) and not candidate.outcome.rows
    return failed, empty, -candidate.votes, -candidate.log_likelihood


def fingerprint(outcome: Outcome, ordered: bool) -> object:
    """A value that is equal for results with the same rows, whatever the order of the columns and the kinds of number, and in
    any order unless they are `ordered`. A result that the row cap cut never equals a whole one.

    Sorted rows that tie may come in another order, and then differ. Rows are compared as bags of cells, and columns too; in
    rare cases, where columns hold the same cells, that takes different results for equal.
    """
    if isinstance(outcome, QueryError):
        return ("error", outcome.kind)
    cells = [[_cell(each) for each in row] for row in outcome.rows]
    rows = [tuple(sorted(row)) for row in cells]
    columns = sorted(tuple(sorted(column)) for column in zip(*cells, strict=True))
    in_order = tuple(rows) if ordered and len(rows) > 1 else frozenset(Counter(rows).items())
    return (len(outcome.columns), outcome.truncated, tuple(columns), in_order)


def _cell(value: Any) -> str:
    """The value as text that starts with its kind: 2, 2.0 and 2.00 are one number, and the text 2 is none."""
    if isinstance(value, bool | int | float | Decimal) and isfinite(value):
        return f"n{int(value)}" if value == int(value) else f"n{float(value):.10g}"
    if isinstance(value, datetime | date):
        return f"t{value.isoformat(' ') if isinstance(value, datetime) else value.isoformat()}"
    return f"t{value}" if isinstance(value, str) else f"o{value!r}"


def same_rows(one: Result, other: Result) -> bool:
    """Whether two results have the same rows, in any order, where one may show further columns (compared as `fingerprint`
    does)."""
    if fingerprint(one, ordered=False) == fingerprint(other, ordered=False):
        return True
    columns = [
        Counter(tuple(sorted(map(_cell, column))) for column in zip(*each.rows, strict=True))
        for each in sorted((one, other), key=lambda each: len(each.columns))
    ]
    return bool(one.rows) and len(one.rows) == len(other.rows) and not columns[0] - columns[1]


def is_ordered(sql: str, dialect: str) -> bool:
    """Whether the statement sorts its rows."""
    trees = parse_or_nothing(sql, dialect)
    return len(trees) == 1 and isinstance(trees[0], exp.Query) and trees[0].args.get("order") is not None


def same_sql(one: str, other: str, dialect: str) -> bool:
    """Whether two statements differ only in layout, in the case of keywords and names, and in comments."""
    return _normal(one, dialect) == _normal(other, dialect)


def _normal(sql: str, dialect: str) -> str:
    try:
        return normalize_identifiers(parse_one(sql, dialect=dialect), dialect).sql(dialect, comments=False)
    except Exception:  # whatever sqlglot may raise: its writer fails with AttributeError at DuckDB's DATETIME(x)
        return " ".join(sql.split()).rstrip(";").lower()


def model_dialect(toolbox: AgentContext) -> str:
    """The dialect that prompts name and grammars allow."""
    return toolbox.profile.dialect(toolbox.database.dialect)


def definitions(state: State, toolbox: AgentContext) -> tuple[Definition, ...]:
    """What the question says of what people taught: formulas, conditions and other names of columns."""
    if model_dialect(toolbox) != "sqlite":  # a model that writes other SQL reads the notes
        return ()
    said = " ".join((asked(state), *(question for question, _ in history(state))))
    schema = toolbox.database.schema()
    pairs = dict((*toolbox.options.knowledge.names, *names_in(state["evidence"])))
    found = (definition(schema, name, meaning) for name, meaning in pairs.items() if is_said(name, said))
    named = [as_said(each, said) for each in found if each]
    links = tuple(Link(**each) for each in state["links"])
    named += denied_values(schema, asked(state), values_of(state))
    return (*named, *period_definitions(schema, asked(state), links, date.today()))


def applied_definitions(state: State, toolbox: AgentContext) -> list[Definition]:
    """Those that the answer's SQL has. SQL that a person wrote or chose has none."""
    by_a_person = state["example"] or state["chosen"] or not state["sql"]
    return [] if by_a_person else used(definitions(state, toolbox), state["sql"], toolbox.database.dialect)


def spellings_told(state: State, toolbox: AgentContext) -> list[str]:
    """What an answer says of values that its SQL compares in several spellings."""
    trees = parse_or_nothing(state["sql"], toolbox.database.dialect)
    literals = {each.name for tree in trees for each in tree.find_all(exp.Literal)}
    return [
        f"Here {column} may be written {' or '.join(map('“{}”'.format, texts))}."
        for ((_, column), _), texts in spellings(values_of(state)).items()
        if {*texts} <= literals
    ]


def translated(toolbox: AgentContext, sql: str, state: State) -> str:
    """The model's SQL in the database's dialect, with the formulas of what was taught. It stays as it is where it means the
    same there, and where it cannot be read, so that checking says why."""
    dialect = toolbox.database.dialect
    if known := definitions(state, toolbox):
        sql = toolbox.optional("translate", partial(expanded, sql, known, toolbox.database.schema()), sql)
    if model_dialect(toolbox) == dialect:
        is_sqlite = dialect == "sqlite"
        return (
            toolbox.optional("translate", partial(in_sqlite, sql, toolbox.database.schema()), sql) if is_sqlite else sql
        )

    def found() -> str:
        try:
            translation = from_sqlite(sql, toolbox.database.schema(), exactly=False)
        except ValueError:
            return sql
        return sql if same_sql(sql, translation, dialect) else translation

    return toolbox.optional("translate", found, sql)


def as_written(toolbox: AgentContext, sql: str) -> str:
    """SQL of the database in the model's dialect, with the names that the prompt shows."""
    schema = toolbox.database.schema()
    back = bare_names if model_dialect(toolbox) == schema.dialect else to_sqlite
    return toolbox.optional("translate", partial(back, sql, schema), sql)


_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def history(state: State) -> tuple[tuple[str, str], ...]:
    """The earlier question and SQL that the prompt shows: the turn that a follow-up continues, nothing otherwise."""
    turn = None if state["resolved"] else continued(state)
    return ((turn["question"], turn["sql"]),) if turn else ()


def asked(state: State) -> str:
    """The question as it is put to the model."""
    return state["question"] if state["reading"] == "standalone" else state["resolved"] or state["question"]


def continued(state: State) -> Turn | None:
    """The turn that the question continues under the state's reading; None if it continues none."""
    turns = state.get("turns") or []
    if state["reading"] == "standalone" or not turns:
        return None
    place = state["leans_on"]
    return turns[-1 if place is None else place]


def continued_number(state: State) -> int | None:
    """The number of the question that the answer continues, from 1."""
    if state["completes"] is not None:
        return state["completes"]
    turn = continued(state)
    return None if turn is None else turn.get("number") or (state["leans_on"] or 0) + 1


def turn_of(state: State) -> Turn:
    """The turn as later questions may refer to it."""
    preview = state["preview"] or {"rows": [], "row_count": 0}
    entity = entity_of(preview["rows"], preview["row_count"])
    return Turn(question=state["question"], sql=state["sql"], number=state["number"], entity=entity)


def entity_of(rows: Sequence[Sequence[Any]], row_count: int) -> str | None:
    """What an answer of one row names: its first text value."""
    texts = (cell for cell in rows[0] if isinstance(cell, str)) if row_count == 1 and rows else iter(())
    return next(texts, None)


def repeats_a_turn(state: State, sql: str, dialect: str) -> bool:
    """Whether a follow-up, not yet read by itself, got the SQL of a question that lacks one of its content words."""
    if state["reading"] == "standalone" or len(state["readings"]) > 1 or state["requested"] is not None:
        return False
    turns = state.get("turns") or []
    return any(new_words(state["question"], turn["question"]) and same_sql(sql, turn["sql"], dialect) for turn in turns)


def choose_reading(state: State, schema: Schema, checked: Sequence[tuple[str, QueryError | None]]) -> int:
    """Index of the best of `state["readings"]`, judged by their checked SQL: first by having no error, then by not repeating
    another question's SQL, then by how much of the question it covers, then by which reading is likelier.
    """
    named = mentions(schema, state["question"])

    def rank(place: int) -> tuple[bool, bool, float, int]:
        sql, error = checked[place]
        follow_up = state["readings"][place] == "follow_up"
        repeats = follow_up and repeats_a_turn(state | {"readings": ["follow_up"]}, sql, schema.dialect)
        return error is not None, repeats, -coverage(sql, state, named, schema.dialect), place

    return min(range(len(checked)), key=rank)


def coverage(sql: str, state: State, named: Mentions, dialect: str) -> float:
    """The share of what a question names (tables, columns, values, numbers) that its SQL uses; 0 if it names nothing."""
    nodes = [node for tree in parse_or_nothing(sql, dialect) for node in tree.walk()]
    tables = {node.name.casefold() for node in nodes if isinstance(node, exp.Table)}
    columns = {node.name.casefold() for node in nodes if isinstance(node, exp.Column)}
    literals = {str(node.this).casefold() for node in nodes if isinstance(node, exp.Literal)}
    used = [name.casefold() in tables for name in named.tables]
    used += [name.casefold() in columns for name in dict.fromkeys(column for _, column in named.columns)]
    used += [bool(cells & literals) for cells in _cells_by_phrase(state)]
    used += [number in literals for number in _NUMBER.findall(state["question"])]
    return sum(used) / len(used) if used else 0.0


def _cells_by_phrase(state: State) -> list[set[str]]:
    found: dict[str, set[str]] = {}
    for value in state["values"]:
        found.setdefault(value["phrase"], set()).add(str(value["value"]).casefold())
    return list(found.values())


Tools = Runtime[AgentContext]


def slots(state: State, toolbox: AgentContext) -> Slots:
    """The prompt's slots from the state."""
    dialect, examples = model_dialect(toolbox), toolbox.options.knowledge.similar(state["question"])
    schema, known = in_dialect(toolbox.database.schema(), dialect), definitions(state, toolbox)
    said = values_said(known, asked(state))
    values = (*(each for each in values_of(state) if not any(each.phrase in other.phrase for other in said)), *said)
    noted = {f"{each.name}: {each.meaning}" for each in known}
    shown = prompt_slots(
        with_plain_numbers(asked(state)),
        schema,
        dialect,
        toolbox.options,
        links=_links(state, toolbox, schema, known, values),
        values=values,
        history=tuple((question, as_written(toolbox, sql)) for question, sql in history(state)),
        plan=state["plan"],
        tries=tuple(replace(each, sql=as_written(toolbox, each.sql)) for each in tries_of(state["attempts"])),
        knowledge=tuple(each for each in toolbox.options.knowledge.about(state["question"]) if each not in noted),
        examples=tuple((question, as_written(toolbox, sql)) for question, sql in examples),
        evidence=without_names(state["evidence"], {each.name for each in known}),
    )
    if toolbox.options.values and toolbox.profile.shows_choices:
        shown = replace(shown, schema=with_choices(shown.schema, toolbox.database))
    return replace(shown, schema=with_definitions(shown.schema, known)) if known else shown


def _links(
    state: State, toolbox: AgentContext, schema: Schema, known: Sequence[Definition], values: Sequence[ValueMatch]
) -> tuple[Link, ...]:
    """The links of the state; with what was taught, they are found in the schema that has it."""
    if not known or not toolbox.options.hints:
        return tuple(Link(**each) for each in state["links"])
    evidence = without_names(state["evidence"], {each.name for each in known})
    return link(with_definitions(schema, known), f"{asked(state)} {evidence}".strip(), values)


def values_of(state: State) -> tuple[ValueMatch, ...]:
    return tuple(ValueMatch(**each) for each in state["values"])


def recorded(state: Mapping[str, Any], runtime: Tools, *steps: Step) -> dict[str, Any]:
    records = [step.to_dict() for step in steps]
    for record in records:
        runtime.stream_writer(Finished(record))
    return {"steps": [*state["steps"], *records]}


def begin(runtime: Tools, name: str) -> float:
    runtime.stream_writer(Started(name))
    return perf_counter()


def since(start: float) -> float:
    return 1e3 * (perf_counter() - start)


def candidates_of(state: State, toolbox: AgentContext, reply: Reply, plans: Sequence[DrawnPlan]) -> list[Candidate]:
    """A candidate for each plan and its text in the reply, repaired and run; together they have the time of one query."""
    values, question = values_of(state), asked(state)
    proposals = proposals_of(state, toolbox, reply)
    checked = [check_sql(toolbox, each["sql"], values, question) for each in proposals]

    def run(sql: str, deadline_s: float) -> Outcome:
        return run_sql(toolbox.trail, toolbox.database, sql, replace(toolbox.limits, deadline_s=deadline_s))

    ran = outcomes(checked, run, toolbox.limits.deadline_s)
    found = zip(plans, proposals, checked, ran, reply.log_likelihoods, strict=True)
    return [
        Candidate(
            sql,
            outcome,
            plan["log_likelihood"] + log_likelihood,
            plan["drawn"],
            plan=plan["text"],
            written=proposal["written"],
            repaired=sql != proposal["sql"],
        )
        for plan, proposal, (sql, _), outcome, log_likelihood in found
    ]


def proposals_of(state: State, toolbox: AgentContext, reply: Reply) -> list[Proposal]:
    """What each text of the reply proposes."""
    return [
        Proposal(sql=translated(toolbox, sql, state), written=Written(text=sql, log_probs=list(known)), repaired=False)
        for sql, known in zip(map(toolbox.profile.read_sql, reply.texts), reply.log_probs, strict=True)
    ]


def check_sql(
    toolbox: AgentContext, sql: str, values: Sequence[ValueMatch], question: str | None
) -> tuple[str, QueryError | None]:
    """The SQL, repaired if the options allow it, with the schemas of its tables, and the error that is left, if any. Without
    a question it is not repaired."""
    if not sql:
        return sql, QueryError("syntax", "the model wrote no SQL")
    fixed, error = _repaired(toolbox, sql, values, question)
    return qualified(fixed, toolbox.database.schema()).text, error


def _repaired(
    toolbox: AgentContext, sql: str, values: Sequence[ValueMatch], question: str | None
) -> tuple[str, QueryError | None]:
    if not toolbox.options.repair or question is None:
        return sql, toolbox.database.explain(sql, toolbox.limits)
    context = QuestionContext(question, tuple(values), without=toolbox.options.without_rules)
    repairing = partial(repair_query, sql, toolbox.database, context, toolbox.limits)
    return toolbox.optional("repair", repairing, None) or (sql, toolbox.database.explain(sql, toolbox.limits))


def may_try_again(toolbox: AgentContext, attempts: list[Attempt]) -> bool:
    return len(attempts) < toolbox.options.max_attempts


def preview_of(result: Result, rows: int) -> dict[str, Any]:
    """What the state keeps of a result: columns, first rows, row count and truncated flag."""
    shown = [[_plain(cell) for cell in row] for row in result.rows[:rows]]
    return {
        "columns": list(result.columns), "rows": shown, "row_count": len(result.rows), "truncated": result.truncated
    }  # fmt: skip


def _plain(cell: Any) -> Any:
    return cell if cell is None or isinstance(cell, str | int | float | bool) else str(cell)
