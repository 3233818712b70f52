"""Option groups that several commands share, as dataclasses, and the decorator that turns them into options."""

import inspect
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

from app.shared import options

if TYPE_CHECKING:
    from agent.assemble import ModelChoice
    from agent.context import AgentOptions
    from tools.databases.database import Database
    from tools.result import Limits


SHOWN_ROWS, EXPORTED_ROWS = 1_000, 1_000_000
"""Most rows of a query that is shown, and of one that is written to a file or as CSV, where `--limit` says nothing."""


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """Options that choose the database."""

    db: options.Db = None
    engine: options.EngineOption = "auto"
    tables: options.Tables = None
    hide: options.Hide = None

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
        tables, hide = options.names(self.tables), options.names(self.hide)
        return kept(open_named(self.db, self.engine), files, lambda whole: restricted(whole, tables, hide))


@dataclass(frozen=True, slots=True)
class Query:
    """Options that limit what one query may use."""

    limit: options.Limit = None
    timeout: options.Timeout = 30.0
    memory_limit: options.MemoryLimit = 1024

    def limits(self, most_rows: int = SHOWN_ROWS) -> "Limits":
        """The limits; `most_rows`: of a query where no limit is given."""
        from tools.result import Limits

        return Limits(deadline_s=self.timeout, max_rows=self.limit or most_rows, memory_limit_mb=self.memory_limit)


@dataclass(frozen=True, slots=True)
class Decoding:
    """Options that choose the model and how it decodes."""

    model: options.Model = "embedded"
    adapter: options.Adapter = "auto"
    decoder: options.Decoder = None
    decoder_option: options.DecoderOption = None
    profile: options.ProfileOption = None
    dtype: options.Dtype = "auto"
    kv_dtype: options.KvDtype = "auto"
    device: options.Device = "auto"
    temperature: options.Temperature = 0.0

    @property
    def runs_here(self) -> bool:
        """Whether the model runs on this machine; decided without importing what loads models."""
        return not self.model.startswith(options.REMOTE)

    def choice(self) -> "ModelChoice":
        """The checked choice. Raises UnknownMethod, UnknownProfile."""
        from app.shared.process import check_address_space

        check_address_space(with_model=self.runs_here)
        from agent.assemble import ModelChoice

        choice = ModelChoice(
            model=self.model,
            adapter=self.adapter,
            decoder=self.decoder,
            decoder_options=options.decoder_options(self.decoder_option),
            profile=self.profile,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            device=self.device,
            temperature=self.temperature,
        )
        choice.check()
        return choice


@dataclass(frozen=True, slots=True)
class Asking:
    """Options for how the agent answers a question."""

    orders: options.Orders = 4
    attempts: options.Attempts = 2
    constrain: options.Constrain = True
    predicted_outputs: options.PredictedOutputs = True
    values: options.Values = True
    hints: options.Hints = True
    repair: options.Repair = True
    rerank: options.Rerank = None
    at_least: options.AtLeast = 0.0
    seed: options.Seed = 0
    knowledge: options.KnowledgeFolder = None
    node_option: options.NodeOption = None

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
            node_options=options.node_options(self.node_option),
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
