"""The table of checkpoints and methods: what is decoded again, what the figures mean, and that a killed run goes on."""

import json
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner, Result

from agent.assemble import ModelChoice, load_model
from app.cli import app
from app.measure.bench import method_spec
from app.shared import exit_codes
from decoding.engine.method import UnknownMethod
from decoding.methods.registry import METHODS, load_method
from decoding.serving.text_decoder import SamplingParams
from eval.accuracy.summary import paired_difference
from eval.speed.agent_calls import CallRecorder
from eval.speed.replay import DEFAULT_METHODS, Asked, Measured, MethodSpec, extra_parameters, replay
from eval.speed.replay_table import THIRDS, accuracies, by_length, by_step, markdown, rows, to_dict
from tests.decoding.models.jacobi_data import ending_checkpoint
from tests.decoding.models.random_heads import TAPPING


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(ending_checkpoint(tmp_path_factory.mktemp("model") / "tiny", 8, seed=3, max_position_embeddings=4096))


@pytest.fixture(scope="module")
def questions(invented: Path) -> Path:
    entries = [
        {"db_id": "library", "question": "Which authors are there?", "query": "SELECT name FROM author"},
        {"db_id": "library", "question": "How many books are there?", "query": "SELECT count(*) FROM book"},
        {"db_id": "gauge", "question": "Which labels?", "query": "SELECT label FROM reading"},
    ]
    (invented / "dev.json").write_text(json.dumps(entries))
    return invented


def run(tiny: str, questions: Path, out: Path, *more: str) -> Result:
    small = ("--profile", "compact", "--attempts", "1", "--dtype", "fp32", "--no-constrain")
    arguments = (
        "--data",
        str(questions),
        "--model",
        tiny,
        "--out",
        str(out),
        *small,
        "--method",
        "jacobi:block_size=4",
    )
    return CliRunner().invoke(app, ["bench", "methods", *arguments, *more])


def test_a_run_that_was_killed_goes_on(tiny: str, questions: Path, tmp_path: Path) -> None:
    two = ("--checkpoint", "first=none", "--checkpoint", "none", "--step", "generate", "--limit", "3")
    result = run(tiny, questions, tmp_path, *two)
    assert result.exit_code == exit_codes.OK, result.output
    log = tmp_path / "records.jsonl"
    held = log.read_bytes()
    log.write_bytes(held[:-9])  # as a kill would leave it
    result = run(tiny, questions, tmp_path, *two)
    summary = json.loads(result.stdout.splitlines()[-1])
    records = [Asked.from_json(json.loads(line)) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert sorted(record.id for record in records) == [f"{name}/{i}" for name in ("first", "none") for i in range(3)]
    assert {run.step for record in records for run in record.runs} == {"generate"}
    assert [(row["checkpoint"], row["method"], row["texts"], row["equal"]) for row in summary["rows"]] == [
        (name, method, 3, 3) for name in ("first", "none") for method in ("plain", "jacobi:block_size=4")
    ]
    assert summary["rows"][0]["tokens_per_forward"] == summary["rows"][0]["fewer_forwards"] == 1.0
    assert summary["rows"][0]["speedup"] == summary["rows"][0]["speedup_vs_first"] == 1.0
    assert [each["difference"] for each in summary["accuracy"]] == [None, 0.0]
    assert "| jacobi:block_size=4 |" in (tmp_path / "table.md").read_text()
    changed = run(tiny, questions, tmp_path, *two, "--temperature", "0.5")
    assert changed.exit_code == exit_codes.USAGE and "checkpoints" in changed.stderr


def test_follow_up_steps_find_the_conversations_texts(tiny: str, questions: Path, tmp_path: Path) -> None:
    """The recall that a text had when the agent asked for it is there again, and no more than that."""
    result = run(tiny, questions, tmp_path, "--limit", "1", "--schema-permutations", "1", "--no-predicted-outputs",
                 "--method", "jacobi_forcing:from_prompt=false",
                 "--method", "jacobi_forcing:from_prompt=false,from_recall=false")  # fmt: skip
    summary = json.loads(result.stdout.splitlines()[-1])
    forwards = {(row["part"], row["method"][15:]): row["forwards"] for row in summary["by_step"]}
    assert forwards["plan", "from_prompt=false"] == forwards["plan", "from_prompt=false,from_recall=false"]
    assert {step for step, _ in forwards} == {"plan", "generate"}


def test_methods_that_need_hidden_states_find_them_in_the_cache(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "tapping", TAPPING)
    decoder = CallRecorder(load_model(ModelChoice(model=tiny, profile="compact", dtype="fp32")).decoder)
    decoder.generate("a prompt of a few tokens", SamplingParams(max_new_tokens=4))
    (call,) = decoder.take([{"name": "plan", "decoder": "plain"}])
    timed = CallRecorder(decoder.inner)
    decoder.inner = timed
    (run,) = replay(decoder, call, [MethodSpec("tapping", "tapping")])
    *_, last = timed.take([{"name": name, "decoder": "tapping"} for name in ("warm", "timed")])
    assert run.equal and last.generation.rounds[0].pending == 1, "the prompt was read before the clock ran"


def test_what_cannot_be_is_one_line(tiny: str, questions: Path, tmp_path: Path) -> None:
    for arguments, says in (
        (("--method", "jacobi:wings=2"), "has no option wings"),
        (("--method", "magic"), "unknown decoder"),
        (("--decoder", "jacobi"), "with --method"),
    ):
        result = run(tiny, questions, tmp_path / "out", *arguments)
        assert result.exit_code == exit_codes.USAGE and says in result.stderr, result.stderr
    assert not (tmp_path / "out").exists()
    with pytest.raises(UnknownMethod):
        method_spec("jacobi:n=4")


def test_every_default_method_is_there() -> None:
    specs = [method_spec(text) for text in DEFAULT_METHODS]
    assert {spec.decoder for spec in specs} < set(METHODS) and len({spec.name for spec in specs}) == len(specs)
    assert method_spec("jacobi_forcing:blocks=2,spawn_ratio=0.5,from_recall=false").options == {
        "blocks": 2, "spawn_ratio": 0.5, "from_recall": False
    }  # fmt: skip


def measured(step: str, method: str, tokens: int, forwards: int, wall_ms: float) -> Measured:
    return Measured(
        step, method, tokens, tokens + 2, 2, forwards, wall_ms, 50.0, True, 3 * forwards,
        0.1 * wall_ms, 0.8 * wall_ms, 0.1 * wall_ms, [forwards, forwards - 1], [forwards, 1],
    )  # fmt: skip


def asked(checkpoint: str, question: int, correct: bool | None, *runs: Measured) -> Asked:
    return Asked(f"{checkpoint}/{question}", checkpoint, str(question), "SELECT 1", correct, runs)


def test_figures_are_ratios_of_sums() -> None:
    records = [
        asked("a", 0, True, measured("plan", "plain", 10, 10, 100.0), measured("plan", "j", 10, 5, 60.0)),
        asked("a", 1, True, measured("generate", "plain", 30, 30, 300.0), measured("generate", "j", 32, 5, 90.0)),
        asked("b", 0, True, measured("plan", "plain", 20, 20, 100.0), measured("plan", "j", 20, 5, 50.0)),
    ]
    a_plain, a_j, b_plain, b_j = rows(records)
    assert (a_j.tokens_per_forward, a_j.fewer_forwards, a_j.speedup) == (4.2, 4.0, 400 / 150)
    assert a_j.speedup_with_prefill == (400 + 100) / (150 + 100)
    assert a_j.tokens_per_s == pytest.approx(1e3 * 46 / 150)
    assert b_j.speedup_vs_first == pytest.approx((22 / 50) / (44 / 400)) and b_plain.speedup == a_plain.speedup == 1.0
    assert (a_j.nodes_per_forward, a_j.texts) == (3.0, 2)
    steps = {(row.checkpoint, row.method, row.part): row for row in rows(records, by_step(records))}
    assert steps["a", "j", "generate"].tokens_per_forward == 6.4 and ("b", "j", "generate") not in steps
    assert (a_j.draft_ms, a_j.target_ms, a_j.verify_ms) == pytest.approx((1.5, 12.0, 1.5))
    assert a_j.acceptance_by_depth == (1.0, 2 / 8)
    text = markdown(to_dict(records, {"j": 1234}))
    assert text.count("| b | j |") == 4 and "| a | j | 1,234 | 1.00 0.25 |" in text


def test_thirds_by_length_hold_the_same_texts_for_all_methods() -> None:
    lengths = (4, 9, 9, 20, 31, 40)
    records = [
        asked("a", n, True, measured("plan", "plain", length, length, 9.0), measured("plan", "j", length, n + 2, 9.0))
        for n, length in enumerate(lengths)
    ]
    found = {(row.part, row.method): row for row in rows(records, by_length(records))}
    assert [found[part, "j"].texts for part in THIRDS] == [found[part, "plain"].texts for part in THIRDS] == [1, 3, 2]
    assert [found[part, "j"].fewer_forwards for part in THIRDS] == [4 / 2, 38 / 12, 71 / 13]
    assert by_length(records[:2]) == {}


def test_heads_are_counted() -> None:
    with_head, without = (extra_parameters(load_method(name)) for name in ("medusa", "jacobi"))
    assert with_head > 0 and without == 0


def test_accuracy_is_compared_on_the_same_questions() -> None:
    """Guards against a difference of shares over different questions."""
    first = [asked("a", i, correct) for i, correct in enumerate((True, True, False, None))]
    other = [asked("b", i, correct) for i, correct in enumerate((True, False, False, True))]
    one, two = accuracies([*first, *other])
    assert (one.scored, one.ex, one.difference) == (3, 2 / 3, None)
    assert (two.scored, two.ex) == (4, 0.5)
    assert two.difference == pytest.approx(-1 / 3)
    low, high = two.difference_ci95 or (0.0, 0.0)
    assert low < -1 / 3 < high


def test_the_paired_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Correlated verdicts: 5 % gained, 8 % lost."""
    chance, hits = Random(0), 0
    for _ in range(400):
        draws = [chance.random() for _ in range(200)]
        pairs = [(True, False) if x < 0.05 else (False, True) if x < 0.13 else (x < 0.7,) * 2 for x in draws]
        difference, low, high = paired_difference(pairs)  # type: ignore[arg-type]
        assert low < difference < high
        hits += low <= -0.03 <= high
    assert 0.92 <= hits / 400 <= 0.985
    assert paired_difference([(True, True)] * 50)[1] < 0 < paired_difference([(True, True)] * 50)[2]
