"""Command-line options that several commands share, and the extensions that they load.

Loads extensions: modules that register decoding methods, kinds of databases, nodes of the agent and data sets.

An installed package names its module in the entry-point group `sqlagent.extensions`; other modules are named by
`--extension` or `SQLAGENT_EXTENSIONS`. docs/extending.md shows how to write one.

Command-line options that several commands share: their types, their help, and how their values are read.
"""

import os
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

GROUP, VARIABLE = "sqlagent.extensions", "SQLAGENT_EXTENSIONS"


class ExtensionError(Exception):
    """An extension cannot be imported; the message is one line that says which and why."""


def load_extensions(named: Iterable[str] = ()) -> None:
    """Import the extensions of installed packages, those that the environment names, and those `named`.

    Processes that are started from now on find all of these in their environment. Raises ExtensionError.
    """
    if given := dict.fromkeys([*_from_environment(), *named]):
        os.environ[VARIABLE] = ",".join(given)
    for module in extensions():
        _load(module)


def extensions() -> list[str]:
    """The modules that installed packages and the environment name."""
    installed = [each.value for each in entry_points(group=GROUP)]
    return list(dict.fromkeys([*installed, *_from_environment()]))


def _from_environment() -> list[str]:
    return os.environ.get(VARIABLE, "").replace(",", " ").split()


def _load(module: str) -> None:
    try:
        import_module(module)
    except Exception as error:  # an extension's module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        what_to_do = "install it, or put its folder into PYTHONPATH" if is_absent else "correct it, or leave it out"
        raise ExtensionError(f"the extension {module} cannot be imported ({reason}): {what_to_do}") from error


REMOTE = "openai:"
"""The prefix of the names of models that run elsewhere; see `agent.assemble`."""


def known_engine(name: str) -> str:
    """Check the name of a kind of database, or "auto"; returns it."""
    from tools.databases.database import DATABASE_KINDS

    if name != "auto" and name not in DATABASE_KINDS:
        raise typer.BadParameter(f"{name!r} is not one of auto, {', '.join(DATABASE_KINDS)}")
    return name


Chats = Annotated[Path | None, typer.Option("--chats", help="SQLite file of the conversations.", dir_okay=False)]


def _or_environment(given: list[str] | None) -> list[str] | None:
    """typer would split what the environment names at white space, which paths may hold."""
    named = os.environ.get("SQLAGENT_DB")
    return given or ([named] if named else None)


def _with_environment(given: list[str] | None) -> list[str]:
    """What the environment hides, too: nobody shows it by hiding something else."""
    return [*given, os.environ.get("SQLAGENT_HIDE", "")] if given else [os.environ.get("SQLAGENT_HIDE", "")]


def _or_environments(given: list[str] | None) -> list[str]:
    """The option stands in the environment's place: with both, more would be shown than either names."""
    return given or [os.environ.get("SQLAGENT_TABLES", "")]


Db = Annotated[
    list[str] | None,
    typer.Option(
        "--db",
        help="DuckDB, SQLite, CSV, Parquet, JSON or Excel file, a folder or a pattern (*.csv) of these, or a URL; "
        "repeatable, or several with commas. Default: SQLAGENT_DB, or the bundled example.",
        callback=_or_environment,
    ),
]
Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--tables",
        help="The only tables that may be read; repeatable, or several with commas. Default: SQLAGENT_TABLES.",
        callback=_or_environments,
    ),
]
Hide = Annotated[
    list[str] | None,
    typer.Option(
        "--hide",
        help="Tables, and columns written table.column, to hide from the model and from queries; repeatable, or several "
        "with commas. Those of SQLAGENT_HIDE are hidden, too.",
        callback=_with_environment,
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", help="Decode on a Ray cluster: host:port, auto, or local. The results are the same."
    ),
]
RayWorkers = Annotated[
    int | None,
    typer.Option("--ray-workers", min=1, help="Number of models. Default: one per GPU, or per machine without one."),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine", callback=known_engine, help="What opens it: auto, duckdb, or sqlite for SQLite's own dialect."
    ),
]
Model = Annotated[
    str,
    typer.Option(
        "--model", help="'embedded', a folder, a .gguf file, a hub id, or openai:URL#NAME.", envvar="SQLAGENT_MODEL"
    ),
]
Adapter = Annotated[
    str,
    typer.Option(
        "--adapter", help="Low-rank adapter: a folder, 'none', or 'auto' for the one that comes with the model."
    ),
]
Decoder = Annotated[str | None, typer.Option("--decoder", help="Decoding method; `sqlagent doctor` lists them.")]
DecoderOption = Annotated[
    list[str] | None, typer.Option("--decoder-option", "-o", help="An option of the decoder as name=value; repeatable.")
]
ProfileOption = Annotated[str | None, typer.Option("--profile", help="Prompt profile: compact or chat.")]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="Type of the weights: auto, bf16, fp32, int8 (on a CPU), or stored (a quantised checkpoint's, kept packed).",
    ),
]
KvDtype = Annotated[
    Literal["auto", "fp8"],
    typer.Option("--kv-dtype", help="Type of keys and values: auto, that of the computation, or fp8 (on one GPU)."),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of every random choice.")]
Orders = Annotated[
    int,
    typer.Option(
        "--schema-permutations",
        min=1,
        max=16,
        help="Orders of the schema over which the model's predictions are averaged where its plan is doubtful; 1: never.",
    ),
]
Attempts = Annotated[int, typer.Option("--attempts", min=1, max=20, help="SQL statements tried per question.")]
Constrain = Annotated[
    bool, typer.Option("--constrain/--no-constrain", help="Let a grammar hold the model to SQL over the schema.")
]
PredictedOutputs = Annotated[
    bool,
    typer.Option(
        "--predicted-outputs/--no-predicted-outputs",
        help="Let drafts copy text predicted from the plan and the schema links.",
    ),
]
Values = Annotated[
    bool, typer.Option("--values/--no-values", help="Show the model the cell values that the question names.")
]
Hints = Annotated[
    bool,
    typer.Option(
        "--hints/--no-hints", help="Show the model the likely columns, and only the likely tables of a large schema."
    ),
]
Repair = Annotated[
    bool, typer.Option("--repair/--no-repair", help="Repair SQL by rules before the model is asked again.")
]
Rerank = Annotated[
    bool | None,
    typer.Option(
        "--rerank/--no-rerank",
        help="Where an answer is doubtful, sample other readings, and answer with one that is clearly better. "
        "Default: yes, but not where decoding is measured.",
    ),
]
AtLeast = Annotated[
    float,
    typer.Option(
        "--at-least",
        min=0.0,
        max=0.99,
        metavar="SHARE",
        help="Give only answers that are right so often, such as 0.9; otherwise show what the question may mean. 0: give all.",
    ),
]
KnowledgeFolder = Annotated[
    Path | None,
    typer.Option(
        "--knowledge", help="Folder of terms, metrics and examples for this database.", envvar="SQLAGENT_KNOWLEDGE"
    ),
]
NodeOption = Annotated[
    list[str] | None,
    typer.Option("--node-option", metavar="NODE.NAME=VALUE", help="Of a node that an extension added; repeatable."),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="Most rows to return. Default: 1,000; 1,000,000 for CSV and files."),
]
Deadline = Annotated[
    float, typer.Option("--deadline", min=0.1, help="Seconds that a question may take in all, decoding included.")
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds that one query may take.")]
MemoryLimit = Annotated[int, typer.Option("--memory-limit", min=64, help="MiB that one query may use.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for the results; an interrupted run there is resumed.")]


def names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """The comma-separated parts of a text, or of several."""
    text = given if isinstance(given, str) else ",".join(given or ())
    return tuple(part.strip() for part in text.split(",") if part.strip())


def decoder_options(pairs: list[str] | None) -> dict[str, Any]:
    """Options from `name=value` pairs; values are read as int, float, true / false, or text."""
    from decoding.methods.registry import option_value

    options: dict[str, Any] = {}
    for pair in pairs or []:
        name, value = named(pair, "--decoder-option")
        options[name] = option_value(value)
    return options


def node_options(pairs: list[str] | None) -> dict[str, dict[str, Any]]:
    """Options by node from `node.name=value` pairs; values are read as for decoders. Raises UnknownNode."""
    from agent.observe.node_table import check_option
    from decoding.methods.registry import option_value

    options: dict[str, dict[str, Any]] = {}
    for pair in pairs or []:
        key, value = named(pair, "--node-option")
        node, _, name = key.partition(".")
        check_option(node, name)
        options.setdefault(node, {})[name] = option_value(value)
    return options


def named(text: str, option: str) -> tuple[str, str]:
    """Name and value from the `name=value` that was given with `option`."""
    from decoding.methods.registry import name_and_value

    try:
        return name_and_value(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
