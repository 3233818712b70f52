"""Text that is no SQL in the benchmark: read as published, a row for each family, a clear error for anything else."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.shared import exit_codes
from eval.datasets.official import DatasetError, TextPrompt, read_text_prompts
from tests.decoding.models.tiny_models import tiny_checkpoint

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
