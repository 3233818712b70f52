"""One chat for each database: the order of its questions, what stands before them, resuming, and questions that fail.

Keys of constraints, by which replies are told apart: equal where the grammars allow the same.

BIRD's descriptions stand in the schema of a question's database.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.context import AgentOptions
from agent.grammar.constraint import plan_constraint, sql_constraint
from agent.prompts.slots import Form
from decoding.engine.target import PromptTooLong
from decoding.tokenizer import Tokenizer
from eval.accuracy.predict import FOLDER, ChatPredict, answered, open_described, seeded
from eval.accuracy.record import Prediction, Record, read_records
from eval.accuracy.run import evaluate
from eval.datasets.official import Example, database_file
from eval.datasets.selection import by_database, in_order
from eval.scoring.spider_rules import SPIDER
from tests.agent.grammar.heroes import SCHEMA
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.eval.answering import AnsweringModel, Answers
from tools.linking.mentions import QuestionContext
from tools.result import Limits
from tools.schema import Schema

OPTIONS = AgentOptions(max_attempts=1)
GOLDS = {
    "library": [
        "SELECT name FROM author",
        "SELECT count(*) FROM book",
        "SELECT title FROM book",
        "SELECT body FROM note",
    ],
    "gauge": ["SELECT label FROM reading", "SELECT count(*) FROM grid", "SELECT max(low) FROM reading"],
}


def _examples(invented: Path) -> list[Example]:
    return [
        Example(
            f"{name}/{place}", name, f"What about number {place} of {name}?", gold, database=database_file(root, name)
        )
        for root in [invented / "database"]
        for name, golds in GOLDS.items()
        for place, gold in enumerate(golds)
    ]


def _right(question: str) -> str:
    *_, place, _, name = question.strip("?").split()
    return GOLDS[name][int(place)]


def _but(wrong: dict[str, str]) -> Answers:
    """Right, but for the questions that end so."""
    return lambda question: (
        next((sql for end, sql in wrong.items() if question.endswith(end)), None) or _right(question)
    )


def _run(
    answers: Answers, examples: Sequence[Example], out: Path, **options: Any
) -> tuple[dict[str, Any], AnsweringModel]:
    model = AnsweringModel(answers)
    with closing(ChatPredict(lambda: model, "sqlite", OPTIONS, Limits())) as predict:
        summary = evaluate(
            examples,
            predict,
            "sqlite",
            out,
            dataset="conversation",
            rules=SPIDER,
            recall=predict.recall,
            progress=False,
            **options,
        )
    return summary, model


def _asked(model: AnsweringModel, name: str) -> list[tuple[int, list[int]]]:
    """Each question on a database with the earlier ones that its prompt shows, each of them with the SQL it had right."""
    found = []
    for prompt in (prompt for prompt in model.prompts if prompt.endswith("plan:")):
        question = prompt.split("\nquestion: ")[1].split("\n")[0]
        history = prompt.partition("\nhistory: ")[2].split("\n")[0]
        shown = [n for n, sql in enumerate(GOLDS[name]) if f"What about number {n} of {name}? => {sql}" in history]
        if question.endswith(f"of {name}?"):
            found.append((int(question.split()[3]), shown))
    return found


def test_every_question_stands_behind_those_before_it_on_its_database(invented: Path, tmp_path: Path) -> None:
    """Guards the one chat: in order, behind the agent's own SQL, and the seeds of `AgentPredict`."""
    examples = _examples(invented)
    summary, model = _run(_right, examples, tmp_path)
    assert (summary["n"], summary["ex"], summary["continued"]) == (7, 1.0, 5)
    for name, golds in GOLDS.items():
        asked = _asked(model, name)
        assert [place for place, _ in asked] == list(range(len(golds)))
        assert all(place - 1 in shown for place, shown in asked[1:]) and asked[0][1] == []
    assert list(dict.fromkeys(model.seeds)) == [seeded(OPTIONS, example.id).seed for example in examples]


def test_a_wrong_answer_is_wrong_and_stays_in_the_chat(invented: Path, tmp_path: Path) -> None:
    """Guards against gold SQL in the agent's own conversation."""
    summary, model = _run(_but({"number 1 of library?": "SELECT code FROM book"}), _examples(invented), tmp_path)
    assert summary["ex"] == round(6 / 7, 4)
    behind = next(prompt for prompt in model.prompts if "\nquestion: What about number 2 of library?" in prompt)
    assert "What about number 1 of library? => SELECT code FROM book" in behind


def test_databases_are_asked_at_once_and_each_in_order(invented: Path, tmp_path: Path) -> None:
    """The barrier opens only when both chats ask their first question at the same time."""
    barrier = threading.Barrier(2, timeout=20)

    def answers(question: str) -> str:
        if "number 0" in question:
            barrier.wait()
        return _right(question)

    summary, model = _run(answers, _examples(invented), tmp_path, at_once=2)
    assert (summary["n"], summary["ex"]) == (7, 1.0)
    for name, golds in GOLDS.items():
        assert [place for place, _ in _asked(model, name)] == list(range(len(golds)))


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_stopped_run_goes_on_in_the_same_chats(invented: Path, tmp_path: Path, at_once: int) -> None:
    """Guards resuming: the recorded SQL stands in the chat, the one that did not run does not, nothing is asked twice."""

    def stops(question: str) -> str:
        if question.endswith("number 3 of library?"):
            raise RuntimeError("out of power")
        return _but({"number 2 of library?": "SELECT nothing"})(question)

    with pytest.raises(RuntimeError, match="out of power"):
        _run(stops, _examples(invented), tmp_path, at_once=at_once)
    summary, model = _run(_right, _examples(invented), tmp_path, at_once=at_once)
    assert (summary["n"], summary["ex"]) == (7, round(6 / 7, 4))
    (place, shown), *rest = _asked(model, "library")
    assert (place, rest) == (3, []) and 1 in shown and 2 not in shown
    assert "SELECT nothing" not in "".join(model.prompts)


def test_what_has_no_answer_ends_neither_run_nor_chat(invented: Path, tmp_path: Path) -> None:
    def answers(question: str) -> str:
        if question.endswith("number 1 of gauge?"):
            raise PromptTooLong("9000 tokens, and the model takes 8192")
        return _right(question)

    summary, model = _run(answers, _examples(invented), tmp_path)
    assert (summary["n"], summary["ex"]) == (7, round(6 / 7, 4))
    failed = next(r for r in read_records(tmp_path / "records.jsonl", Record) if r.id == "gauge/1")
    assert (failed.sql, failed.prediction_error) == ("", "9000 tokens, and the model takes 8192")
    place, shown = _asked(model, "gauge")[2]
    assert place == 2 and 0 in shown and 1 not in shown


def test_the_order_is_given_or_shuffled_inside_each_database(invented: Path) -> None:
    """Guards that the seed alone decides, and that a database's order does not depend on what else is asked."""
    examples = _examples(invented)
    assert in_order(examples, "given", 1) == examples
    shuffled = in_order(examples, "shuffled", 1)
    assert shuffled == in_order(examples, "shuffled", 1) != examples
    assert len({tuple(e.id for e in in_order(examples, "shuffled", seed)) for seed in range(9)}) > 4
    for name, own in by_database(examples).items():
        assert by_database(shuffled)[name] == in_order(own, "shuffled", 1)
        assert set(by_database(shuffled)[name]) == set(own)


def test_what_an_answer_continues_is_recorded_and_counted(invented: Path, tmp_path: Path) -> None:
    """Guards `continued`, with an earlier question numbered 1, and logs that were written before there was the field."""

    def predict(example: Example) -> Prediction:
        return Prediction(example.gold, continues=1 if example.id == "library/1" else None)

    summary = _evaluated(predict, _examples(invented), tmp_path)
    assert summary["continued"] == 1
    lines = (tmp_path / "records.jsonl").read_text(encoding="utf-8")
    assert lines.count('"continues": 1') == 1
    (tmp_path / "records.jsonl").write_text(lines.replace(', "continues": null', ""), encoding="utf-8")
    assert _evaluated(predict, _examples(invented), tmp_path) == summary


def _evaluated(predict: Callable[[Example], Prediction], examples: Sequence[Example], out: Path) -> dict[str, Any]:
    return evaluate(examples, predict, "sqlite", out, dataset="spider", rules=SPIDER, progress=False)


def test_other_chats_end_with_the_question_they_are_at(invented: Path, tmp_path: Path) -> None:
    """Guards a run that was stopped against minutes in which the other chats are asked to their end."""
    failed, asked = threading.Event(), []

    def predict(example: Example) -> Prediction:
        asked.append(example.id)
        if example.id == "library/0":
            failed.set()
            raise RuntimeError("out of power")
        failed.wait(20)
        time.sleep(0.5)
        return Prediction(example.gold)

    with pytest.raises(RuntimeError, match="out of power"):
        list(answered(list(by_database(_examples(invented)).values()), predict, 2))
    assert asked.count("gauge/0") <= 1 and "gauge/1" not in asked and "library/1" not in asked


STOP = frozenset({2})
CONTEXT = QuestionContext("How many heroes of most height are over 190?")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", seed=5, vocab=1000))


def _sql(tokenizer: Tokenizer, context: QuestionContext | None, schema: Schema = SCHEMA, **more: Any) -> Hashable:
    return sql_constraint.__wrapped__(
        schema, more.pop("dialect", "sqlite"), tokenizer, STOP, context=context, **more
    ).key


def _plan(tokenizer: Tokenizer, context: QuestionContext | None, schema: Schema = SCHEMA, **more: Any) -> Hashable:
    return plan_constraint.__wrapped__(schema, tokenizer, STOP, context=context, **more).key


def test_constraints_made_of_the_same_have_the_same_key(tokenizer: Tokenizer) -> None:
    copied = Schema(tuple(replace(table) for table in SCHEMA.tables), "sqlite")
    for key in (_sql, _plan):
        assert key(tokenizer, CONTEXT) == key(tokenizer, replace(CONTEXT), copied)
        assert hash(key(tokenizer, CONTEXT)) == hash(key(tokenizer, replace(CONTEXT), copied))


@pytest.mark.parametrize("make", [_sql, _plan])
def test_another_schema_form_or_bound_is_another_key(make: Any, tokenizer: Tokenizer) -> None:
    fewer = Schema(SCHEMA.tables[:2], "sqlite")
    keys = [make(tokenizer, CONTEXT), make(tokenizer, None), make(tokenizer, CONTEXT, fewer)]
    keys += [make(tokenizer, CONTEXT, form=Form("line")), make(tokenizer, CONTEXT, size=2048)]
    keys += [_sql(tokenizer, CONTEXT, dialect="duckdb")]
    assert len(set(keys)) == len(keys)


CHANGES = {  # of the grammars of SQL and of plans
    "counted": (False, True),
    "keys": (True, False),
    "dates": (True, False),
    "roles": (False, False),  # no role is said
    "wildcards": (False, False),  # it acts on SQL that is written
}


@pytest.mark.parametrize(("rule", "sql", "plan"), [(name, *both) for name, both in CHANGES.items()])
def test_a_rule_changes_the_key_of_the_grammar_that_it_changes(
    rule: str, sql: bool, plan: bool, tokenizer: Tokenizer
) -> None:
    """Guards reuse: a rule that demands nothing of this question leaves its grammar, and so the model's reply, the same."""
    changed = replace(CONTEXT, without=(rule,))
    assert (_sql(tokenizer, CONTEXT) != _sql(tokenizer, changed)) is sql
    assert (_plan(tokenizer, CONTEXT) != _plan(tokenizer, changed)) is plan


@pytest.mark.parametrize("change", [{"question": "Which heroes?"}, {"plan": "hero | SELECT _"}, {"around": ("5",)}])
def test_what_was_said_belongs_to_the_key_of_sql(change: dict[str, Any], tokenizer: Tokenizer) -> None:
    assert _sql(tokenizer, CONTEXT) != _sql(tokenizer, replace(CONTEXT, **change))


@pytest.fixture
def heroes(tmp_path: Path) -> Path:
    path = tmp_path / "heroes.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE Hero (id INTEGER, h_cm INTEGER)")
        connection.execute("INSERT INTO Hero VALUES (1, 180)")
    connection.close()
    return path


def test_descriptions_beside_the_file(heroes: Path) -> None:
    folder = heroes.parent / FOLDER
    folder.mkdir()
    (folder / "hero.csv").write_bytes(
        b"\xef\xbb\xbforiginal_column_name,column_name,column_description,data_format,value_description\n"
        b"id,,,integer,\n"
        b'h_cm ,height,the height of the hero ,integer,"NULL means\nunknown \x96 or none"\n'
        b"gone,,a column that the file lacks,text,\n"
    )
    (folder / "villain.csv").write_text("original_column_name,column_description\nid,who\n")
    for engine in ("sqlite", "duckdb"):
        database = open_described(heroes, engine)
        (table,) = database.schema().tables
        assert [column.comment for column in table.columns] == [
            "",
            "the height of the hero NULL means\nunknown � or none",
        ]
        database.close()


def test_without_descriptions(heroes: Path) -> None:
    database = open_described(heroes, "sqlite")
    assert [column.comment for column in database.schema().tables[0].columns] == ["", ""]
    database.close()
