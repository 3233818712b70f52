"""Authored databases: a folder each, with a script that makes the database, questions, and dialogues.

    NAME/build              Python that defines build(path), which writes a SQLite file; seeded, standard library only
    NAME/questions.jsonl    {"question", "sql", "kind", "paraphrases": [two], "evidence"?, "empty"?} a line
    NAME/dialogues.jsonl    {"turns": [{"question", "sql", "kind", "continues"}]} a line
    parts.json              {"train": [NAME, ...], "choosing": [...], "sealed": [...]}

`sql` is SQLite's; "" marks a question that the data cannot answer. Training reads `train` alone, thresholds and stopping are
chosen on `choosing`, and `sealed` is read by commands only.
"""

import hashlib
import json
import os
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, Literal

from decoding.checkpoints.cache_folder import cache_root
from eval.datasets.official import DatasetError, Example

Part = Literal["train", "choosing", "sealed"]
_LAYOUT = "authored data have parts.json and, for each database, NAME/build and NAME/questions.jsonl"


def load_authored(data: Path, part: Part) -> list[Example]:
    """A part's questions that the data can answer, by database; `difficulty` is their kind. Raises DatasetError."""
    return [
        Example(f"{name}/{number}", name, line["question"], line["sql"], line.get("evidence", ""), line["kind"], file)
        for name in part_of(data, part)
        for file in (made_database(data / name),)
        for number, line in enumerate(json_lines(data / name / "questions.jsonl"), 1)
        if line["sql"]
    ]


def part_of(data: Path, part: Part) -> list[str]:
    """The names of a part's databases. Raises DatasetError."""
    file = data / "parts.json"
    if not file.is_file():
        raise DatasetError(f"{file} is not there: {_LAYOUT}")
    names: list[str] = json.loads(file.read_text(encoding="utf-8"))[part]
    return names


def json_lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a file, one a line. Raises DatasetError, which names the line that is none."""
    if not file.is_file():
        raise DatasetError(f"{file} is not there: {_LAYOUT}")
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise DatasetError(f"{file}, line {number} is not JSON: {error}") from error
    return found


def made_database(folder: Path) -> Path:
    """The folder's database, made once per version of its script in the cache. Raises DatasetError."""
    script = folder / "build"
    if not script.is_file():
        raise DatasetError(f"{script} is not there: {_LAYOUT}")
    version = hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    file = cache_root() / "authored" / version / f"{folder.name}.sqlite"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f"{file.name}.{os.getpid()}.part")
        unfinished.unlink(missing_ok=True)
        try:
            _script(script).build(str(unfinished))
            os.replace(unfinished, file)
        finally:
            unfinished.unlink(missing_ok=True)
    return file


def _script(path: Path) -> Any:
    loader = SourceFileLoader(f"authored_{path.parent.name}", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)  # no byte code is left among the data
    return module
