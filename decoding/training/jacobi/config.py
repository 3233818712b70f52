"""What Jacobi training depends on beside `TrainConfig`."""

from dataclasses import dataclass, fields
from typing import Literal

from decoding.training.config import TrainingError

JacobiMethod = Literal["cllm", "jacobi_forcing"]
Schedule = Literal["linear", "random", "reverse"]
Consistency = Literal["global", "local"]


@dataclass(frozen=True, slots=True)
class JacobiConfig:
    """Options of both methods; each method reads its own."""

    method: JacobiMethod = "jacobi_forcing"
    ar_weight: float = 1.0  # of the cross-entropy of the model's own answers
    consistency_weight: float = 1.0  # of the soft cross-entropy from noisy to clean
    draws: int = 1  # noisy chains of every answer; they share its clean text in the forward
    # Jacobi Forcing
    window: int = 16  # blocks over which noise goes from 0 to 1
    schedule: Schedule = "linear"
    shift: bool = True  # each answer begins anywhere in the window: short answers would never see its noisy end
    # Consistency LLM
    consistency: Consistency = "global"  # learn the fixed point's answers, or those of the state that follows
    half_correct: bool = False  # also states in which half of the wrong tokens are right

    def __post_init__(self) -> None:
        if self.method == "jacobi_forcing" and self.window < 2:
            raise TrainingError(f"window must be 2 blocks or more, not {self.window}: noise grows from block to block")
        if self.draws < 1:
            raise TrainingError(f"draws must be 1 or more, not {self.draws}")
        if min(self.ar_weight, self.consistency_weight) < 0:
            raise TrainingError("loss weights must not be negative")

    def curve(self) -> dict[str, str]:
        """What the curve depends on."""
        return {field.name: repr(getattr(self, field.name)) for field in fields(self)}
