"""Tasks are read from the published files and judged as their authors do.

Programs run to their end, and get at nothing of this machine.

Text that is no SQL in the benchmark: read as published, a row for each family, a clear error for anything else.
"""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.shared import exit_codes
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams
from eval.accuracy.text_tasks import (
    Ending,
    amount,
    final_amount,
    gsm8k,
    human_eval,
    read_tasks,
    run_program,
    solve_all,
    summary,
    whole_function,
)
from eval.datasets.official import DatasetError, TextPrompt, read_text_prompts
from tests.decoding.models.tiny_models import tiny_checkpoint

ENTRY = {
    "task_id": "HumanEval/x",
    "prompt": 'import math\n\n\ndef double(n: int) -> int:\n    """Twice n."""\n',
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n    assert math.isclose(candidate(0), 0)\n",
}


@pytest.mark.parametrize(
    ("text", "continues", "right"),
    [
        ("    return 2 * n\n", True, True),
        ("    return n\n", True, False),
        ("```python\ndef double(n):\n    return n + n\n```\nThis doubles.", False, True),
        ("def double(n):\n    return n + n", False, True),
        ("```\n    return n * 2\n```", False, True),
        ("Sure: double it.", False, False),
        ("```python\nx = 1\n```\nand\n```python\ndef double(n):\n    return n * 2\n```", False, True),
        ("", False, False),
    ],
)
def test_a_function_is_judged_by_its_tests(text: str, continues: bool, right: bool) -> None:
    verdict = human_eval(ENTRY).judge(text, continues)
    assert verdict.right == right and bool(verdict.why) != right


def test_the_tasks_imports_stay() -> None:
    assert whole_function("def double(n):\n    return 2 * n", ENTRY["prompt"], "double").startswith(
        "import math\n\n\ndef double(n):"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("16 - 7 = 9\n#### 9", 9), ("so it is $1,250.50.", Decimal("1250.5")), ("#### $18 a day\nand 3", 18),
        ("no number", None), ("-5 degrees", -5), ("#### none\nbut 4", 4), ("costs -$3", -3), ("2.0", 2),
    ],
)  # fmt: skip
def test_the_last_number_is_the_answer(text: str, found: object) -> None:
    assert final_amount(text) == found


def test_amounts_of_the_same_worth_are_equal() -> None:
    assert amount("$1,000.00") == amount("1000") and hash(amount("10.0")) == hash(amount("10"))
    task = gsm8k(0, {"question": "How many?", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"})
    assert task.judge("It is 7.00", True).right and task.judge("8", True).why == "8 instead of 7"


def test_files_of_another_layout_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    with pytest.raises(DatasetError, match="cannot read"):
        read_tasks("gsm8k", file)
    for text in ("", "{", '{"question": "x", "answer": "no number"}\n', "[]\n"):
        file.write_text(text)
        with pytest.raises(DatasetError) as caught:
            read_tasks("gsm8k", file)
        assert "\n" not in str(caught.value)


def test_a_limit_is_spread_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps({"question": f"q{n}", "answer": f"#### {n}"}) + "\n" for n in range(10)))
    assert [task.id for task in read_tasks("gsm8k", file, 3)] == ["GSM8K/0", "GSM8K/3", "GSM8K/6"]


def test_every_decoder_writes_the_same_and_a_run_goes_on(tmp_path: Path) -> None:
    decoder = load_text_decoder(str(tiny_checkpoint(tmp_path / "tiny")), dtype="fp32", device="cpu")
    tasks = [gsm8k(n, {"question": f"How many are {n}?", "answer": f"#### {n}"}) for n in range(3)]
    heard: list[str] = []
    args = (["plain", "jacobi", "adaptive"], SamplingParams(max_new_tokens=12), True, tmp_path / "out", {})
    first = solve_all(decoder, tasks[:2], *args, heard.append)
    assert len(first) == 2 and all(run.equal for record in first for run in record.runs)
    found = summary(first)
    assert [row["decoder"] for row in found["rows"]] == ["plain", "jacobi", "adaptive"]
    assert found["rows"][0]["fewer_forwards"] == 1.0 and found["n"] == 2
    again = solve_all(decoder, tasks[:2], *args, heard.append)
    assert again == first and heard[-1].startswith("2 of 2")


HOME = Path(__file__).resolve()


def ended(program: str, timeout_s: float = 20.0) -> Ending:
    return run_program(program, timeout_s)


@pytest.mark.parametrize(
    "program",
    [
        "assert 1 + 1 == 2",
        "import math, re, heapq, hashlib, itertools, collections, typing, string, random, decimal, fractions, datetime\n"
        "assert hashlib.md5(b'x').hexdigest()",
        "print('anything')",
        "import json, copy, functools, operator, statistics, textwrap, unicodedata\nassert json.loads('[1]') == [1]",
        "x = 'größer'\nassert len(x) == 6",
    ],
)
def test_ordinary_programs_pass(program: str) -> None:
    assert ended(program) == Ending("passed")


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("assert 1 == 2, 'one is not two'", "one is not two"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(0)", ""),
        ("import os\nos._exit(0)", ""),
        ("exit()", "exit"),
        ("x = [0] * 10**10", "MemoryError"),
        (f"open({str(HOME)!r})", "may open no file"),
        ("open('new.txt', 'w')", "may open no file"),
        ("open('/etc/passwd')", "may open no file"),
        ("import os\nos.listdir('/')", "may look at no folder"),
        ("import os\nos.system('true')", "may not do this: os.system"),
        ("import os\nos.remove('x')", "may not do this: os.remove"),
        ("import os\nos.fork()", "may not do this: os.fork"),
        ("import subprocess\nsubprocess.run(['true'])", "may not import subprocess"),
        ("import socket", "may not import socket"),
        ("import _socket", "may not import _socket"),
        ("import ctypes", "may not import ctypes"),
        ("import gc\ngc.get_objects()", "may not do this: gc."),
        ("import importlib\nimportlib.import_module('socket')", "may not import"),
    ],
)
def test_other_programs_fail_and_say_why(program: str, says: str) -> None:
    ending = ended(program)
    assert ending.kind == "failed" and says in ending.said


@pytest.mark.parametrize("program", ["while True: pass", "import time\ntime.sleep(60)"])
def test_a_program_without_an_end_is_stopped(program: str) -> None:
    ending = ended(program, timeout_s=2.0)
    assert ending.kind in ("timed out", "failed")


def test_nothing_is_left_and_nothing_is_seen_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "42")
    assert ended("import os\nassert 'SECRET' not in os.environ") == Ending("passed")
    assert ended("import sys\nassert not any('sqlagent' in name for name in sys.modules)") == Ending("passed")


SPEC_BENCH = [
    {"question_id": 1, "category": "writing", "turns": ["Write a poem.", "Another."]},
    {"question_id": 2, "category": "coding", "turns": ["Write a loop."]},
    *({"question_id": 3 + i, "category": "translation", "turns": [f"Translate {i}."]} for i in range(6)),
]


def write(file: Path, entries: list[dict[str, object]]) -> Path:
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return file


def test_each_layout_is_read_and_families_are_sampled_evenly(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "spec.jsonl", SPEC_BENCH),
        write(tmp_path / "gsm8k.jsonl", [{"question": "How many?", "answer": "#### 4"}]),
        write(tmp_path / "code.jsonl", [{"task_id": "HumanEval/0", "prompt": "def f():\n", "test": ""}]),
    ]
    assert read_text_prompts(files, 2) == [
        TextPrompt("mt_bench", "Write a poem."),
        TextPrompt("mt_bench", "Write a loop."),
        TextPrompt("translation", "Translate 0."),
        TextPrompt("translation", "Translate 3."),
        TextPrompt("gsm8k", "How many?"),
        TextPrompt("human_eval", "Complete this Python function.\n\ndef f():\n"),
    ]


@pytest.mark.parametrize("line", ["{", "[1]", '{"turns": []}', '{"category": "writing", "turns": []}', "7"])
def test_another_layout_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"question": "What?"}\n' + line + "\n")
    with pytest.raises(DatasetError, match=r"line 2 of .*prompts\.jsonl is no question"):
        read_text_prompts([file], 5)


def test_the_command_shows_every_family(tmp_path: Path) -> None:
    prompts = write(tmp_path / "spec.jsonl", SPEC_BENCH)
    tiny = tiny_checkpoint(tmp_path / "tiny", seed=5, max_position_embeddings=2048)
    wanted = [
        "bench",
        "--prompts",
        str(prompts),
        "--out",
        str(tmp_path / "out"),
        "--method",
        "prompt_lookup",
        "--questions",
        "2",
    ]
    result = CliRunner().invoke(app, [*wanted, "--model", str(tiny), "--dtype", "fp32", "--max-new-tokens", "8"])
    assert result.exit_code == exit_codes.OK, result.output
    summary = json.loads(result.stdout.splitlines()[-1])
    assert {family: [row["n"] for row in rows] for family, rows in summary["families"].items()} == {
        "mt_bench": [2, 2],
        "translation": [2, 2],
    }
    assert "translation" in result.stdout
    assert all(row["equal_to_plain"] for row in summary["rows"])


def test_data_and_prompts_exclude_each_other(tmp_path: Path) -> None:
    prompts = write(tmp_path / "spec.jsonl", SPEC_BENCH)
    result = CliRunner().invoke(
        app, ["bench", "--prompts", str(prompts), "--data", str(tmp_path), "--out", str(tmp_path)]
    )
    assert result.exit_code == exit_codes.USAGE
