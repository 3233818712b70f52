"""The two long steps of making a head, each resumable: computing the target's states of its responses, and training on them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from decoding.checkpoints.adapters.adapter import Adapter, merged_weights
from decoding.checkpoints.target_identity import target_identity
from decoding.checkpoints.weight_files import read_weights
from decoding.heads.head import Head
from decoding.heads.taps import all_taps
from decoding.serving.load import chosen_dtype, load_text_decoder, tensor_dtype
from decoding.training.config import TrainConfig, TrainingError
from decoding.training.heads.features import Features, Origin, States, digest_of, packs_of, write_features
from decoding.training.heads.objective import HeadObjective
from decoding.training.heads.responses import read_responses
from decoding.training.heads.training import HeadLesson
from decoding.training.loop import Outcome, train
from decoding.training.model.base import Base
from decoding.training.model.engine_states import EngineStates
from decoding.training.model.forward import TrainModel
from decoding.training.run.processes import join


def make_features(
    base: Base,
    adapter: Adapter | None,
    responses: Iterable[Path],
    folder: Path,
    *,
    taps: Sequence[int] | None = None,
    pack_tokens: int = 1024,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    report: Callable[[str], None] = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Run the frozen target over its responses; returns whether it finished. The same call resumes where it was stopped.

    taps: None stores what any kind of head reads. dtype: "int8" takes the states of decoding in int8. Raises TrainingError,
    TrainingDataError.
    """
    target, listed = read_responses(responses)
    mine = replace(target_identity(base.sha256, adapter), prompt_hash=target.prompt_hash)
    if difference := target.difference(mine):
        raise TrainingError(f"the responses are of another target ({difference}): collect them with this one")
    packs, left_out = packs_of(listed, pack_tokens, seed)
    if not packs:
        raise TrainingError(f"there is nothing to learn from: no answer has at most pack_tokens = {pack_tokens} tokens")
    report(f"{sum(len(each.pairs) for each in packs):,} answers in {len(packs):,} packs; {left_out:,} are too long")
    config = base.config
    wanted = tuple(sorted({*(all_taps(config.layers) if taps is None else taps), config.layers}))
    origin = Origin(target, wanted, config.hidden_size, config.vocab_size, pack_tokens, seed, digest_of(packs), dtype)
    return write_features(_states_of(base, adapter, dtype, device), packs, origin, folder, report, stopped)


def _states_of(base: Base, adapter: Adapter | None, dtype: str, device: str) -> States:
    """The target's forward: torch's, or in int8 that of the engine, whose states drafts are made from."""
    _, where = join(device)
    if dtype == "int8":
        own: Path | Literal["none"] = adapter.files[0].parent if adapter else "none"
        return EngineStates(load_text_decoder(str(base.folder), dtype=dtype, device=where.type, adapter=own))
    chosen, _ = chosen_dtype(dtype, where.type)
    weights = merged_weights(read_weights(base.folder), adapter)
    model = TrainModel(base.config, weights, {}, None, tensor_dtype(chosen), where)
    return lambda pack, taps: model.states(model.rows(pack), taps)


def train_head(
    config: TrainConfig,
    base: Base,
    features: Features,
    objective: HeadObjective,
    out: Path,
    *,
    adapter: Adapter | None = None,
    held_out_part: float = 0.02,
    begin: Head | None = None,
    resume: bool = False,
    stopped: Callable[[], bool] = lambda: False,
    prompt_version: int | None = None,
    notes: Mapping[str, Any] | None = None,
) -> Outcome:
    """Train a head; writes to `out` as `loop.train` does, with the head in `head/` and the best one in `best/`.

    begin: a head whose weights the new one takes if names and shapes agree. Raises TrainingError if none do.
    """
    lesson = HeadLesson(objective, features, base, adapter, begin)
    learnt = lesson.objective(held_out_part)
    return train(
        config,
        base,
        (),
        out,
        objective=lambda *_: learnt,
        subject=lesson.subject,
        resume=resume,
        stopped=stopped,
        prompt_version=prompt_version,
        notes=notes,
    )
