"""What Jacobi training depends on beside `TrainConfig`."""

from dataclasses import dataclass, fields
from typing import Literal

from decoding.methods.jacobi.first_guess import FirstGuess
from decoding.training.config import TrainingError

JacobiMethod = Literal["cllm", "jacobi_forcing"]
Schedule = Literal["linear", "random", "reverse"]
Consistency = Literal["global", "local"]


@dataclass(frozen=True, slots=True)
class JacobiConfig:
    """Options of both methods; each method reads its own.

    The consistency loss begins near that of guessing (10.8 nats for 49,152 tokens) where the answers' own is 0.1, so that at
    equal weights the first steps are its alone. CLLM's code weighs the answers 10 times, which took its accuracy on GSM8K from
    51.3 to 56.4 and its speed from 3.2x to 3.0x (arXiv 2403.00835); Jacobi Forcing's divides the consistency by the number of
    blocks instead. The weight's slow rise keeps the optimiser's second moments from remembering the first steps.
    """

    method: JacobiMethod = "jacobi_forcing"
    ar_weight: float = 10.0  # of the cross-entropy of the model's own answers and of gold ones
    consistency_weight: float = 1.0  # of the soft cross-entropy from noisy to clean
    consistency_warmup: float = 0.1  # part of the run in which that weight rises from 0
    gold_share: float = 1.0  # gold answers per trajectory, at most
    sweeps: int | None = None  # states are made while training, by 0 to N sweeps over a first guess; None: collected
    block_size: int = 16  # of states that are made; collected ones bring theirs
    first_guess: FirstGuess = "prompt"  # of states that are made
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
        if (self.sweeps or 0) < 0 or self.block_size < 2:
            raise TrainingError(f"sweeps must not be negative, nor a block of {self.block_size} tokens shorter than 2")
        if self.draws < 1:
            raise TrainingError(f"draws must be 1 or more, not {self.draws}")
        if min(self.ar_weight, self.consistency_weight, self.gold_share) < 0:
            raise TrainingError("loss weights and shares must not be negative")
        if not 0 <= self.consistency_warmup < 1:
            raise TrainingError(f"consistency_warmup must be a part of the run, not {self.consistency_warmup}")

    def curve(self) -> dict[str, str]:
        """What the curve depends on."""
        return {field.name: repr(getattr(self, field.name)) for field in fields(self)}
