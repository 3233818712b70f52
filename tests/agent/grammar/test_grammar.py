"""The constraint itself: masks equal to the plain reference, no dead ends, statements that bind, names only where they are."""

import random
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch

from agent.grammar.constraint import GrammarConstraint, Mask, State, sql_constraint
from agent.grammar.machine import LexState, beginning, feed
from agent.grammar.scope import catalog_of
from agent.grammar.words import FUNCTIONS
from agent.prompts.slots import Form
from decoding.engine.loop import Request, decode
from decoding.engine.sampler import Sampler
from decoding.methods.registry import METHODS
from decoding.targets.fast_target import FastTarget
from decoding.tokenizer import Tokenizer
from tests.agent.grammar.random_statements import random_statement
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.guard.guard import guard
from tools.schema import Column, Schema, Table

STOP = frozenset({2})
TABLES = {
    "singer": ("singer_id", "Name", "Country", "Age"),
    "concert": ("concert_id", "Title", "Year", "singer_id"),
    "Order": ("order_id", "Full Price", "Größe"),
}
SCHEMA = Schema(
    tuple(Table(name, tuple(Column(c, "TEXT") for c in columns)) for name, columns in TABLES.items()), "sqlite"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", seed=5, vocab=1000, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer(checkpoint)


@pytest.fixture(scope="module")
def engine() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for name, columns in TABLES.items():
        listed = ", ".join(f'"{column}" TEXT' for column in columns)
        connection.execute(f'CREATE TABLE "{name}" ({listed})')
    return connection


def accepted(sql: str, dialect: str = "sqlite", schema: Schema = SCHEMA) -> bool:
    reading: LexState | None = LexState(beginning(catalog_of(schema, dialect)))
    for character in sql.lower():
        reading = feed(reading, character) if reading else None
    end = reading.settled() if reading else None
    return end is not None and end.complete


GOOD = [
    "select name from singer",
    "SELECT T1.Name, count(*) FROM singer AS T1 JOIN concert AS T2 ON T1.singer_id = T2.singer_id GROUP BY T1.Name",
    "select title, age from singer join concert using (singer_id)",
    "select t.age from (select age, count(*) as n from singer group by age) as t order by t.n desc limit 3",
    "with old as (select name as who, age from singer where age > 60) select who from old order by age",
    "select name from singer as s where exists (select 1 from concert where singer_id = s.singer_id)",
    "select name from singer where age > (select avg(age) from singer) and country like '%an''ce'",
    'select [full price] from `order` where "Full Price" between 1 and 2.5',
    "select country from singer union select title from concert order by 1",
    "select name, rank() over (partition by country order by age desc) as r from singer",
    "select * from singer except select * from singer as s where s.age is not null",
    "select case when age > 30 then 'old' else 'young' end as c, count(name) from singer group by c having sum(age) > 1;",
]
BAD = {
    "select nme from singer": "an invented column",
    "select name from singers": "an invented table",
    "select title from singer": "a column of another table",
    "select t1.title from singer as t1": "an alias whose table lacks the column",
    "select t2.name from singer as t1": "an alias that FROM never names",
    "select singer_id from singer join concert on 1": "an ambiguous column",
    "select name from singer where count(*) > 1": "an aggregate in WHERE",
    "select max(count(*)) from singer": "an aggregate in an aggregate",
    "select name from singer order by count(*)": "an aggregate in ORDER BY without a group",
    "select name from singer where age in (select age, name from singer)": "a subquery of two columns",
    "select name, age from singer union select name from singer": "arms of unequal width",
    "select name from singer order by 2": "a position that is not there",
    "select name from singer where": "an unfinished statement",
    "select name from singer -- x": "a comment",
    "delete from singer": "no query",
    "select readfile('x')": "a function that is not allowed",
    "select name from sqlite_master": "a system table",
}


@pytest.mark.parametrize("sql", GOOD)
def test_good_statements_are_accepted(sql: str, engine: sqlite3.Connection) -> None:
    engine.execute(f"EXPLAIN {sql}")
    assert accepted(sql)


@pytest.mark.parametrize("sql", BAD, ids=BAD.get)
def test_bad_statements_are_not(sql: str) -> None:
    assert not accepted(sql)


def test_the_dialects_differ() -> None:
    for sql in ("select name::text from singer", "select name from singer where name ilike 'a%'"):
        assert accepted(sql, "duckdb") and not accepted(sql)
    for sql in ('select name from singer where name = "Bo"', "select name from singer join concert"):
        assert accepted(sql) and not accepted(sql, "duckdb")
    with pytest.raises(ValueError, match="no grammar for the dialect mysql"):
        sql_constraint(SCHEMA, "mysql", None, STOP)  # type: ignore[arg-type]


def test_from_and_conditions_have_an_end() -> None:
    """A small model that is lost joins the same tables, or repeats a condition, until its tokens are used up."""

    def joins(count: int, selected: str = "singer.name", last: str = "singer as t9") -> str:
        middle = " ".join(f"join singer as t{number} on true" for number in range(count - 2))
        return f"select {selected} from singer {middle} join {last} on true"

    assert accepted(joins(7))
    assert not accepted(joins(8))
    assert accepted(joins(9, "concert.title", "concert")), "what the SELECT list needs may still come"
    conditions = " and ".join(["age > 1"] * 9)
    assert accepted(f"select name from singer where {conditions}")
    assert not accepted(f"select name from singer where {conditions} or age > 1")
    assert accepted(f"select age from singer where {conditions} group by age having {conditions}")
    on = "select name from singer join concert on true and year > 1 and year > 2 and year > 3"
    assert accepted(on)
    assert accepted(f"{on} where {conditions}"), "each clause counts for itself"
    assert not accepted(f"{on} and year > 4")
    assert accepted(f"select age {'+ 1' * 8}, age * 2 from singer")
    assert not accepted(f"select age {'+ 1' * 9} from singer")
    assert accepted(f"select (age {'+ 1' * 8}) * abs(age {'- 1' * 8}) / (age {'+ 1' * 8}) from singer"), (
        "each parenthesis for itself"
    )
    assert not accepted(f"select (age) {'+ (1)' * 9} from singer")


def test_every_function_passes_the_guard() -> None:
    """Guards against a constraint that lets the model write what the guard then refuses."""
    for dialect, functions in FUNCTIONS.items():
        for name, function in functions.items():
            over = " OVER (ORDER BY 1)" if function.kind == "window" else ""
            call = f"SELECT {name}({', '.join('1' * function.least)}){over}"
            assert guard(call, dialect) is None, call


def test_random_statements_bind(engine: sqlite3.Connection) -> None:
    """Guards against names out of scope in corners that no gold query visits; and against positions that lead nowhere."""
    written = [sql for seed in range(500) if (sql := random_statement(SCHEMA, "sqlite", seed)) is not None]
    faults = []
    for sql in written:
        try:
            engine.execute(f"EXPLAIN {sql}")
        except sqlite3.Error as error:
            faults.append(f"{error}: {sql}")
    assert len(written) > 60
    assert len(faults) <= 0.05 * len(written), faults


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
def test_masks_equal_the_reference(dialect: str, tokenizer: Tokenizer) -> None:
    """The reference feeds every token of the vocabulary to the lexer; the masks take short cuts."""
    constraint, dice = sql_constraint(SCHEMA, dialect, tokenizer, STOP), random.Random(3)
    for _ in range(12):
        state = constraint.start()
        for _ in range(30):
            mask = constraint.allowed(state)
            assert np.array_equal(mask, reference(constraint, state, tokenizer)), tokenizer.decode(state.recent)
            tokens = [token for token in mask.nonzero()[0].tolist() if token not in STOP]
            if not tokens:
                break
            state = constraint.step(state, dice.choice(tokens))


def reference(constraint: GrammarConstraint, state: State, tokenizer: Tokenizer) -> Mask:
    return np.array([constraint.admits(state, token) for token in range(tokenizer.vocab_size)])


def test_nothing_but_the_end_behind_the_end(tokenizer: Tokenizer) -> None:
    """Guards against text behind a newline, and against a stop token inside a statement or a string."""
    constraint = sql_constraint(SCHEMA, "sqlite", tokenizer, STOP, form=Form("line"))
    newline, state = tokenizer.encode("\n")[0], constraint.start()
    for token in tokenizer.encode(" SELECT Name FROM singer WHERE Age = 'x"):
        state = constraint.step(state, token)
    assert not constraint.allowed(state)[[2, newline]].any()
    state = constraint.step(state, tokenizer.encode("'")[0])
    assert constraint.allowed(state)[[2, newline]].all()
    state = constraint.step(state, newline)
    assert constraint.allowed(state).nonzero()[0].tolist() == sorted([2, newline])
    assert constraint.forced(state) == ()


@pytest.fixture(scope="module")
def target(checkpoint: Path) -> FastTarget:
    return FastTarget.load(checkpoint, dtype=torch.float32)


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(1.0, 1), Sampler(1.0, 2)], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_constrained_text_is_that_of_constrained_plain(
    method: str, sampler: Sampler, target: FastTarget, tokenizer: Tokenizer, engine: sqlite3.Connection
) -> None:
    """Guards losslessness under masks, pruned drafts and forced tokens. What an untrained model completes, binds."""
    want, got = (constrained(target, tokenizer, name, sampler, 50) for name in ("plain", method))
    assert got == want
    assert len(want) > 3
    if want[-1] in STOP:
        engine.execute(f"EXPLAIN {tokenizer.decode(want)}")


def constrained(target: FastTarget, tokenizer: Tokenizer, method: str, sampler: Sampler, length: int) -> list[int]:
    constraint = sql_constraint(SCHEMA, "sqlite", tokenizer, STOP)
    prompt = tuple(tokenizer.encode("question: which singers are old?\nsql:"))
    request = Request(prompt, ready_method(method, target), length, sampler, STOP, constraint)
    return [token for one in decode(target, [request]) for token in one.text_tokens]


def test_forced_tokens_are_the_tokenizers_own(tokenizer: Tokenizer) -> None:
    """Guards against forced tokens that spell the right text in a way the model has never seen."""
    constraint = sql_constraint(SCHEMA, "sqlite", tokenizer, STOP)
    for written, rest in (
        (" SELECT T1.Cou", "ntry"),
        (" SELECT T1.cou", ""),  # the model writes in lower case what the schema does not
        (" SELECT Name FROM singer GROU", "P BY"),
        (" SELECT Name FROM singer WHERE Age IS NOT N", "ULL"),
        (" SELECT Name FROM sin", "ger"),
        (" SELECT Name FROM si", ""),  # s, i: the tokenizer writes s, in, ge, r
        (" SELECT Name FROM singer ", ""),
    ):
        state = constraint.start()
        for token in tokenizer.encode(written):
            state = constraint.step(state, token)
        forced = constraint.forced(state)
        assert tokenizer.decode(forced) == rest
        assert not forced or tokenizer.encode(written + rest) == [*tokenizer.encode(written), *forced]
