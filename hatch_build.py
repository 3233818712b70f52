"""Builds the wheel, and the bundle for MCP clients of it: one package, `sqlagent`, that holds the repository's other packages.

In the repository they lie side by side and are imported by their own names (`from agent.state import State`), names as
common as `app` and `tools`. Installed, they lie inside `sqlagent` (`from sqlagent.agent.state import State`), so that nothing
of ours stands in the way of a user's own `app` or `tools`. `pyproject.toml` says where files go (`sources`); this hook rewrites
imports, and strings that name modules, to match. Only text in front of names is added: lines stay where they are.
"""

import ast
import json
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PREFIX = "sqlagent."
_PLACE = re.compile(r"[a-z]\w*(\.\w+)+(:\w+)?")  # "decoding.methods.baselines:Plain"


class OnePackage(BuildHookInterface):  # type: ignore[type-arg]
    """Rewrites the Python files of a wheel; an editable installation keeps the repository's files and names."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root, self._folder = Path(self.root), tempfile.TemporaryDirectory()
        names = Names(root, {Path(source).name for source in self.build_config.sources} - {PREFIX[:-1]})
        for file in self.build_config.builder.recurse_selected_project_files():
            if file.path.endswith(".py"):
                written = Path(self._folder.name, file.relative_path)
                written.parent.mkdir(parents=True, exist_ok=True)
                written.write_bytes(rewritten(Path(file.path).read_bytes(), names))
                build_data["force_include"][str(written)] = file.relative_path

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()


class Names:
    """The packages that move into the one package."""

    def __init__(self, root: Path, packages: set[str]) -> None:
        self._root, self._packages = root, packages

    def moves(self, module: str | None) -> bool:
        """Whether a module, by its dotted name, is in one of them."""
        return module is not None and module.partition(".")[0] in self._packages

    def is_place(self, text: object) -> bool:
        """Whether a string names a module that is there, or something in one."""
        if not isinstance(text, str) or not _PLACE.fullmatch(text) or not self.moves(text):
            return False
        path = self._root.joinpath(*text.partition(":")[0].split(".")[:2])
        return path.is_dir() or path.with_suffix(".py").is_file()


def rewritten(source: bytes, names: Names) -> bytes:
    """Python code in which the modules of `names` are inside the one package.

    Raises ValueError, with the line's number, for code that cannot be rewritten by text in front of a name.
    """
    lines = source.splitlines(keepends=True)
    for line, column in sorted(_places(source, lines, names), reverse=True):
        lines[line - 1] = lines[line - 1][:column] + PREFIX.encode() + lines[line - 1][column:]
    return b"".join(lines)


def _places(source: bytes, lines: list[bytes], names: Names) -> Iterator[tuple[int, int]]:
    """Lines and columns (in bytes) where the prefix belongs."""
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and names.moves(node.module):
            found = re.compile(rb"from\s+").match(lines[node.lineno - 1], node.col_offset)
            if found is None or not lines[node.lineno - 1][found.end() :].startswith(str(node.module).encode()):
                raise ValueError(f"line {node.lineno}: write this import on one line")
            yield node.lineno, found.end()
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if names.moves(alias.name):
                    if alias.asname is None:
                        raise ValueError(
                            f"line {node.lineno}: write `import {alias.name} as ...`, or `from ... import ...`"
                        )
                    yield alias.lineno, alias.col_offset
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in parts:
                if names.is_place(node.value.rstrip(".")):
                    raise ValueError(f"line {node.lineno}: a module's name inside an f-string; use `package.__name__`")
            elif names.is_place(node.value):
                text = lines[node.lineno - 1][node.col_offset : node.end_col_offset]
                if text[1:-1] != node.value.encode():
                    raise ValueError(f"line {node.lineno}: write {node.value!r} as one plain string")
                yield node.lineno, node.col_offset + 1


BUNDLED_PROJECT = """[project]
name = "sqlagent-bundle"
version = "{version}"
requires-python = ">=3.11"
dependencies = ["sqlagent-local[serve]"]

[tool.uv.sources]
sqlagent-local = {{ path = "{wheel}" }}
"""
BUNDLED_SERVER = "from sqlagent.app.cli import main\n\nmain()\n"


def write_bundle(wheel: Path, to: Path) -> None:
    """Write an MCP bundle (.mcpb) of the wheel: a program that knows bundles installs it, asks for the database's file, and
    starts `sqlagent mcp` by uv."""
    version = wheel.name.split("-")[1]
    start = ["run", "--directory", "${__dirname}", "server.py", "mcp", "--db", "${user_config.database}"]
    database = {"type": "file", "title": "Database", "description": "DuckDB, SQLite, CSV, Parquet, JSON or Excel file."}
    manifest = {
        "manifest_version": "0.4",
        "name": "sqlagent",
        "version": version,
        "description": "Questions to a database in plain words, answered on this machine by a small model; read-only.",
        "author": {"name": "sqlagent"},
        "license": "Apache-2.0",
        "server": {"type": "uv", "entry_point": "server.py", "mcp_config": {"command": "uv", "args": start}},
        "tools_generated": True,
        "user_config": {"database": database | {"required": True}},
        "compatibility": {"platforms": ["darwin", "linux"], "runtimes": {"python": ">=3.11"}},
    }
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("manifest.json", json.dumps(manifest, indent=2))
        bundle.writestr("pyproject.toml", BUNDLED_PROJECT.format(version=version, wheel=wheel.name))
        bundle.writestr("server.py", BUNDLED_SERVER)
        bundle.write(wheel, wheel.name)


if __name__ == "__main__":
    write_bundle(Path(sys.argv[1]), Path(sys.argv[2]))
