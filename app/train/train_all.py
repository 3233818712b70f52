"""`sqlagent train all`: the recipes, and how their stages run.

A stage is a command of `sqlagent`, so that a recipe can also be run by hand.

A stage runs in processes of its own. It continues where it was stopped; OUT/stages.json says which stages are done, by which
command, and how long they took.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from app.shared import exit_codes, options, output


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
            "train sft --data {out}/data/train.jsonl --held-out {out}/data/held_out.jsonl --model {model} --out {out}/sft "
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
            "eval held_out --no-rerank --data {data} --model {model} --adapter {out}/shipped --at-once 8 "
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
            "train verifier collect --dataset held_out --data {data} --model {model} --adapter {out}/shipped --at-once 8 "
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


RECORD = "stages.json"
_ENTRY = (sys.executable, "-c", "from app.cli import main; main()")


class StageError(Exception):
    """A stage did not finish; the message is one line that says which and what to do."""


def train_all(
    data: Annotated[Path, typer.Option("--data", help="Folder with spider/, spider_syn/, bird/ and wikisql/.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for every stage's results; a run there goes on.")],
    recipe: Annotated[
        str, typer.Option("--recipe", help="What to run: cpu, gpu; after one of them heads or doubt; or text.")
    ] = "cpu",
    model: options.Model = "embedded",
) -> None:
    """Run every stage that has no result yet: data, training, export. Progress on stderr; the times on stdout as JSON.

    Ctrl-C or SIGTERM ends the stage with a checkpoint, from which the same command continues. The adapter is in OUT/shipped.
    """
    if recipe not in RECIPES:
        raise typer.BadParameter(
            f"there is no recipe {recipe}: choose one of {', '.join(RECIPES)}", param_hint="--recipe"
        )
    with exit_codes.plain_errors():
        places = {"data": str(data), "out": str(out), "model": model}
        output.print_json(run_stages(RECIPES[recipe], places, out))


def run_stages(stages: Sequence[Stage], places: Mapping[str, str], out: Path) -> dict[str, float]:
    """Run the stages that are not done yet; returns the seconds of every stage. Raises StageError."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / RECORD
    done: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for stage in stages:
        arguments = stage.arguments(places)
        known = done.get(stage.name, {})
        if known and known["command"] != arguments:
            raise StageError(f"{out} holds {stage.name} by another command: choose another folder, or delete that one")
        if known.get("finished") and (out / stage.result).exists():
            output.report(f"{stage.name}: done before, in {_minutes(known['seconds'])}")
            continue
        output.report(f"{stage.name}: sqlagent {shlex.join(arguments)}")
        start = monotonic()
        finished, code = _run(stage, arguments)
        seconds = known.get("seconds", 0.0) + monotonic() - start
        done[stage.name] = {"command": arguments, "finished": finished, "seconds": round(seconds, 1)}
        _write(file, done)
        if not finished:
            raise StageError(f"{stage.name} ended too soon (exit code {code}): the same command goes on from there")
        output.report(
            f"{stage.name}: {_minutes(seconds)}; {_minutes(sum(each['seconds'] for each in done.values()))} so far"
        )
    return {name: record["seconds"] for name, record in done.items()}


def _run(stage: Stage, arguments: Sequence[str]) -> tuple[bool, int]:
    """Whether the stage finished, according to the last line on its stdout, and its exit code."""
    command, env = [*_ENTRY, *arguments], dict(os.environ)
    if stage.processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--no-python", f"--nproc-per-node={stage.processes}"]
        command, env = [sys.executable, *launcher, *command], env | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process, _passed_on(process):
        said = process.communicate()[0].splitlines()
    outcome = json.loads(said[-1]) if process.returncode == exit_codes.OK and said else {}
    return process.returncode == exit_codes.OK and outcome.get("finished", True), process.returncode


@contextmanager
def _passed_on(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Forward SIGTERM to the stage and wait for its checkpoint; the terminal itself sends Ctrl-C to the stage."""
    previous = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM)),
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _write(file: Path, done: Mapping[str, Any]) -> None:
    """Write the file atomically."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
    part.replace(file)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
