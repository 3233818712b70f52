"""The walks of docs/extending.md: its code, outside the project, adds a method, a kind of database, a node and a benchmark."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.assemble import LoadedModel
from agent.assistant import Assistant
from agent.context import AgentContext, AgentOptions
from agent.graph import build_graph
from agent.observe.events import Finished, Noted, Started
from agent.observe.step_record import NODES, step_title
from agent.prompts.profiles import load_profile
from app.cli import app
from app.shared import exit_codes
from app.shared.options import Asking
from decoding.engine.sampler import Sampler
from decoding.heads.head import load_head
from decoding.heads.kinds import KINDS
from decoding.methods.registry import load_method, ready_methods
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams
from tests.agent.conftest import ScriptedModel, Talk, talk
from tests.app.shared.extended import PAGE, extended, files_of_the_page
from tests.decoding.engine.test_lossless import rounds_of, text_of
from tests.decoding.models.jacobi_data import ending_checkpoint
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.toy import ToyTarget
from tests.decoding.models.training_data import agent_groups
from tests.eval.answering import AnsweringModel
from tools.databases.open_database import open_database, restricted
from tools.result import QueryError
from training.packs.groups import group_line

__all__ = ["talk"]


@pytest.fixture(scope="module", autouse=True)
def extension(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with extended(tmp_path_factory.mktemp("extension")) as folder:
        run("models", "list")  # any command imports it
        yield folder


def run(*arguments: object, code: int = exit_codes.OK) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout if code == exit_codes.OK else result.stderr


def last_line(text: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(text.splitlines()[-1])
    return told


def test_the_page_has_four_walks_of_one_call_and_one_file_each() -> None:
    files = files_of_the_page()
    assert set(files) == {"my_extension.py", "next_state.py", "lake.py", "dates.py", "quiz.py"}
    calls = re.findall(r"^register_\w+\(", files["my_extension.py"], re.MULTILINE)
    assert sorted(calls) == ["register_database_kind(", "register_dataset(", "register_method(", "register_node("]


def test_links_and_paths_of_the_page_lead_somewhere() -> None:
    text, root = PAGE.read_text(), PAGE.parents[1]
    links = re.findall(r"\]\(([\w./]+)", text)
    paths = re.findall(r"`((?:agent|app|decoding|eval|tests|tools)/[\w/]+\.py)`", text)
    assert links and len(paths) > 5
    assert [each for each in links if not (PAGE.parent / each).exists()] == []
    assert [each for each in paths if not (root / each).exists()] == []


# --- a decoding method with a draft head -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(ending_checkpoint(tmp_path_factory.mktemp("model") / "tiny", 8, max_position_embeddings=4096))


@pytest.fixture(scope="module")
def head(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained by the page's commands on a tiny random target."""
    out = tmp_path_factory.mktemp("head")
    (out / "groups.jsonl").write_text("".join(group_line(group) for group in agent_groups(3, 6)))
    on = ("--model", tiny, "--device", "cpu")
    run("train", "head", "collect", "--data", out / "groups.jsonl", "--out", out / "r", "--max-new-tokens", 30, *on)
    data = out / "r" / "responses.jsonl"
    run("train", "head", "features", "--data", data, "--out", out / "f", "--pack-tokens", 256, *on)
    train = ("train", "head", "--method", "next_state", "--data", out / "f", "--out", out / "run", "--steps", 40, *on)
    assert last_line(run(*train, "-o", "label_smoothing=0.1"))["finished"]
    return out / "run" / "head"


def test_the_methods_head_learns_and_is_loaded(head: Path) -> None:
    assert load_head(head).config.kind == "next_state"
    evaluated = [json.loads(line) for line in (head.parent / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in evaluated if "loss" in line]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_trained_method_writes_plain_decodings_text(tiny: str, head: Path, temperature: float) -> None:
    decoder = load_text_decoder(tiny, dtype="fp32", device="cpu")
    shared: dict[str, Any] = {"temperature": temperature, "seed": 7, "max_new_tokens": 60}
    for prompt in ("one two three one two", "SELECT name FROM"):
        plain = decoder.generate(prompt, SamplingParams("plain", **shared))
        done = decoder.generate(prompt, SamplingParams("next_state", {"head": str(head)}, **shared))
        assert done.tokens == plain.tokens
        assert len(plain.tokens) < 3 or any(each.draft_tokens for each in done.rounds)


def test_the_method_passes_the_projects_losslessness_test() -> None:
    """A small random head of the registered kind, as the project's own methods get one."""
    for sampler in (Sampler(), Sampler(0.9, 3)):
        target = ToyTarget()
        rounds = rounds_of(ready_method("next_state", target), sampler, target)
        assert [token for each in rounds for token in each.text_tokens] == text_of(load_method("plain"), sampler)
        assert any(each.draft_tokens for each in rounds)


def test_a_head_that_comes_with_the_kind_needs_no_name(head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "next_state" not in ready_methods()
    monkeypatch.setitem(KINDS, "next_state", replace(KINDS["next_state"], weights=head))
    assert "next_state" in ready_methods() and load_method("next_state").taps == load_head(head).config.taps


def test_without_a_head_the_method_says_how_to_get_one(tiny: str) -> None:
    said = run("ask", "How many?", "--model", tiny, "--decoder", "next_state", code=exit_codes.USAGE)
    assert "next_state needs a trained head" in said and "sqlagent train head --method next_state" in said


# --- a kind of database ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "shop"
    for table, parts in {
        "visits": [[{"person": "Ada", "day": "2025-03-01"}], [{"person": "Bo", "day": "2026-01-02"}] * 2],
        "people": [[{"name": "Ada", "wage": 10}, {"name": "Bo", "wage": 20}]],
    }.items():
        (folder / table).mkdir(parents=True)
        for number, rows in enumerate(parts):
            (folder / table / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_kind_is_asked_in_sql(lake: Path) -> None:
    statement = "SELECT person, count(*) FROM visits GROUP BY person ORDER BY person"
    for engine in ("auto", "lake"):
        told = json.loads(run("sql", statement, "--db", lake, "--engine", engine, "--json"))
        assert told["rows"] == [["Ada", 1], ["Bo", 2]]


def test_the_kind_answers_questions(lake: Path, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel(responses=["plan", "SELECT count(*) AS visits FROM visits"])
    monkeypatch.setattr(
        LoadedModel,
        "toolbox",
        lambda self, database, *rest: AgentContext(database, model, load_profile("compact"), *rest),
    )
    answer = json.loads(run("ask", "How many visits?", "--db", lake, "--model", tiny, "--json"))
    assert (answer["rows"], answer["dialect"]) == ([[3]], "duckdb")


@pytest.mark.parametrize("isolated", [False, True])
def test_guard_and_visibility_hold_for_the_kind(lake: Path, isolated: bool) -> None:
    read_a_file = f"SELECT * FROM read_text('{lake}/people/0.jsonl')"
    with closing(open_database(lake, isolated=isolated)) as opened:
        outcomes = [opened.execute(each) for each in ("DELETE FROM visits", "CREATE TABLE x (y INT)", read_a_file)]
        assert [each.kind for each in outcomes if isinstance(each, QueryError)] == ["refused"] * 3
        shown = restricted(opened, (), ("people.wage",))
        columns = {table.name: [column.name for column in table.columns] for table in shown.schema().tables}
        assert columns == {"people": ["name"], "visits": ["person", "day"]}
        hidden = shown.execute("SELECT wage FROM people")
        assert isinstance(hidden, QueryError) and "20" not in str(hidden)


def test_what_the_kind_cannot_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torn" / "t").mkdir(parents=True)
    (tmp_path / "torn" / "t" / "0.jsonl").write_text('{"a": 1\n')
    said = run("sql", "SELECT 1", "--db", tmp_path / "torn", code=exit_codes.DATABASE)
    assert said.startswith(f"sqlagent: cannot read {tmp_path}/torn: ") and said.count("\n") == 1


# --- a node of the agent -----------------------------------------------------------------------------------------------


def test_the_node_runs_is_recorded_and_is_named_for_people(talk: Talk) -> None:
    count = "SELECT count(*) FROM concert WHERE year = 2014"
    conversation = talk("plan", count, node_options={"dates": {"today": "2015-06-01"}})
    events = list(conversation.events("How many concerts were there last year?"))
    assert Started("dates") in events
    assert [event.record["name"] for event in events if isinstance(event, Finished)].count("dates") == 1
    [noted] = [event for event in events if isinstance(event, Noted) and event.step == "dates"]
    assert [(note.label, note.text) for note in noted.notes] == [("the question means", "last year is 2014")]
    names = [record["name"] for record in events[-1].answer["steps"]]
    assert names == ["link", "dates", "plan", "generate", "check", "execute", "answer"]
    assert step_title("dates") == "Working out dates"
    prompt = str(conversation.toolbox.calls["plan"].messages[-1].content)
    assert "last year is 2014" in prompt


def test_every_way_to_plan_leads_through_the_node(talk: Talk) -> None:
    """`check` sends a follow-up back to `plan` where its SQL is that of an earlier question."""
    count = "SELECT COUNT(*) FROM singer"
    conversation = talk("plan", count, "plan", count, "plan", "SELECT COUNT(*) FROM concert")
    conversation.ask("How many singers are there?")
    again = conversation.ask("And how many of them last year?")
    names = [step["name"] for step in again.steps]
    assert names.count("dates") == names.count("plan") >= 1
    assert all(names[i - 1] == "dates" for i, name in enumerate(names) if name == "plan")


def test_without_added_nodes_the_graph_is_the_projects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(NODES, "dates")
    plain = build_graph().get_graph()
    assert set(plain.nodes) == {"__start__", "__end__", *NODES}
    assert {"execute", "refine", "vary"} <= {edge.target for edge in plain.edges if edge.source == "check"}


def test_the_nodes_options_reach_it_from_the_command_line(tiny: str) -> None:
    said = run("ask", "?", "--model", tiny, "--node-option", "dates.yesterday=1", code=exit_codes.USAGE)
    assert said == "sqlagent: no node has the option dates.yesterday; there is: dates.today\n"
    options = Asking(node_option=["dates.today=2026-11-23"]).agent_options()
    assert options == AgentOptions(present=False, rerank=True, node_options={"dates": {"today": "2026-11-23"}})


# --- a benchmark -------------------------------------------------------------------------------------------------------
ENTRIES = [
    {"round": "warm-up", "question": "How many cups?", "sql": "SELECT count(*) FROM cup"},
    {"round": "warm-up", "question": "Mean price?", "sql": "SELECT avg(price) FROM cup", "evidence": "in euros"},
    {"round": "final", "question": "Which colours?", "sql": "SELECT colour FROM cup ORDER BY colour"},
    {"round": "final", "question": "Which cup is dear?", "sql": "SELECT colour FROM cup ORDER BY price DESC LIMIT 1"},
]
SAID = {
    "How many cups?": "SELECT count(*) FROM cup",
    "Mean price?": "SELECT round(avg(price), 2) FROM cup",  # right to the cent
    "Which colours?": "SELECT colour FROM cup ORDER BY colour DESC",  # right in any order
    "Which cup is dear?": "SELECT colour FROM cup ORDER BY price LIMIT 1",  # wrong
}


@pytest.fixture(scope="module")
def quiz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quiz")
    (folder / "quiz.json").write_text(json.dumps(ENTRIES))
    with sqlite3.connect(folder / "quiz.sqlite") as connection:
        connection.execute("CREATE TABLE cup (colour TEXT, price REAL)")
        connection.execute("INSERT INTO cup VALUES ('red', 1.001), ('blue', 2.0), ('green', 2.5)")
    connection.close()
    return folder


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_the_benchmark_is_evaluated(quiz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    model = AnsweringModel(lambda question: SAID[question])
    monkeypatch.setattr("app.measure.evaluate.load_model", lambda choice: model)
    told = last_line(run("eval", "quiz", "--data", quiz, "--out", tmp_path, "--engine", engine, "--no-constrain"))
    assert (told["dataset"], told["n"], told["executed"], told["ex"]) == ("quiz", 4, 4, 0.75)
    assert {name: level["ex"] for name, level in told["by_difficulty"].items()} == {"warm-up": 1.0, "final": 0.5}
    assert list(told["by_difficulty"]) == ["warm-up", "final"]
    assert (told["soft_f1"], told["r_ves"]) == (None, None)
    assert any("in euros" in prompt for prompt in model.prompts)


def test_the_benchmarks_gold_is_right_by_its_own_rules(quiz: Path, tmp_path: Path) -> None:
    told = last_line(run("eval", "quiz", "--data", quiz, "--out", tmp_path, "--gold"))
    assert (told["n"], told["agreed"], told["disagreed"]) == (4, 4, [])
    said = run("eval", "quiz", "--data", tmp_path, "--out", tmp_path / "o", code=exit_codes.USAGE)
    assert said == f"sqlagent: {tmp_path}/quiz.json is not there: a quiz is a folder with quiz.json and quiz.sqlite\n"


def test_the_benchmark_is_among_the_commands() -> None:
    assert "numbers are right to the cent" in " ".join(run("eval", "--help").split())
    assert "--no-evidence" in run("eval", "quiz", "--help")


def test_the_method_is_measured_on_the_benchmark(tiny: str, head: Path, quiz: Path, tmp_path: Path) -> None:
    small = ("--profile", "compact", "--attempts", 1, "--dtype", "fp32", "--no-constrain", "--limit", 2)
    of = ("--dataset", "quiz", "--data", quiz, "--model", tiny, "--checkpoint", "none", "--device", "cpu")
    told = last_line(run("bench", "methods", *of, *small, "--method", f"next_state:head={head}", "--out", tmp_path))
    plain, own = told["rows"]
    assert own["method"].startswith("next_state:") and own["texts"] == own["equal"] == plain["texts"] > 0


def test_python_programs_import_the_extension_themselves(lake: Path, tiny: str) -> None:
    with Assistant.open(lake) as assistant:
        assert [table.name for table in assistant.schema().tables] == ["people", "visits"]
