"""Everything that a training run depends on, in one frozen record that is written with its results."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal


class TrainingError(ValueError):
    """A training run that is not possible; the one-line message says what to change."""


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Options of low-rank training, with peft's names and initial values."""

    rank: int = 32
    alpha: float = 64.0


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Options of one run. It ends at the first of `steps`, `epochs` and `minutes`; the schedule spans that length.

    With `minutes`, progress is the greater of the shares of steps and of time, so that the rate has decayed when time is up.
    """

    lora: LoraConfig | None = LoraConfig()  # None: train all matrices, embedding included, but no norms or biases
    init_adapter: Path | None = None  # start from this adapter, with its rank, alpha and modules
    grow_rank: int | None = None  # add components to that adapter until it has this rank
    learning_rate: float = 5e-4
    warmup: float = 0.03  # share of the run in which the rate rises from 0
    final_rate: float = 0.05  # the final rate as a multiple of `learning_rate`
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.99)
    clip: float = 1.0  # maximum norm of the gradient; 0: no clipping
    pack_tokens: int = 1024  # rows of a forward
    accumulate: int = 4  # packs per step and process
    steps: int | None = None
    epochs: float | None = None
    minutes: float | None = None
    seed: int = 0
    dtype: Literal["auto", "bf16", "fp32"] = "auto"
    device: str = "auto"
    checkpoint_minutes: float = 10.0
    checkpoint_steps: int | None = None
    validate_steps: int | None = None
    sharded: bool = False  # only without lora: split fp32 weights, moments and gradients among the processes
    stop_token: str | None = None  # its name, needed if the model has several

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None and self.minutes is None:
            raise TrainingError("a run needs an end: give steps, epochs or minutes")
        if self.init_adapter and self.lora is None:
            raise TrainingError("only low-rank training can start from an adapter: leave out --full or --init-adapter")
        if self.grow_rank and not self.init_adapter:
            raise TrainingError("only an adapter that is there can grow: give --init-adapter, or --rank for a new one")
        if self.sharded and self.lora:
            raise TrainingError("--sharded needs --full: a low-rank run has too little state to split")
        for name in ("learning_rate", "pack_tokens", "accumulate", "steps", "epochs", "minutes"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise TrainingError(f"{name} must be greater than 0, not {value}")

    def curve(self) -> dict[str, Any]:
        """The options that the loss curve depends on: a run can be resumed with other lengths or intervals, but not with others
        of these.
        """
        free = {"steps", "epochs", "minutes", "device", "sharded"}
        free |= {"checkpoint_minutes", "checkpoint_steps", "validate_steps"}
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in free}
        return {name: repr(value) for name, value in values.items()}
