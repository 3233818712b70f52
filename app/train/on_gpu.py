"""Training on a machine that has a GPU, torch and little else, from packs that were made elsewhere.

sqlagent train sft --data GROUPS --lr 1.2e-3 --pack-tokens 16384 --minutes 6 --packs-only --out PACKS     where the data are
python -m app.train.on_gpu train PACKS --init-adapter ADAPTER --out OUT                                   where the GPU is
python -m app.train.on_gpu export OUT/adapter --average ADAPTER --rank 50 --fine 8 --out SHIPPED

`train jacobi` and `train masks` write packs, too. The loop is that of these commands. What is imported is torch, numpy,
safetensors, tokenizers, Jinja2, filelock, huggingface_hub, rich and typer (of any version, for its parser is not used): no
database, no SQL parser and no agent.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from app.train.export import export_adapter
from app.train.run_options import plain_values, stop_on_signals
from decoding.checkpoints.adapter import check_base, read_adapter
from decoding.checkpoints.identity import TargetIdentity, target_identity
from decoding.checkpoints.mask_adapter import read_mask_adapter
from decoding.errors import ModelError
from training.config import LoraConfig, TrainConfig, TrainingError
from training.heads.mask_model import MaskConfig, MaskLesson
from training.jacobi.states import JacobiConfig, JacobiPack, packed_jacobi
from training.loop import train
from training.objective import Objective, packed_answers
from training.packs.groups import TrainingDataError
from training.packs.packing import Pack
from training.packs.stored import Stored, read_packs
from training.run.base import Base, Subjects, language_model, load_base
from training.run.progress import keep_freed_memory

OVERRIDES = ("learning_rate", "minutes", "steps", "dtype", "device")


def train_packs(given: argparse.Namespace) -> dict[str, Any]:
    """Train with the options with which the packs were made, less those that are `given`; returns the outcome. Signals and
    progress are those of `train sft`. Raises what `train` raises.
    """
    stored, base = read_packs(given.packs), load_base(given.model)
    about = stored.about
    if about["base"] != base.sha256:
        raise TrainingError(f"{given.packs} was made for another base model: give that one with --model")
    config = _config(
        about["config"], {name: value for name in OVERRIDES if (value := getattr(given, name)) is not None}
    )
    if about["kind"] == "masks":
        learnt, subject = _masks(stored, base, given.init_adapter, given.init_masks)
    else:
        config = replace(config, init_adapter=given.init_adapter or config.init_adapter)
        learnt, subject = _model(stored), language_model
    with stop_on_signals() as stopped:
        outcome = train(
            config,
            base,
            (),
            given.out,
            objective=lambda *_: learnt,
            subject=subject,
            resume=given.resume,
            stopped=stopped,
            prompt_version=about["prompt_version"],
            notes={**about["notes"], "recipe": plain_values(asdict(config))},
        )
    return {"out": str(given.out), **asdict(outcome)}


def _config(made_with: Mapping[str, Any], given: Mapping[str, Any]) -> TrainConfig:
    lora, adapter = made_with["lora"], made_with["init_adapter"]
    typed = {
        "lora": lora and LoraConfig(**lora),
        "init_adapter": adapter and Path(adapter),
        "betas": tuple(made_with["betas"]),
    }
    return TrainConfig(**{**made_with, **typed, **given})


def _model(stored: Stored) -> Objective[Any]:
    left_out = stored.about["left_out"]
    if stored.about["kind"] == "jacobi":
        how = JacobiConfig(**stored.about["how"])
        return packed_jacobi(how, stored.packs(JacobiPack), stored.packs(JacobiPack, "held_out"), left_out)
    return packed_answers(stored.packs(Pack), stored.packs(Pack, "held_out"), left_out)


def _masks(
    stored: Stored, base: Base, target_adapter: Path | None, init_masks: Path | None
) -> tuple[Objective[Pack], Subjects]:
    """Raises TrainingError where the packs are the responses of another target."""
    how, adapter = stored.about["how"], None
    if target_adapter:
        adapter = read_adapter(target_adapter)
        check_base(adapter, base.sha256)
    asked = how["target"]
    target = TargetIdentity(**asked) if asked else target_identity(base.sha256, adapter, stored.about["prompt_version"])
    begin = read_mask_adapter(init_masks) if init_masks else None
    lesson = MaskLesson(MaskConfig(**how["masks"]), base, adapter, target, begin, how["like"], how["frequent"])
    packs, held_out = stored.packs(Pack), stored.packs(Pack, "held_out")
    return lesson.packed(packs, held_out, stored.about["left_out"]), lesson.subject


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m app.train.on_gpu", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    train_it = commands.add_parser("train", help="Train from packs.")
    train_it.set_defaults(run=train_packs)
    train_it.add_argument("packs", type=Path, help="A file that --packs-only has written.")
    train_it.add_argument("--init-adapter", type=Path, help="Go on from this adapter; for masks, the target's.")
    train_it.add_argument("--init-masks", type=Path, help="Folder of a mask adapter to begin with.")
    train_it.add_argument("--lr", dest="learning_rate", type=float, help="Peak learning rate.")
    train_it.add_argument("--minutes", type=float, help="Wall-clock budget, to which the schedule is fitted.")
    train_it.add_argument("--steps", type=int, help="Stop after so many steps.")
    train_it.add_argument("--dtype", choices=("auto", "bf16", "fp32"))
    train_it.add_argument("--device")
    train_it.add_argument("--resume", action="store_true", help="Go on with the run in --out, if there is one.")
    ship = commands.add_parser("export", help="Write the adapter that is shipped, as `sqlagent train export` does.")
    ship.set_defaults(
        run=lambda given: export_adapter(given.trained, given.out, given.model, given.rank, given.fine, given.average)
    )
    ship.add_argument("trained", type=Path)
    ship.add_argument("--rank", type=int)
    ship.add_argument("--fine", type=int)
    ship.add_argument("--average", type=Path)
    for each in (train_it, ship):
        each.add_argument("--out", type=Path, required=True)
        each.add_argument("--model", default="embedded")
    return parser


def main() -> None:
    given = _parser().parse_args()
    keep_freed_memory()
    try:
        print(json.dumps(given.run(given)))
    except (TrainingError, TrainingDataError, ModelError) as error:
        sys.exit(f"sqlagent: {error}")


if __name__ == "__main__":
    main()
