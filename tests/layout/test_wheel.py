"""Guards the wheel: one package, which works in a folder that has an `app/`, a `tools/` and an `agent/` of its own.

Once it put eight packages into site-packages, and `import sqlagent` failed with somebody's `tools/` installed.
"""

import ast
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import sqlagent
from decoding.errors import DISTRIBUTION, pip_install
from hatch_build import Names, rewritten, write_bundle
from tests.layout.rooms import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
NAMES = Names(ROOT, set(PACKAGES) - {"sqlagent"})
FOREIGN = sorted(set(PACKAGES) - {"sqlagent"})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and this environment's packages, without the repository."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", paths))
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True)
    return python.parent


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with packages of our names that belong to somebody else."""
    for name in FOREIGN:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'somebody else'\n")
    return tmp_path


def built(source: Path, into: Path) -> Path:
    return Path(next(WheelBuilder(str(source)).build(directory=str(into), versions=["standard"])))


def run(folder: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_one_package_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"sqlagent"}
    assert len(names) == len(set(names))
    assert any(name.endswith("licenses/NOTICE") for name in names)
    assert "sqlagent/eval/dialogues/record_shops.jsonl" in names and "sqlagent/ui/page/style.css" in names


def test_nothing_in_the_wheel_names_a_module_as_the_repository_does(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    files = [name for name in archive.namelist() if name.endswith(".py")]
    assert len(files) > 350
    for file in files:
        for node in ast.walk(ast.parse(archive.read(file))):
            if isinstance(node, ast.ImportFrom):
                assert not NAMES.moves(node.module), file
            elif isinstance(node, ast.Import):
                assert not any(NAMES.moves(alias.name) for alias in node.names), file
            elif isinstance(node, ast.Constant):
                assert not NAMES.is_place(node.value), (file, node.value)


def test_sql_runs_beside_packages_of_the_same_names(installed: Path, elsewhere: Path) -> None:
    """In a process of its own, which imports by name what it serves."""
    told = run(elsewhere, str(installed / "sqlagent"), "sql", "SELECT count(*) AS albums FROM albums", "--json")
    assert json.loads(told)["rows"] == [[150]]
    assert run(elsewhere, str(installed / "sqlagent"), "--version").strip() == sqlagent.__version__


def test_a_program_beside_packages_of_the_same_names_uses_both(installed: Path, elsewhere: Path) -> None:
    code = (
        "import sqlagent, app, tools; print(app.OWNER, tools.OWNER)\n"
        "with sqlagent.open('shop.csv') as shop: print(shop.schema().tables[0].name, sqlagent.QueryError.__module__)"
    )
    (elsewhere / "shop.csv").write_text("name,price\ncup,2\n")
    told = run(elsewhere, str(installed / "python"), "-c", code)
    assert told.splitlines() == ["somebody else somebody else", "shop sqlagent.tools.result"]


def test_every_command_is_found_in_the_wheel(installed: Path, elsewhere: Path) -> None:
    code = (
        "from sqlagent.app.cli import COMMANDS, _command\n"
        "assert all(_command(name) for name in COMMANDS)\n"
        "from sqlagent.decoding.methods.registry import METHODS, method_options\n"
        "print(len([method_options(name) for name in METHODS]))"
    )
    assert int(run(elsewhere, str(installed / "python"), "-c", code)) > 10


def test_the_source_archive_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = next(SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    [source] = [each for each in tmp_path.iterdir() if each.is_dir()]
    assert built(source, tmp_path).read_bytes() == wheel.read_bytes()


def test_in_the_repository_installed_names_are_the_same_modules() -> None:
    code = (
        "import sqlagent.tools.result as a, tools.result as b; from sqlagent.decoding.methods import registry as table\n"
        "import decoding.methods.registry; print(a is b, table is decoding.methods.registry, table.__spec__.name)"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert told == "True True decoding.methods.registry\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from tools.result import Result, Limits", "from sqlagent.tools.result import Result, Limits"),
        ("if x:\n    from app import cli  # é", "if x:\n    from sqlagent.app import cli  # é"),
        ("import numpy, kernels.cpu as k", "import numpy, sqlagent.kernels.cpu as k"),
        ('PLACE = {"é": "tools.result:Result"}', 'PLACE = {"é": "sqlagent.tools.result:Result"}'),
        ("from toolset import tools", "from toolset import tools"),
        ('"""See tools.result."""; a = "tools.toml", "eval.csv", tools.result', None),
        ("from sqlagent import open; from . import tools", None),
    ],
)
def test_names_of_modules_get_a_prefix(code: str, expected: str | None) -> None:
    assert rewritten(code.encode(), NAMES).decode() == (code if expected is None else expected)


@pytest.mark.parametrize(
    "code",
    ["import kernels.cpu", "import tools", 'f"kernels.cpu.{name}"', '"tools." "result"', "from \\\n tools import sql"],
)
def test_what_cannot_be_rewritten_stops_the_build(code: str) -> None:
    with pytest.raises(ValueError, match="line 1: "):
        rewritten(code.encode(), NAMES)


def test_messages_and_documents_name_our_distribution() -> None:
    """`sqlagent` on the package index is another project's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION and pip_install("ui") == f"pip install '{DISTRIBUTION}[ui]'"
    extras = project["optional-dependencies"]
    for file in [*ROOT.glob("*.md"), *(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))]:
        text = file.read_text()
        assert "sqlagent[" not in text and "pip install sqlagent`" not in text, file
        named = [part.split("]")[0] for part in text.split(f"{DISTRIBUTION}[")[1:]]
        assert all(extra in extras for each in named for extra in each.split(",")), file


def test_the_bundle_holds_what_its_manifest_starts(wheel: Path, installed: Path, elsewhere: Path) -> None:
    """Without uv: its one command is run by the environment that uv would make."""
    with_file = elsewhere / "sqlagent.mcpb"
    write_bundle(wheel, with_file)
    with zipfile.ZipFile(with_file) as bundle:
        bundle.extractall(elsewhere)
    manifest = json.loads((elsewhere / "manifest.json").read_text())
    assert set(manifest) >= {"manifest_version", "name", "version", "description", "author", "server"}
    project = tomllib.loads((elsewhere / "pyproject.toml").read_text())
    assert (elsewhere / project["tool"]["uv"]["sources"]["sqlagent-local"]["path"]).exists()
    _, _, folder, *command = manifest["server"]["mcp_config"]["args"]
    assert folder == "${__dirname}" and command[-1] == "${user_config.database}" and manifest["user_config"]["database"]
    told = run(elsewhere, str(installed / "python"), *command[:2], "--help")
    assert "Model Context Protocol" in told
