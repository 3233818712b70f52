"""The length of a run, its progress, and the learning rate that follows from it."""

from dataclasses import dataclass
from math import ceil, cos, inf, pi

from decoding.training.config import TrainConfig


@dataclass(frozen=True, slots=True)
class Length:
    """The end of a run in steps and in seconds; infinity if there is no such limit."""

    steps: float
    seconds: float

    def progress(self, step: float, elapsed_s: float) -> float:
        """0 at the start, 1 at the end."""
        return min(1.0, max(step / self.steps, elapsed_s / self.seconds))


def length_of(config: TrainConfig, packs: int, packs_per_step: int) -> Length:
    """The length of a run with `packs` packs per epoch."""
    steps = inf if config.steps is None else float(config.steps)
    if config.epochs is not None:
        steps = min(steps, ceil(config.epochs * packs / packs_per_step))
    return Length(steps, inf if config.minutes is None else 60 * config.minutes)


def learning_rate(config: TrainConfig, progress: float) -> float:
    """Linear from 0 over the warm-up, then a cosine down to `final_rate` of the peak."""
    if progress < config.warmup:
        return config.learning_rate * progress / config.warmup
    gone = (progress - config.warmup) / (1 - config.warmup)
    return config.learning_rate * (config.final_rate + (1 - config.final_rate) * (1 + cos(pi * gone)) / 2)
