"""Command-line options that several commands share: their types, their help, how their values are read, and their groups."""

import inspect
import os
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import typer

if TYPE_CHECKING:
    from agent.assemble import ModelChoice
    from agent.context import AgentOptions
    from tools.databases.database import Database
    from tools.result import Limits


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
        "repeatable, or several with commas. Default: SQLAGENT_DB, or the bundled example. "
        "Set a URL with a password there: options can be read in ps.",
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
Rule = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        help="The rows of a table that may be read, such as 'orders: region = :region'; repeatable, one for each table.",
    ),
]
RuleValue = Annotated[
    list[str] | None,
    typer.Option("--rule-value", metavar="NAME=VALUE", help="What a rule's :NAME stands for; repeatable."),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine", callback=known_engine, help="What opens it: auto, duckdb, or sqlite for SQLite's own dialect."
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
Model = Annotated[
    str,
    typer.Option(
        "--model", help="'embedded', a folder, a .gguf file, a hub id, or openai:URL#NAME.", envvar="SQLAGENT_MODEL"
    ),
]
Escalate = Annotated[
    str,
    typer.Option(
        "--escalate",
        metavar="MODEL",
        help="A larger model, named as for --model, for what the own one is not sure of (--at-least; 0.9 without it).",
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
        help="Orders of the schema over which predictions are averaged if the plan has an unlikely token; 1: never.",
    ),
]
Attempts = Annotated[int, typer.Option("--attempts", min=1, max=20, help="SQL statements tried per question.")]
Constrain = Annotated[
    bool, typer.Option("--constrain/--no-constrain", help="Constrain the model to SQL over the schema by a grammar.")
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
        help="If the confidence is low, write other plans, and answer with one that is clearly better. "
        "Default: yes, except when decoding is measured.",
    ),
]
AtLeast = Annotated[
    float,
    typer.Option(
        "--at-least",
        min=0.0,
        max=0.99,
        metavar="SHARE",
        help="Answer only if this share of such answers is right, such as 0.9; otherwise show what the question may mean.",
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
ExpectedRows = Annotated[
    int,
    typer.Option(
        "--expected-rows",
        min=0,
        help="Run no query of which the engine's own plan expects more rows in one of its steps; 0: run all.",
    ),
]
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
    from agent.observe.step_record import check_option
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


SHOWN_ROWS, EXPORTED_ROWS = 1_000, 1_000_000
"""Most rows of a query that is shown, and of one that is written to a file or as CSV, where `--limit` says nothing."""


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """Options that choose the database."""

    db: Db = None
    engine: EngineOption = "auto"
    tables: Tables = None
    hide: Hide = None
    rule: Rule = None
    rule_value: RuleValue = None

    @property
    def is_kept(self) -> bool:
        """Whether what is read of the database may be kept in the cache folder."""
        from app.shared.databases import files_named

        return bool(files_named(self.db))

    def open(self) -> "Database":
        """Open the database. Raises OpenError."""
        from app.shared.process import check_address_space

        check_address_space(with_model=False)
        from app.shared.databases import files_named, kept, open_named
        from tools.databases.open_database import restricted

        files = files_named(self.db)
        tables, hide, rules = names(self.tables), names(self.hide), self.rule or ()
        values = dict(named(each, "--rule-value") for each in self.rule_value or ())
        return kept(
            open_named(self.db, self.engine), files, lambda whole: restricted(whole, tables, hide, rules, values)
        )


@dataclass(frozen=True, slots=True)
class Query:
    """Options that limit what one query may use."""

    limit: Limit = None
    timeout: Timeout = 30.0
    memory_limit: MemoryLimit = 1024
    expected_rows: ExpectedRows = 0

    def limits(self, most_rows: int = SHOWN_ROWS) -> "Limits":
        """The limits; `most_rows`: of a query where no limit is given."""
        from tools.result import Limits

        return Limits(self.timeout, self.limit or most_rows, self.memory_limit, self.expected_rows)


@dataclass(frozen=True, slots=True)
class Decoding:
    """Options that choose the model and how it decodes."""

    model: Model = "embedded"
    adapter: Adapter = "auto"
    decoder: Decoder = None
    decoder_option: DecoderOption = None
    profile: ProfileOption = None
    dtype: Dtype = "auto"
    kv_dtype: KvDtype = "auto"
    device: Device = "auto"
    temperature: Temperature = 0.0

    @property
    def runs_here(self) -> bool:
        """Whether the model runs on this machine; decided without importing what loads models."""
        return not self.model.startswith(REMOTE)

    def choice(self, escalate: str = "") -> "ModelChoice":
        """The checked choice. Raises UnknownMethod, UnknownProfile."""
        from app.shared.process import check_address_space

        check_address_space(with_model=self.runs_here)
        from agent.assemble import ModelChoice

        choice = ModelChoice(
            model=self.model,
            adapter=self.adapter,
            decoder=self.decoder,
            decoder_options=decoder_options(self.decoder_option),
            profile=self.profile,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            device=self.device,
            temperature=self.temperature,
            escalate=escalate,
        )
        choice.check()
        return choice


@dataclass(frozen=True, slots=True)
class Asking:
    """Options for how the agent answers a question."""

    orders: Orders = 4
    attempts: Attempts = 2
    constrain: Constrain = True
    predicted_outputs: PredictedOutputs = True
    values: Values = True
    hints: Hints = True
    repair: Repair = True
    rerank: Rerank = None
    at_least: AtLeast = 0.0
    seed: Seed = 0
    knowledge: KnowledgeFolder = None
    node_option: NodeOption = None

    def agent_options(
        self, race: bool = False, present: bool = False, deadline_s: float | None = None, rerank: bool = True
    ) -> "AgentOptions":
        """The options. present: for people, to whom results explain themselves. rerank: where the user did not say."""
        from agent.context import AgentOptions
        from agent.prompts.knowledge import Knowledge, read_knowledge

        return AgentOptions(
            max_attempts=self.attempts,
            orders=self.orders,
            seed=self.seed,
            race=race,
            present=present,
            rerank=rerank if self.rerank is None else self.rerank,
            at_least=self.at_least,
            deadline_s=deadline_s,
            constrain=self.constrain,
            predicted_outputs=self.predicted_outputs,
            values=self.values,
            hints=self.hints,
            repair=self.repair,
            knowledge=read_knowledge(self.knowledge) if self.knowledge else Knowledge(),
            node_options=node_options(self.node_option),
        )


LABORATORY = (
    "adapter", "attempts", "constrain", "device", "dtype", "hints", "kv_dtype", "node_option", "orders",
    "predicted_outputs", "profile", "race", "repair", "seed", "temperature", "values",
)  # fmt: skip
"""Options that measurements set and a person hardly does. Commands for people take them, and leave them out of their help."""


def spread_for_people(command: Callable[..., None]) -> Callable[..., None]:
    """As `spread`, with the options of the laboratory left out of the help."""
    return spread(command, LABORATORY)


def spread(command: Callable[..., None], hidden: Collection[str] = ()) -> Callable[..., None]:
    """Make each field of a command's dataclass parameters an option of its own; the help leaves out those in `hidden`."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        shown += _fields(groups[name]) if name in groups else [parameter.replace(annotation=hints[name])]

    @wraps(command)
    def wrapper(**given: Any) -> None:
        built = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**built, **given)

    keyword = [_option(parameter, parameter.name in hidden) for parameter in shown]
    wrapper.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword}
    return wrapper


def fixed(command: Callable[..., None], **values: Any) -> Callable[..., None]:
    """The command with these parameters fixed, so that they do not appear as options."""

    @wraps(command)
    def wrapper(**given: Any) -> None:
        command(**values, **given)

    signature = inspect.signature(command)
    shown = [parameter for name, parameter in signature.parameters.items() if name not in values]
    wrapper.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return wrapper


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


def _option(parameter: inspect.Parameter, hidden: bool) -> inspect.Parameter:
    """The parameter by keyword alone, left out of the help if `hidden`."""
    annotation = parameter.annotation
    if hidden:
        kind, *information = get_args(annotation)
        option = copy(information[-1])
        option.hidden = True
        annotation = Annotated[kind, option]
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
