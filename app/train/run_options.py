"""What all kinds of training share on the command line: a run's options, how a signal stops it, and its last line.

The options that `train jacobi collect` and `train head collect` share, and how they are used.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.shared import options, output
from decoding.serving.load import load_text_decoder
from training.config import LoraConfig, TrainConfig
from training.loop import train
from training.objective import answers
from training.packs.groups import read_groups
from training.packs.stored import write_packs
from training.run.base import load_base
from training.run.progress import keep_freed_memory

if TYPE_CHECKING:
    from decoding.serving.text_decoder import TextDecoder
    from training.objective import Objective, Objectives
    from training.packs.groups import Group
    from training.run.base import Base


Read = Callable[[Path, "Base"], Iterable[Any]]
"""(file, base) -> the data in the file."""

StopToken = Annotated[
    str | None, typer.Option("--stop-token", help="Stop token, by name, where the model has several.")
]
PacksOnly = Annotated[
    bool,
    typer.Option(
        "--packs-only",
        help="Train nothing: write packs and options to the file --out, for `python -m app.train.on_gpu train`.",
    ),
]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Command-line options of every training run, whatever is trained."""

    learning_rate: Annotated[float, typer.Option("--learning-rate", "--lr", help="Peak learning rate.")] = 5e-4
    warmup: Annotated[
        float, typer.Option("--warmup", min=0.0, max=0.9, help="Share of the run in which the learning rate rises.")
    ] = 0.03
    final_rate: Annotated[
        float, typer.Option("--final-rate", min=0.0, max=1.0, help="Last learning rate as a share of the peak.")
    ] = 0.05
    weight_decay: Annotated[float, typer.Option("--weight-decay", min=0.0, help="Weight decay of AdamW.")] = 0.01
    clip: Annotated[float, typer.Option("--clip", min=0.0, help="Largest norm of the gradient; 0 for no limit.")] = 1.0
    accumulate: Annotated[int, typer.Option("--accumulate", min=1, help="Packs per step and process.")] = 4
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Stop after so many steps.")] = None
    epochs: Annotated[float | None, typer.Option("--epochs", help="Passes over the data.")] = None
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Wall-clock budget in minutes, to which the schedule is fitted.")
    ] = None
    seed: options.Seed = 0
    dtype: options.Dtype = "auto"
    device: options.Device = "auto"
    checkpoint_minutes: Annotated[float, typer.Option("--checkpoint-minutes", help="Minutes between checkpoints.")] = (
        10.0
    )
    checkpoint_steps: Annotated[
        int | None, typer.Option("--checkpoint-steps", min=1, help="Steps between checkpoints.")
    ] = None
    validate_steps: Annotated[
        int | None, typer.Option("--validate-steps", min=1, help="Steps between measurements on --held-out.")
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")] = False

    def config(self, stop_token: str | None = None) -> "TrainConfig":
        """Raises TrainingError."""
        return self._config(stop_token=stop_token, lora=None)

    def _config(self, **more: Any) -> "TrainConfig":
        given = asdict(self)
        known = {field.name for field in fields(TrainConfig)} & given.keys()
        return TrainConfig(**{name: given[name] for name in known}, **more)


@dataclass(frozen=True, slots=True)
class Recipe(Schedule):
    """Command-line options of a run that trains the model itself."""

    full: Annotated[bool, typer.Option("--full", help="Train all matrices instead of a low-rank adapter.")] = False
    sharded: Annotated[
        bool, typer.Option("--sharded", help="With --full: split the optimizer's states among the processes.")
    ] = False
    rank: Annotated[int, typer.Option("--rank", min=1, help="Rank of the low-rank factors.")] = 32
    init_adapter: Annotated[
        Path | None,
        typer.Option("--init-adapter", help="Go on from this adapter, on any machine; the rate warms up again."),
    ] = None
    grow_rank: Annotated[
        int | None, typer.Option("--grow-rank", min=1, help="Add components to --init-adapter up to this rank.")
    ] = None
    pack_tokens: Annotated[
        int, typer.Option("--pack-tokens", min=16, help="Tokens per forward; 32768 on a large GPU.")
    ] = 1024

    def config(self, stop_token: str | None = None) -> "TrainConfig":
        """Raises TrainingError."""
        lora = LoraConfig(self.rank, 2.0 * self.rank)
        return self._config(stop_token=stop_token, lora=None if self.full else lora)


def run(
    recipe: Recipe,
    model: str,
    data: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    read: Read,
    *,
    stop_token: str | None = None,
    objective: "Objectives | None" = None,
    notes: dict[str, Any] | None = None,
    packed_as: "PackedAs | None" = None,
) -> None:
    """Train, and print the outcome as JSON. Without an objective, it trains on the answers of groups of pairs.

    packed_as: write the packs to the file `out` instead.
    """
    from agent.prompts.compact import PROMPT_VERSION  # not needed, and not installed, where packs are trained from

    keep_freed_memory()
    config, base = recipe.config(stop_token), load_base(model)
    listed, measured = ((each for path in paths for each in read(path, base)) for paths in (data, held_out))
    told = {"data": [path.name for path in data], **(notes or {})}
    if packed_as:
        packed_as.write(out, (objective or answers)(config, base, listed, measured), config, base, told, PROMPT_VERSION)
        return
    with stop_on_signals() as stopped:
        outcome = train(
            config,
            base,
            listed,
            out,
            held_out=measured,
            objective=objective or answers,
            resume=recipe.resume,
            stopped=stopped,
            prompt_version=PROMPT_VERSION,
            notes=told | {"recipe": plain_values(asdict(config))},
        )
    print_outcome({"out": str(out), **asdict(outcome)})


@dataclass(frozen=True, slots=True)
class PackedAs:
    """What packs are for: `app.train.on_gpu` knows the kinds. how: the kind's own options, in JSON's types."""

    kind: str
    how: Mapping[str, Any] = field(default_factory=dict)

    def write(
        self,
        file: Path,
        learnt: "Objective[Any]",
        config: "TrainConfig",
        base: "Base",
        notes: Mapping[str, Any],
        prompt_version: int | None,
    ) -> None:
        """Write an objective's packs with all that training needs but base and adapter, and print the size as JSON."""
        options_of_run = asdict(config) | {"init_adapter": config.init_adapter and str(config.init_adapter)}
        about = {
            **asdict(self),
            "config": options_of_run,
            "base": base.sha256,
            "prompt_version": prompt_version,
            "notes": notes,
            "left_out": learnt.left_out,
        }
        size_bytes = write_packs(file, learnt.packs, learnt.held_out, about)
        rows, answered = sum(each.rows for each in learnt.packs), sum(len(each.targets) for each in learnt.packs)
        counts = {"packs": len(learnt.packs), "tokens": rows, "answers": answered, "left_out": learnt.left_out}
        output.print_json({"out": str(file), **counts, "bytes": size_bytes})


def print_outcome(outcome: dict[str, Any]) -> None:
    """Print the last line on stdout; of torchrun's processes, only one prints it."""
    if os.environ.get("RANK", "0") == "0":
        output.print_json(outcome)


def allowed_tokens(max_new_tokens: int | None) -> Callable[[str], int]:
    """A function from a step to the most tokens of its answer. None stands for what the agent allows."""

    from agent.prompts.compact import Compact

    def agents(step: str) -> int:
        return Compact().max_new_tokens("plan" if step == "plan" else "generate")

    return agents if max_new_tokens is None else lambda step: max_new_tokens


def plain_values(values: dict[str, Any]) -> dict[str, Any]:
    """The values as JSON can hold them. Paths become names, since their folders mean nothing on other machines."""
    return {name: value.name if isinstance(value, Path) else value for name, value in values.items()}


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether the run is to end after its step. A second signal ends the process at once."""
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        asked.append(number)
        signal.signal(number, previous[signal.Signals(number)])

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class Collection:
    """Options for which prompts are decoded, by which model, and where the answers go."""

    data: Annotated[
        list[Path],
        typer.Option("--data", help="Groups of pairs (JSON Lines); repeatable.", exists=True, dir_okay=False),
    ]
    out: Annotated[Path, typer.Option("--out", help="Folder for the results; a collection there goes on.")]
    model: options.Model = "embedded"
    adapter: options.Adapter = "auto"
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Most prompts in all.")] = None
    batch: Annotated[int, typer.Option("--batch", min=1, help="Prompts decoded together.")] = 8
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", min=1, help="Default: what the agent allows each step.")
    ] = None
    free_text: Annotated[
        bool,
        typer.Option(
            "--free-text", help="Answers may have several lines, and those that reach the limit are kept as they are."
        ),
    ] = False
    dtype: options.Dtype = "auto"
    device: options.Device = "auto"
    seed: options.Seed = 0

    def share(self) -> dict[str, Any]:
        """The fields of `training.packs.collect.Share`."""
        allowed = allowed_tokens(self.max_new_tokens)
        return {
            "max_new_tokens": allowed,
            "batch": self.batch,
            "limit": self.limit,
            "seed": self.seed,
            "free_text": self.free_text,
        }

    def origin(self) -> dict[str, Any]:
        """The options on which the answers depend."""
        names = ("max_new_tokens", "seed", "free_text")
        return {name: getattr(self, name) for name in names}

    def load(self) -> "Callable[[], TextDecoder]":
        """A function that loads the model, here or in another process. Calling it may raise ModelError."""
        chosen: Any = self.adapter if self.adapter in ("auto", "none") else Path(self.adapter).absolute()
        return partial(load_text_decoder, self.model, dtype=self.dtype, device=self.device, adapter=chosen)

    def groups(self) -> "Iterator[Group]":
        """The groups of all data files. Raises TrainingDataError."""
        return (group for path in self.data for group in read_groups(path))
