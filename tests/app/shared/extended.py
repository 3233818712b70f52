"""The code of docs/extending.md in a folder outside the project, and the tables of the project as they were."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.observe.step_record import NODES
from app.shared.process import VARIABLE
from decoding.heads.kinds import KINDS
from decoding.methods.registry import METHODS
from eval.datasets.registry import DATASETS
from tools.databases.database import DATABASE_KINDS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "extending.md"
TABLES: tuple[dict[str, Any], ...] = (METHODS, KINDS, DATABASE_KINDS, NODES, DATASETS)


def files_of_the_page() -> dict[str, str]:
    """The page's Python by the file that each block's first line names; blocks of one file stand one after another."""
    files: dict[str, str] = {}
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        files[name] = files.get(name, "") + code
    return files


@contextmanager
def extended(folder: Path) -> Iterator[Path]:
    """The extension of the page in `folder`, found by this process and those that it starts; afterwards nothing is left."""
    for name, code in files_of_the_page().items():
        (folder / name).write_text(code)
    held, modules = [dict(table) for table in TABLES], set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        patch.setenv(VARIABLE, "my_extension")
        yield folder
    for table, before in zip(TABLES, held, strict=True):
        table.clear()
        table.update(before)
    for name in [each for each in set(sys.modules) - modules if (folder / f"{each}.py").exists()]:
        del sys.modules[name]
