"""The recipes of `sqlagent train all`: stages from benchmark folders to what is shipped.

A stage is a command of `sqlagent`, so that a recipe can also be run by hand.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage. `command`: what follows `sqlagent`, with {data}, {out} and {model} to be filled in; `result`: its result's path
    below OUT. `processes`: if more than one, that many share the work under torchrun with one thread each; a single process
    uses the whole machine.
    """

    name: str
    command: str
    result: str
    processes: int = 1

    def arguments(self, places: Mapping[str, str]) -> list[str]:
        """The command's words, with the placeholders filled in."""
        return [word.format(**places) for word in self.command.split()]


RESPONSES = Stage(
    "responses",
    "train head collect --data {out}/data/train.jsonl --model {model} --adapter {out}/shipped --samples 0 --limit 16000 "
    "--dtype int8 --out {out}/responses",
    "responses/responses.jsonl",
)
_TRAIN_MASKS = (
    "train masks --data {out}/responses/responses.jsonl --model {model} --adapter {out}/shipped --out {out}/masks "
    "--into {out}/shipped --lr 2e-3 --accumulate 1 --epochs 1 --resume "
)
_MASKS = Stage(
    "masks", f"{_TRAIN_MASKS}--warmup 0.03 --chains 128 --minutes 40", "shipped/masks.safetensors", processes=2
)
_MASKS_ON_A_GPU = Stage(
    "masks",
    f"{_TRAIN_MASKS}--pairs {{out}}/data/train.jsonl --depths 12 --ahead 2 --decay 0.9 --warmup 0.04 --final-rate 0.02 "
    "--pack-tokens 16384 --chains 2048",
    "shipped/masks.safetensors",
)


def export_of(stage: str, size: str = "") -> Stage:
    """The stage that writes the adapter of another stage as it is shipped, with options for its size."""
    return Stage(
        "export", f"train export {{out}}/{stage}/adapter --model {{model}} {size}--out {{out}}/shipped", "shipped"
    )


BACKBONE = "jetspec"  # trained first and longest; the other block heads start from it
BLOCK_HEADS = ("dflash", "domino", "path_tree")
HEADS = (BACKBONE, *BLOCK_HEADS, "medusa", "eagle3", "falcon", "draft_model")
# 15 minutes for the others; EAGLE-3 unrolls its layer seven times a step
MINUTES = {BACKBONE: 20, "path_tree": 40, "medusa": 5, "eagle3": 40}
DEEPER = {"path_tree": "--option layers=2 --option block_size=12 "}  # its guesses are used most


def _head_stages(kind: str) -> tuple[Stage, ...]:
    """The stages that train a head of one kind and write its 4-bit copy."""
    minutes = MINUTES.get(kind, 15)
    begin = f"--init-head {{out}}/heads/{BACKBONE}/head " if kind in BLOCK_HEADS else ""
    block = kind in (BACKBONE, *BLOCK_HEADS)
    options = DEEPER.get(kind, "")
    options += "--option anchors=64 " if block else ""  # smaller steps, so that more of them fit in the same time
    room = "--most-mb 4.7 " if kind in DEEPER else ""
    return (
        Stage(
            f"head-{kind}",
            f"train head --method {kind} --data {{out}}/features --model {{model}} --adapter {{out}}/shipped {begin}{options}"
            f"--out {{out}}/heads/{kind} --lr 1e-3 --accumulate 1 --epochs 6 --minutes {minutes} --resume",
            f"heads/{kind}/head",
            processes=2,
        ),
        Stage(
            f"export-{kind}",
            f"train head export {{out}}/heads/{kind}/head --data {{out}}/responses/responses.jsonl --model {{model}} "
            f"--adapter {{out}}/shipped {room}--out {{out}}/shipped_heads/{kind}",
            f"shipped_heads/{kind}",
        ),
    )


_TEXT = "{out}/text/messages.jsonl"
_ANSWER = (
    "train head collect --model {model} --adapter none --free-text --max-new-tokens 160 --batch 16 --decoder plain "
    "--dtype int8"
)
_TEXT_STAGES = (
    Stage(
        "text messages",
        f"data invent --count 8000 --model {{model}} --adapter none --out {_TEXT}",
        "text/messages.jsonl",
    ),
    Stage("text answers", f"{_ANSWER} --data {_TEXT} --out {{out}}/text/answers", "text/answers/responses.jsonl"),
    Stage(
        "text passages",
        "data passages --responses {out}/text/answers/responses.jsonl --count 1200 --model {model} "
        "--out {out}/text/passages.jsonl",
        "text/passages.jsonl",
    ),
    Stage(
        "answers from text passages",
        f"{_ANSWER} --data {{out}}/text/passages.jsonl --out {{out}}/text/readings",
        "text/readings/responses.jsonl",
    ),
    Stage(
        "text masks",
        "train masks --data {out}/text/answers/responses.jsonl --data {out}/text/readings/responses.jsonl --model {model} "
        "--adapter none --depths 6 --pair-tokens 6144 --out {out}/text/masks --lr 2e-3 --warmup 0.04 --final-rate 0.02 "
        "--accumulate 1 --minutes 60 --resume",
        "text/masks/masks/masks.safetensors",
        processes=2,
    ),
)


# What the target adds at mask tokens is trained once the target is frozen, on its own answers, like the heads. Heads, and
# what judges answers, are recipes of their own, run in the folder of a finished one.
RECIPES: dict[str, tuple[Stage, ...]] = {
    # For two CPU cores: fine-tuning takes 240 minutes, masks 40, everything else a few.
    "cpu": (
        Stage(
            "data",
            "data build --data {data} --out {out}/data --model {model} --variants 1.5 --per-schema 12 --originals 0.5 "
            "--spider-syn 0.5 --bird 0.4 --queries 0.35 --refine 0.02 --follow-ups 0.12 --wikisql 0.8 --seed 0",
            "data/manifest.json",
        ),
        Stage(
            "sft",
            "train sft --data {out}/data/train.jsonl --model {model} --out {out}/sft --lr 1e-3 --warmup 0.04 "
            "--pack-tokens 1024 --accumulate 1 --epochs 1 --minutes 240 --resume",
            "sft/adapter",
            processes=2,
        ),
        export_of("sft"),
        RESPONSES,
        _MASKS,
    ),
    # All data, with three passes over new schemas, and Jacobi Forcing, which makes its noise while training: it also learns
    # the data's answers, and continues from the fine-tuned adapter.
    "gpu": (
        Stage(
            "data",
            "data build --data {data} --out {out}/data --model {model} --variants 3 --originals 1 --wikisql 1 --seed 0",
            "data/manifest.json",
        ),
        Stage(
            "sft",
            "train sft --data {out}/data/train.jsonl --held-out {out}/data/held_back.jsonl --model {model} --out {out}/sft "
            "--rank 64 --lr 1.2e-3 --warmup 0.03 --final-rate 0.02 --pack-tokens 16384 --accumulate 1 --epochs 2 --resume",
            "sft/adapter",
        ),
        Stage(
            "jacobi",
            "train jacobi --sweeps 0 --first-guess mask --block-size 4 --window 2 --draws 4 --consistency-warmup 0.02 "
            "--data {out}/data/train.jsonl --model {model} --init-adapter {out}/sft/adapter --out {out}/jacobi "
            "--lr 1e-3 --warmup 0.04 --accumulate 1 --pack-tokens 8192 --epochs 2 --resume",
            "jacobi/adapter",
        ),
        export_of("jacobi", "--rank 50 --fine 8 "),  # 9.8 MB
        RESPONSES,
        _MASKS_ON_A_GPU,
    ),
    "heads": (
        RESPONSES,
        Stage(
            "features",
            "train head features --data {out}/responses/responses.jsonl --model {model} --adapter {out}/shipped "
            "--out {out}/features",
            "features/states.bf16",
        ),
        *(stage for kind in HEADS for stage in _head_stages(kind)),
    ),
    "text": _TEXT_STAGES,  # masks for the base model's ordinary text, without data
    "doubt": (
        Stage(
            "answers",
            "eval held_back --no-second-look --data {data} --model {model} --adapter {out}/shipped --at-once 8 "
            "--out {out}/answers",
            "answers/summary.json",
        ),
        Stage(
            "confidence",
            "train confidence --records {out}/answers --adapter {out}/shipped",
            "shipped/confidence.json",
        ),
        Stage(
            "pools",
            "train verifier collect --data {data} --model {model} --adapter {out}/shipped --at-once 8 --plans 10 "
            "--out {out}/pools",
            "pools/records.jsonl",
        ),
        Stage(
            "measured pools",
            "train verifier collect --held-back --data {data} --model {model} --adapter {out}/shipped --at-once 8 "
            "--out {out}/measured",
            "measured/records.jsonl",
        ),
        Stage(
            "verifier",
            "train verifier --pools {out}/pools --held-out {out}/measured --adapter {out}/shipped",
            "shipped/verifier.safetensors",
        ),
    ),
}
