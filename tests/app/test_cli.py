"""The command line as a user meets it: answers on stdout, one-line errors on stderr, exit codes that differ."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.assemble import LoadedModel
from agent.context import AgentContext
from agent.prompts.profiles import load_profile
from app.cli import COMMANDS, PANELS, app
from app.shared import exit_codes
from decoding.methods.registry import METHODS
from tests.agent.conftest import ScriptedModel
from tests.decoding.models.tiny_models import tiny_checkpoint

CSV = "name,country,age\nAda,France,31\nBo,Spain,45\nCy,France,22\n"
COUNT = "SELECT COUNT(*) FROM singer WHERE country = 'France'"


def run(*args: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(args), input=stdin)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny", max_position_embeddings=4096))


@pytest.fixture
def singer(tmp_path: Path) -> str:
    path = tmp_path / "singer.csv"
    path.write_text(CSV)
    return str(path)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Let the loaded model's place be taken by one that says given lines."""

    def say(*lines: str) -> None:
        model = ScriptedModel(responses=list(lines))

        def toolbox(self: LoadedModel, database, options, limits):  # type: ignore[no-untyped-def]
            return AgentContext(database, model, load_profile("compact"), options, limits)

        monkeypatch.setattr(LoadedModel, "toolbox", toolbox)

    return say


def test_ask_prints_a_sentence_the_sql_and_the_time(tiny: str, singer: str, script) -> None:  # type: ignore[no-untyped-def]
    script("plan", COUNT)
    result = run("ask", "How many are from France?", "--db", singer, "--model", tiny)
    assert result.exit_code == exit_codes.OK, result.output
    first, *sql, last = result.stdout.splitlines()
    assert first == "2 singers."
    assert sql[0] == "SELECT"
    assert re.match(r"\d+\.\d s", last)


def test_steps_are_shown_when_asked_for(tiny: str, singer: str, script) -> None:  # type: ignore[no-untyped-def]
    script("plan", COUNT)
    result = run("ask", "How many are from France?", "--db", singer, "--model", tiny, "--steps")
    for part in ("generate", "total", "plain ms"):
        assert part in result.stdout


def test_ask_json_has_the_contract_fields_and_nothing_else_on_stdout(tiny: str, singer: str, script) -> None:  # type: ignore[no-untyped-def]
    script("plan", COUNT)
    answer = json.loads(run("ask", "How many?", "--db", singer, "--model", tiny, "--json").stdout)
    assert list(answer) == [
        "question", "sql", "dialect", "columns", "rows", "truncated", "answer", "attempts", "steps", "total_ms",
        "plain_total_ms", "error", "continues", "shown", "example", "confidence", "probably_wrong", "doubts",
        "alternatives", "votes", "plans", "which_reading", "features", "escalated",
    ]  # fmt: skip
    assert answer["rows"] == [[2]]
    assert answer["dialect"] == "duckdb"


def test_ask_reads_the_question_from_a_pipe(tiny: str, singer: str, script) -> None:  # type: ignore[no-untyped-def]
    script("plan", COUNT)
    result = run("ask", "--db", singer, "--model", tiny, "--sql-only", stdin="How many are from France?\n")
    assert result.stdout.strip() == COUNT


def test_limit_cuts_and_says_so(tiny: str, singer: str, script) -> None:  # type: ignore[no-untyped-def]
    script("plan", "SELECT name FROM singer")
    answer = json.loads(run("ask", "Who?", "--db", singer, "--model", tiny, "--limit", "2", "--json").stdout)
    assert (len(answer["rows"]), answer["truncated"]) == (2, True)


def test_no_answer_and_refusal_have_their_own_exit_codes(tiny: str, singer: str, script) -> None:  # type: ignore[no-untyped-def]
    script("plan", "SELECT nonsense FROM singer")
    missing = run("ask", "How many?", "--db", singer, "--model", tiny, "--attempts", "1")
    assert missing.exit_code == exit_codes.NO_ANSWER
    assert "nonsense" in missing.stderr
    script("plan", "DROP TABLE singer")
    by_the_model = run("ask", "How many are there?", "--db", singer, "--model", tiny, "--attempts", "1")
    assert by_the_model.exit_code == exit_codes.NO_ANSWER  # a script would think that somebody tried to write
    assert "this is DROP" in by_the_model.stderr
    refused = run("ask", "Delete all singers", "--db", singer, "--model", tiny)
    assert refused.exit_code == exit_codes.REFUSED and refused.stderr.count("\n") == 1


def test_a_real_tiny_model_runs_the_whole_agent(tiny: str, singer: str) -> None:
    """Untrained, so it finds no SQL; but every step is decoded and counted."""
    answer = json.loads(run("ask", "How many?", "--db", singer, "--model", tiny, "--json").stdout)
    decoded = [step for step in answer["steps"] if step["decoder"]]
    assert len(decoded) >= 2
    assert all(step["target_forwards"] >= 1 and step["tokens_per_forward"] >= 1 for step in decoded)
    assert all(step["plain_ms_source"] == "estimated" and step["plain_ms"] > 0 for step in decoded)
    assert decoded[1]["cached_tokens"] > 0, "generate reuses the plan prompt's KV"


def test_race_measures_what_plain_decoding_takes(tiny: str, singer: str) -> None:
    once = ("--attempts", "1", "--schema-permutations", "1", "--race", "--json")
    answer = json.loads(run("ask", "How many?", "--db", singer, "--model", tiny, *once).stdout)
    assert {s["plain_ms_source"] for s in answer["steps"] if s["decoder"]} == {"measured"}


def test_chat_answers_line_by_line(tiny: str, singer: str, script) -> None:  # type: ignore[no-untyped-def]
    script("plan", COUNT, "plan", "SELECT COUNT(*) FROM singer WHERE country = 'Spain'")
    result = run("chat", "--db", singer, "--model", tiny, "--json", stdin="How many from France?\nAnd from Spain?\n")
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["rows"] for answer in answers] == [[[2]], [[1]]]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--db", "nowhere.sqlite"], exit_codes.DATABASE, "nowhere.sqlite"),
        (["--db", "nodriver://x/y"], exit_codes.DATABASE, "nodriver"),
        (["--decoder", "warp"], exit_codes.USAGE, "choose one of: plain"),
        (["--decoder", "jacobi", "-o", "speed=9"], exit_codes.USAGE, "block_size"),
        (["--profile", "poem"], exit_codes.USAGE, "compact, chat"),
        (["--model", "/no/such/model"], exit_codes.MODEL, "no model"),
        (["-o", "nonsense"], exit_codes.USAGE, "name=value"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(singer: str, args: list[str], code: int, says: str) -> None:
    given = args if "--db" in args else [*args, "--db", singer]
    result = run("ask", "How many?", *given)
    assert result.exit_code == code
    assert says in result.stderr
    if code != exit_codes.USAGE or "choose" in says:
        assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


def test_an_unreadable_file_and_an_empty_question(tmp_path: Path) -> None:
    broken = tmp_path / "broken.duckdb"
    broken.write_bytes(b"this is no database at all" * 100)
    assert run("sql", "SELECT 1", "--db", str(broken)).exit_code == exit_codes.DATABASE
    assert run("ask", "   ").exit_code == exit_codes.USAGE


def test_sql_is_guarded_and_prints_rows_json_or_csv(singer: str) -> None:
    assert run("sql", COUNT, "--db", singer, "--csv").stdout.split() == ["count_star()", "2"]
    assert json.loads(run("sql", "--db", singer, "--json", stdin=COUNT).stdout)["rows"] == [[2]]
    assert run("sql", "DELETE FROM singer", "--db", singer).exit_code == exit_codes.REFUSED
    wrong = run("sql", "SELECT nme FROM singer", "--db", singer)
    assert wrong.exit_code == exit_codes.DATABASE
    assert "name" in wrong.stderr


def test_doctor_and_models_tell_what_is_there(tiny: str) -> None:
    facts = json.loads(run("doctor", "--json").stdout)
    assert set(facts["decoders"]) == set(METHODS)
    assert facts["dtype"] in ("bfloat16", "float32", "int8")
    listed = json.loads(run("models", "list", "--json").stdout)
    assert listed[0]["name"] == "embedded"
    assert json.loads(run("models", "show", tiny, "--json").stdout)["family"] == "llama"


def test_help_names_every_command() -> None:
    text = run("--help").stdout
    listed = [name for commands in PANELS.values() for name in commands]
    assert listed == [*COMMANDS] and all(f" {name} " in text for name in listed)
