"""What Jacobi training depends on besides `TrainConfig`."""

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

    The consistency loss begins near that of random guessing (10.8 nats for 49,152 tokens) while the answers' loss is 0.1, so
    with equal weights it would dominate the first steps. CLLM's code gives the answers ten times the weight, which took its
    accuracy on GSM8K from 51.3 to 56.4 and its speed from 3.2x to 3.0x (arXiv 2403.00835); Jacobi Forcing's divides the
    consistency by the number of blocks instead. The warm-up of the weight keeps the first steps out of the optimiser's second
    moments.
    """

    method: JacobiMethod = "jacobi_forcing"
    ar_weight: float = 10.0  # of the cross-entropy on the model's own answers and on gold ones
    consistency_weight: float = 1.0  # of the soft cross-entropy from noisy to clean rows
    consistency_warmup: float = 0.1  # share of the run in which that weight rises from 0
    gold_share: float = 1.0  # at most this many gold answers per trajectory
    sweeps: int | None = None  # make states during training, by 0 to N sweeps over a first guess; None: collected
    block_size: int = 16  # of states made during training; collected ones have their own
    first_guess: FirstGuess = "prompt"  # of states made during training
    draws: int = 1  # noisy chains per answer; they share its clean text in the forward
    # Jacobi Forcing
    window: int = 16  # blocks over which noise goes from 0 to 1
    schedule: Schedule = "linear"
    shift: bool = True  # start answers at a random block of the window, so that short ones see its noisy end, too
    # Consistency LLM
    consistency: Consistency = "global"  # learn the answers of the fixed point, or of the next state
    half_correct: bool = False  # add states in which half of the wrong tokens are corrected

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
        """The options that the loss curve depends on."""
        return {field.name: repr(getattr(self, field.name)) for field in fields(self)}
