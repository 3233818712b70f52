"""A random model whose answers end, its trajectories, and trajectories made up without any model."""

import json
from pathlib import Path
from random import Random

from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import TextDecoder
from tests.decoding.models.tiny_models import tiny_checkpoint
from training.jacobi.trajectory import FILE, Collecting, Trajectory, collect, read_trajectories
from training.packs.collect import RecordLog
from training.packs.groups import Group

BASE = "0" * 64
N = 4  # tokens of a block
ORIGIN = {"block_size": N, "base": BASE}


def ending_checkpoint(folder: Path, stop_ids: int = 25, **config: object) -> Path:
    """A tiny checkpoint with so many stop tokens that its greedy texts end."""
    tiny_checkpoint(folder, **config)  # type: ignore[arg-type]
    file = folder / "generation_config.json"
    settings = json.loads(file.read_text())
    ids = [2, *Random(0).sample(range(130, 320), stop_ids - 1)]
    file.write_text(json.dumps(settings | {"eos_token_id": ids}))
    return folder


def decoder_of(folder: Path, adapter: Path | None = None) -> TextDecoder:
    return load_text_decoder(str(folder), dtype="fp32", device="cpu", adapter=adapter or "none")


def collected(
    decoder: TextDecoder, groups: list[Group], out: Path, block_size: int = N, **how: object
) -> list[Trajectory]:
    """Trajectories of answers of at most 40 tokens."""
    log = RecordLog(out / FILE, ORIGIN | {"block_size": block_size})
    collect(decoder, groups, log, Collecting(block_size=block_size, max_new_tokens=lambda step: 40, **how))  # type: ignore[arg-type]
    log.close()
    return list(read_trajectories(out / FILE, BASE))


def invented_trajectories() -> list[Trajectory]:
    """Up to six blocks of N; the last one has one to N tokens."""
    chance = Random(0)
    return [_invented(number, 1 + number % 6, chance, last=1 + number % N) for number in range(8)]


def _invented(number: int, blocks: int, chance: Random, last: int) -> Trajectory:
    """Random states, each with more right tokens in front than the one before. `last`: tokens of the last block."""
    sizes = [N] * (blocks - 1) + [last]
    made = [_states(size, chance) for size in sizes]
    prompt = tuple(chance.randrange(10, 300) for _ in range(9))
    return Trajectory(
        id=f"{number // 2}",
        step="plan" if number % 2 else "generate",
        prompt=f"prompt {number}",
        prompt_ids=(3, 4, 5, *prompt),
        prefix=3,
        answer_ids=tuple(token for states in made for token in states[-1]),
        forwards=blocks,
        blocks=tuple(made),
    )


def _states(size: int, chance: Random) -> tuple[tuple[int, ...], ...]:
    fixed = tuple(chance.randrange(10, 300) for _ in range(size))
    accepted = sorted(chance.sample(range(size), min(size, 3)))
    noisy = [(*fixed[:right], *(300 + chance.randrange(20) for _ in range(size - right))) for right in accepted]
    return (*noisy, fixed)
