"""`sqlagent train sft|export`: train a model on groups of pairs, and make what was trained ready to be shipped.

Several processes: `torchrun --no-python --nproc-per-node 2 sqlagent train sft ...`.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app import exits, options, output

if TYPE_CHECKING:
    from decoding.training.config import TrainConfig
    from decoding.training.loop import Outcome

app = typer.Typer(help="Train the model for the agent's steps.", no_args_is_help=True)

Files = Annotated[
    list[Path], typer.Option("--data", help="Groups of pairs (JSON Lines); repeatable.", exists=True, dir_okay=False)
]
HeldOut = Annotated[
    list[Path] | None,
    typer.Option("--held-out", help="Groups to measure on; repeatable.", exists=True, dir_okay=False),
]
OutFolder = Annotated[Path, typer.Option("--out", help="Folder for adapter, checkpoint and log.")]
Folder = Annotated[Path, typer.Argument(help="An adapter (ours or peft's) or a whole trained model.", exists=True)]


@app.command("sft")
def sft(
    data: Files,
    out: OutFolder,
    held_out: HeldOut = None,
    model: options.Model = "embedded",
    full: Annotated[bool, typer.Option("--full", help="Train all matrices instead of a low-rank adapter.")] = False,
    rank: Annotated[int, typer.Option("--rank", min=1)] = 32,
    alpha: Annotated[float | None, typer.Option("--alpha", help="Default: twice the rank.")] = None,
    targets: Annotated[str, typer.Option("--targets", help="Layers that get factors.")] = "all",
    dropout: Annotated[float, typer.Option("--dropout", min=0.0, max=0.9, help="Before the low-rank factors.")] = 0.0,
    rank_stabilised: Annotated[bool, typer.Option("--rank-stabilised", help="rsLoRA's scale.")] = False,
    b_rate: Annotated[float, typer.Option("--b-rate", help="LoRA+: B's learning rate over A's.")] = 1.0,
    init_adapter: Annotated[
        Path | None,
        typer.Option("--init-adapter", help="Go on from this adapter, on any machine; the rate warms up anew."),
    ] = None,
    learning_rate: Annotated[float, typer.Option("--learning-rate", "--lr")] = 5e-4,
    warmup: Annotated[float, typer.Option("--warmup", min=0.0, max=0.9, help="Part of the run.")] = 0.03,
    final_rate: Annotated[float, typer.Option("--final-rate", min=0.0, max=1.0, help="Last rate over peak.")] = 0.05,
    weight_decay: Annotated[float, typer.Option("--weight-decay", min=0.0)] = 0.01,
    clip: Annotated[float, typer.Option("--clip", min=0.0, help="Largest norm of the gradient; 0: any.")] = 1.0,
    label_smoothing: Annotated[float, typer.Option("--label-smoothing", min=0.0, max=0.9)] = 0.0,
    pack_tokens: Annotated[int, typer.Option("--pack-tokens", min=16, help="Tokens of a forward.")] = 1024,
    accumulate: Annotated[int, typer.Option("--accumulate", min=1, help="Packs a step, per process.")] = 4,
    steps: Annotated[int | None, typer.Option("--steps", min=1)] = None,
    epochs: Annotated[float | None, typer.Option("--epochs")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Wall-clock budget; the schedule fits it.")] = None,
    seed: options.Seed = 0,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    checkpoint_minutes: Annotated[float, typer.Option("--checkpoint-minutes")] = 10.0,
    checkpoint_steps: Annotated[int | None, typer.Option("--checkpoint-steps", min=1)] = None,
    validate_steps: Annotated[int | None, typer.Option("--validate-steps", min=1)] = None,
    stop_token: Annotated[str | None, typer.Option("--stop-token", help="By name, where there are several.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")] = False,
) -> None:
    """Train on prompts and answers. Progress on stderr; the last line on stdout is the outcome as JSON.

    Ctrl-C or SIGTERM ends the run after its step, with a checkpoint: --resume goes on from there.
    """
    given = dict(locals())
    with exits.plain_errors():
        from decoding.training.config import LINEAR_LAYERS, LoraConfig, TrainConfig

        layers = LINEAR_LAYERS if targets == "all" else tuple(targets.split(","))
        lora = LoraConfig(rank, 2.0 * rank if alpha is None else alpha, layers, dropout, rank_stabilised, b_rate)
        known = {field.name for field in fields(TrainConfig)} & given.keys()
        config = TrainConfig(**{name: given[name] for name in known}, lora=None if full else lora)
        outcome = _train(config, model, data, held_out or [], out, resume)
        if os.environ.get("RANK", "0") == "0":  # of torchrun's processes, one speaks
            output.print_json({"out": str(out), **asdict(outcome)})


def _train(
    config: "TrainConfig", model: str, data: list[Path], held_out: list[Path], out: Path, resume: bool
) -> "Outcome":
    from agent.profiles.compact import PROMPT_VERSION
    from decoding.training.base import load_base
    from decoding.training.data import read_groups
    from decoding.training.loop import train

    base = load_base(model)
    with _stop_on_signals() as stopped:
        return train(
            config,
            base,
            (group for path in data for group in read_groups(path)),
            out,
            held_out=(group for path in held_out for group in read_groups(path)),
            resume=resume,
            stopped=stopped,
            prompt_version=PROMPT_VERSION,
            notes={"data": [path.name for path in data], "recipe": _plain(asdict(config))},
        )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """As JSON takes it."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


@contextmanager
def _stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Whether the run shall end after its step. A second signal ends the process at once."""
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


@app.command("export")
def export(
    trained: Folder,
    out: Annotated[Path, typer.Option("--out", help="Folder for the int8 adapter.")],
    model: options.Model = "embedded",
    rank: Annotated[int, typer.Option("--rank", min=1, help="Of the adapter of a whole model.")] = 32,
) -> None:
    """Write the int8 adapter that is shipped, from a trained adapter or a whole trained model."""
    with exits.plain_errors():
        from agent.profiles.compact import PROMPT_VERSION
        from decoding.adapter import About, check_base
        from decoding.adapter_files import read_adapter, write_adapter
        from decoding.training.base import factorised, load_base

        base = load_base(model)
        if (trained / "config.json").exists():
            adapter = factorised(base, trained, rank, About(base.name, base.sha256, PROMPT_VERSION))
        else:
            adapter = read_adapter(trained)
            check_base(adapter, base.sha256)
        size_bytes = write_adapter(adapter, out)
        output.print_json({"out": str(out), "rank": adapter.rank, "bytes": size_bytes})
