"""The training loop: `train` takes data and writes an adapter (or a whole model), a log and a checkpoint.

A run is a function of configuration, base and data. Which packs a step takes, and its random draws, depend only on seed and
step, so a run that was stopped and resumed takes the same steps as one that was not, bit for bit on a CPU.

AdamW has fp32 states, and updates fp32 weights: those that the model computes with, or this process's shard of them. Its
gradients may come from several packs and several processes.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from decoding.checkpoints.adapter import About
from decoding.serving.load import chosen_dtype, tensor_dtype
from training.config import TrainConfig, TrainingError
from training.objective import Objective, Objectives, answers
from training.packs.packing import Pack, pack_order
from training.run import progress as checkpoint
from training.run.base import Base, Subject, Subjects, language_model
from training.run.progress import Reporter, World, join, learning_rate, leave, length_of


class Masters:
    """The fp32 weights that AdamW updates; the model computes with these themselves.

    Every process calls every method, in the same order. leaves: the weights by the names of the trained tensors; they have
    gradients after `add_up`.
    """

    leaves: Mapping[str, Tensor]

    def __init__(self, trained: Mapping[str, Tensor], world: World) -> None:
        self.leaves, self._world = trained, world

    def collect(self) -> None:
        """Take in the gradients of a backward pass; to be called after each one."""

    def add_up(self, loss: Tensor) -> Tensor:
        """Sum the gradients, and `loss` in place, over all processes; returns the norm of the whole gradient."""
        gradients: list[Tensor] = []
        for leaf in self.leaves.values():
            if leaf.grad is None:  # this process had no pack
                leaf.grad = torch.zeros_like(leaf)
            gradients.append(leaf.grad)
        self._world.add_up([*gradients, loss])
        return get_total_norm(gradients)

    def spread(self) -> None:
        """Give the model the weights that AdamW has updated."""

    def whole(self, name: str, leaf: Tensor) -> Tensor:
        """A leaf, or a moment of one, in full on the CPU; only the leader gets that."""
        return leaf.detach().cpu() if self._world.leads else leaf.detach()

    def part(self, whole: Tensor) -> Tensor:
        """This process's part of a leaf or a moment: the inverse of `whole`."""
        return whole


class Sharded(Masters):
    """Weights, moments and gradients in fp32 are sharded among the processes; the model computes with a copy in its own type.

    This is ZeRO (arXiv 1910.02054) for states and gradients, per tensor: in bf16 and with n processes, a weight takes
    2 + 2 + 16 / n bytes (the copy, its gradient, this process's shard) instead of 18. The masters are initialised from the
    copies, so an fp32 checkpoint that is trained in bf16 is rounded once.
    """

    def __init__(self, trained: Mapping[str, Tensor], world: World) -> None:
        self._trained, self._world = trained, world
        self.leaves = {name: world.part(copy.detach().float()).clone() for name, copy in trained.items()}

    def collect(self) -> None:
        for name, copy in self._trained.items():
            gradient = torch.zeros_like(copy) if copy.grad is None else copy.grad
            summed = self._world.part_of_sum(gradient.float())
            leaf, copy.grad = self.leaves[name], None
            leaf.grad = summed if leaf.grad is None else leaf.grad.add_(summed)

    def add_up(self, loss: Tensor) -> Tensor:
        norm = get_total_norm([leaf.grad for leaf in self.leaves.values() if leaf.grad is not None])
        squared = norm.square()
        self._world.add_up([loss, squared])
        return squared.sqrt()

    def spread(self) -> None:
        for name, copy in self._trained.items():
            copy.data.copy_(self._world.joined(self.leaves[name].to(copy.dtype), copy.shape))

    def whole(self, name: str, leaf: Tensor) -> Tensor:
        joined = self._world.joined(leaf.detach(), self._trained[name].shape)
        return joined.cpu() if self._world.leads else leaf.detach()

    def part(self, whole: Tensor) -> Tensor:
        return self._world.part(whole)


class Optimizer:
    """Clips the gradients, takes a step, and zeroes them. `trained`: the leaves by name."""

    def __init__(self, trained: Mapping[str, Tensor], config: TrainConfig, world: World) -> None:
        self._masters = Sharded(trained, world) if config.sharded else Masters(trained, world)
        self._clip, self._names = config.clip, list(trained)  # in the order in which AdamW numbers them
        self._adamw = torch.optim.AdamW(
            [self._masters.leaves[name] for name in self._names],
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def collect(self) -> None:
        """Take in the gradients of a backward pass; to be called after each one."""
        self._masters.collect()

    def step(self, rate: float, loss: Tensor) -> float:
        """Update with the gradients of all processes, and replace `loss` by its sum; returns the gradient's norm."""
        norm = self._masters.add_up(loss)
        clip_grads_with_norm_(self._masters.leaves.values(), self._clip or float("inf"), norm)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self._adamw.zero_grad()
        self._masters.spread()
        return float(norm)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """For a checkpoint: weights by name, and AdamW's own state. Every process calls this, but only the leader gets them
        whole.
        """
        weights = {name: self._masters.whole(name, leaf) for name, leaf in self._masters.leaves.items()}
        stored = self._adamw.state_dict()
        moments = {
            number: {
                key: self._masters.whole(self._names[number], value) if value.dim() else value
                for key, value in of.items()
            }
            for number, of in stored["state"].items()
        }
        return weights, {**stored, "state": moments}

    def restore(self, weights: Mapping[str, Tensor], stored: Mapping[str, Any]) -> None:
        """Load what `state` gave the leader, for any number of processes then and now."""
        for name, leaf in self._masters.leaves.items():
            leaf.data.copy_(self._masters.part(weights[name]))
        moments = {
            number: {key: self._masters.part(value) if value.dim() else value for key, value in of.items()}
            for number, of in stored["state"].items()
        }
        self._adamw.load_state_dict({**stored, "state": moments})
        self._masters.spread()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `finished`: it reached its length; otherwise it was stopped and can be resumed."""

    steps: int
    seconds: float
    loss: float | None  # of the last step; None if there was nothing left to do
    held_out: Mapping[str, float]  # of the last validation
    left_out: int  # pairs that are longer than a pack
    finished: bool


def train(
    config: TrainConfig,
    base: Base,
    data: Iterable[Any],
    out: Path,
    *,
    held_out: Iterable[Any] = (),
    objective: Objectives = answers,
    subject: Subjects = language_model,
    resume: bool = False,
    stopped: Callable[[], bool] = lambda: False,
    prompt_version: int | None = None,
    notes: Mapping[str, Any] | None = None,
) -> Outcome:
    """Train on `data` (what the objective takes; by default groups of pairs), measure on `held_out`, and write to `out`:

    `adapter/` (peft's format) or `model/` (hub layout) with the result so far (or what another `subject` writes), `best/`
    with the result of the lowest held-out loss, `log.jsonl`, and `checkpoint.pt`. `stopped` is asked before every step. Under
    torchrun, every process calls this.
    Raises TrainingError, TrainingDataError, ModelError.
    """
    world, device = join(config.device)
    ended = False
    try:
        about = About(base.name, base.sha256, prompt_version, dict(notes or {}))
        learnt = objective(config, base, data, held_out)
        dtype = tensor_dtype(chosen_dtype(config.dtype, device.type)[0])
        run = _Run(config, base, learnt, subject(config, base, about, dtype, device), out, world)
        run.begin(resume)
        while not run.finished and not world.agree(stopped()):
            run.advance()
        outcome = run.end()
        ended = True
        return outcome
    finally:
        leave(together=ended)


class _Run:
    """Owns the model, the optimiser and the step count."""

    def __init__(
        self,
        config: TrainConfig,
        base: Base,
        objective: Objective[Any],
        subject: Subject,
        out: Path,
        world: World,
    ) -> None:
        self._config, self._base, self._objective, self._subject = config, base, objective, subject
        self._out, self._world = out, world
        self._optimizer = Optimizer(subject.trained, config, world)
        self._packs_per_step = config.accumulate * world.size
        self._length = length_of(config, len(objective.packs), self._packs_per_step)
        self._curve = {
            **config.curve(),
            **objective.curve,
            "dtype": str(subject.dtype),
            "packs_per_step": str(self._packs_per_step),
            "base": base.sha256,
            "data": objective.digest(),
        }
        self._step, self._elapsed_s, self._best_loss = 0, 0.0, float("inf")
        self._loss: float | None = None
        self._values: Mapping[str, float] = {}

    @property
    def finished(self) -> bool:
        return self._length.progress(self._step, self._elapsed_s) >= 1.0

    def begin(self, resume: bool) -> None:
        """Load the folder's checkpoint, or start again if there is none."""
        if checkpoint.exists(self._out):
            if not resume:
                raise TrainingError(f"{self._out} holds a run already: resume it (--resume), or choose another folder")
            self._restore(checkpoint.load(self._out, self._curve))
        self._out.mkdir(parents=True, exist_ok=True)
        self._reporter = Reporter(self._out, self._length, self._step, self._world.leads)
        self._reporter.say(self._described())
        self._saved_at = monotonic()
        self._began_at = self._saved_at - self._elapsed_s

    def _described(self) -> str:
        packs, subject = self._objective.packs, self._subject
        trained = sum(tensor.numel() for tensor in subject.trained.values())
        return (
            f"training {trained / 1e6:.1f} M parameters of {self._base.name} in {subject.dtype} on {subject.device}: "
            f"{sum(len(each.pairs) for each in packs):,} pairs in {len(packs):,} packs, "
            f"{sum(each.rows for each in packs):,} tokens an epoch; {self._objective.left_out:,} pairs are too long; "
            f"from step {self._step}"
        )

    def advance(self) -> None:
        """Take one step, and validate and save if that is due after it."""
        start = monotonic()
        packs = self._batch()
        progress = self._length.progress(self._step + 0.5, self._elapsed_s)
        rate = learning_rate(self._config, progress)
        self._subject.at(progress)
        terms, norm = self._learn(packs, rate, progress)
        self._loss = terms["loss"]
        record = {
            "step": self._step,
            **terms,
            "learning_rate": rate,
            "gradient_norm": norm,
            "tokens": sum(each.rows for each in packs),
            "targets": sum(len(each.targets) for each in packs),
            "seconds": round(monotonic() - start, 4),
        }
        self._step += 1
        self._tick()
        self._reporter.step(record, self._elapsed_s)
        if self._due(self._config.validate_steps) and not self.finished:
            self._validate()
        unsaved_minutes = self._world.agree((monotonic() - self._saved_at) / 60)  # all save, or none
        if self._due(self._config.checkpoint_steps) or unsaved_minutes >= self._config.checkpoint_minutes:
            self._save()
        self._tick()

    def end(self) -> Outcome:
        """Write everything, validate if the run is finished, and return its outcome.

        Writing comes first, because the one that stopped the run may kill it if it takes long (torchrun does so after 30 s).
        """
        self._save()
        if self._world.leads:
            self._write(self._result_folder)
        if self.finished:
            self._validate()
            self._save()
        return Outcome(
            self._step, self._elapsed_s, self._loss, self._values, self._objective.left_out, finished=self.finished
        )

    def _batch(self) -> list[Pack]:
        """The packs of this step, for all processes. Epochs follow one another without a gap."""
        first, count = self._step * self._packs_per_step, len(self._objective.packs)
        indices = (divmod(number, count) for number in range(first, first + self._packs_per_step))
        return [self._objective.packs[pack_order(count, self._config.seed, epoch)[index]] for epoch, index in indices]

    def _learn(self, packs: list[Pack], rate: float, progress: float) -> tuple[dict[str, float], float]:
        """Update from this step's packs; returns the mean loss with its terms, and the norm of the gradient."""
        terms = torch.zeros(len(self._objective.terms), device=self._subject.device)
        factors = torch.tensor(
            self._objective.factors(progress) if self._objective.factors else 1.0, device=terms.device
        )
        with torch.random.fork_rng():
            for index in range(self._world.rank, len(packs), self._world.size):
                torch.manual_seed(_seed(self._config.seed, self._step, index))
                part = self._objective.loss(self._subject.model, packs[index], packs) * factors
                part.sum().backward()  # type: ignore[no-untyped-call]
                self._optimizer.collect()
                terms += part.detach()
        norm = self._optimizer.step(rate, terms)
        loss = float(terms.sum())
        if not isfinite(loss):
            raise TrainingError(f"the loss is {loss} at step {self._step}: lower the learning rate")
        return {"loss": loss} | dict(zip(self._objective.terms, terms.tolist(), strict=True)), norm

    def _validate(self) -> None:
        """Measure the result so far, and keep it if it is the best."""
        if not self._world.leads or not self._objective.held_out:
            return
        values = dict(self._objective.evaluate(self._subject.model, self._objective.held_out))
        self._reporter.held_out(self._step, values)
        self._values = values
        if values.get("loss", float("inf")) < self._best_loss:
            self._best_loss = values["loss"]
            self._write(self._out / "best")

    def _tick(self) -> None:
        """Update the elapsed time to the leader's, so that all processes have the same rate and end together."""
        self._elapsed_s = self._world.agree(monotonic() - self._began_at)

    def _due(self, every: int | None) -> bool:
        return bool(every) and self._step % (every or 1) == 0

    def _save(self) -> None:
        self._saved_at = monotonic()
        weights, optimizer = self._optimizer.state()
        if not self._world.leads:
            return
        stored = checkpoint.State(self._step, self._elapsed_s, self._curve, weights, optimizer, self._best_loss)
        checkpoint.save(stored, self._out)
        if self._subject.small:
            self._write(self._result_folder)

    def _restore(self, stored: checkpoint.State) -> None:
        self._step, self._elapsed_s, self._best_loss = stored.step, stored.elapsed_s, stored.best_loss
        self._optimizer.restore(stored.weights, stored.optimizer)

    @property
    def _result_folder(self) -> Path:
        return self._out / self._subject.result

    def _write(self, folder: Path) -> None:
        self._subject.write(folder)


def _seed(seed: int, step: int, index: int) -> int:
    """63 bits that differ for every pack of every step."""
    return int.from_bytes(hashlib.sha256(f"{seed} {step} {index}".encode()).digest()[:8], "little") >> 1
