"""`sqlagent train all`: runs all stages from benchmark folders to the adapter that is shipped.

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
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from app.shared import exit_codes, options, output
from app.train.recipes import RECIPES, Stage

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
