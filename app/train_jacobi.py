"""`sqlagent train jacobi` and `sqlagent train jacobi collect`: a model that answers many tokens ahead, and its data.

sqlagent train jacobi collect --data GROUPS --adapter SFT --block-size 16 --out ROUND1
sqlagent train jacobi --data ROUND1/trajectories.jsonl --init-adapter SFT --out JF1 --epochs 1
sqlagent train jacobi collect --data GROUPS --adapter JF1/adapter --block-size 32 --out ROUND2
sqlagent train jacobi --data ROUND2/trajectories.jsonl --init-adapter JF1/adapter --out JF2 --epochs 1
"""

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from app import exits, options, output
from app.arguments import spread
from app.training import Recipe, run, stop_on_signals

if TYPE_CHECKING:
    from decoding.training.jacobi.config import JacobiConfig

app = typer.Typer()

Files = Annotated[
    list[Path] | None,
    typer.Option("--data", help="Trajectories (JSON Lines); repeatable.", exists=True, dir_okay=False),
]
HeldOut = Annotated[
    list[Path] | None,
    typer.Option("--held-out", help="Trajectories to measure on; repeatable.", exists=True, dir_okay=False),
]


@dataclass(frozen=True, slots=True)
class Jacobi:
    """`JacobiConfig` on the command line."""

    method: Annotated[Literal["cllm", "jacobi_forcing"], typer.Option("--method")] = "jacobi_forcing"
    ar_weight: Annotated[
        float, typer.Option("--ar-weight", min=0.0, help="Of the cross-entropy of the model's own answers.")
    ] = 1.0
    consistency_weight: Annotated[
        float, typer.Option("--consistency-weight", min=0.0, help="Of the soft cross-entropy from noisy to clean.")
    ] = 1.0
    draws: Annotated[int, typer.Option("--draws", min=1, help="Noisy chains per answer; its prompt is fed once.")] = 1
    window: Annotated[int, typer.Option("--window", min=2, help="Blocks over which noise grows (jacobi_forcing).")] = 16
    schedule: Annotated[
        Literal["linear", "random", "reverse"], typer.Option("--schedule", help="Of the noise (jacobi_forcing).")
    ] = "linear"
    shift: Annotated[
        bool, typer.Option("--shift/--no-shift", help="Begin each answer anywhere in the window (jacobi_forcing).")
    ] = True
    consistency: Annotated[
        Literal["global", "local"], typer.Option("--consistency", help="With the fixed point or the next state (cllm).")
    ] = "global"
    half_correct: Annotated[
        bool, typer.Option("--half-correct", help="Also states whose wrong tokens are half corrected (cllm).")
    ] = False

    def config(self) -> "JacobiConfig":
        """Raises TrainingError."""
        from decoding.training.jacobi.config import JacobiConfig

        return JacobiConfig(**asdict(self))


@app.callback(invoke_without_command=True)
@spread
def jacobi(
    ctx: typer.Context,
    how: Jacobi,
    recipe: Recipe,
    data: Files = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for adapter, checkpoint and log.")] = None,
    held_out: HeldOut = None,
    model: options.Model = "embedded",
) -> None:
    """Train on trajectories (Consistency LLM or Jacobi Forcing). Options, signals and output are those of `train sft`."""
    if ctx.invoked_subcommand:
        return
    if not data or out is None:
        raise typer.BadParameter("training needs --data and --out; `collect` makes the data", ctx)
    with exits.plain_errors():
        from decoding.training.jacobi.objective import jacobi_objective
        from decoding.training.jacobi.trajectory import read_trajectories

        run(
            recipe,
            model,
            data,
            held_out or [],
            out,
            lambda path, base: read_trajectories(path, base.sha256),
            objective=partial(jacobi_objective, how.config()),
            notes={"jacobi": asdict(how)},
        )


@app.command("collect")
def collect(
    data: Annotated[
        list[Path],
        typer.Option("--data", help="Groups of pairs (JSON Lines); repeatable.", exists=True, dir_okay=False),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for trajectories.jsonl; a collection there goes on.")],
    model: options.Model = "embedded",
    adapter: options.Adapter = "auto",
    block_size: Annotated[int, typer.Option("--block-size", min=2, help="Tokens of a block.")] = 16,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Prompts in all (of the shard).")] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Prompts decoded together.")] = 8,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", min=1, help="Default: what the agent allows each step.")
    ] = None,
    only_right: Annotated[
        bool, typer.Option("--only-right", help="Leave out answers that are not the gold one.")
    ] = False,
    shard: Annotated[
        str, typer.Option("--shard", help="i/n: the i-th of n parts, each for a process and a folder of its own.")
    ] = "1/1",
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    seed: options.Seed = 0,
) -> None:
    """Decode the prompts greedily with Jacobi's method and keep every state. Progress on stderr; counts on stdout.

    Ctrl-C or SIGTERM ends it after a batch; the same command goes on from there.
    """
    with exits.plain_errors(), stop_on_signals() as stopped:
        from decoding.load import load_text_decoder
        from decoding.training.base import load_base
        from decoding.training.data import read_groups
        from decoding.training.jacobi.collect import Collecting
        from decoding.training.jacobi.collect import collect as collect_trajectories
        from decoding.training.jacobi.trajectory import TrajectoryLog

        parts = _shard(shard)
        origin: dict[str, Any] = {
            "block_size": block_size,
            "max_new_tokens": max_new_tokens,
            "only_right": only_right,
            "seed": seed,
        }
        origin |= {"shard": shard, "adapter": adapter, "base": load_base(model).sha256}
        log = TrajectoryLog(out, origin)
        chosen: Any = adapter if adapter in ("auto", "none") else Path(adapter)
        decoder = load_text_decoder(model, dtype=dtype, device=device, adapter=chosen)
        how = Collecting(block_size, _allowed(max_new_tokens), batch, limit, seed, parts, only_right)
        groups = (group for path in data for group in read_groups(path))
        counts = collect_trajectories(decoder, groups, log, how, _report, stopped)
        log.close()
        output.print_json({"out": str(log.path), **counts, "finished": not counts["remaining"]})


def _allowed(max_new_tokens: int | None) -> Callable[[str], int]:
    """Most tokens of an answer, by step."""
    from agent.profiles.compact import Compact

    def agents(step: str) -> int:
        return Compact().max_new_tokens("plan" if step == "plan" else "generate")

    return agents if max_new_tokens is None else lambda step: max_new_tokens


def _shard(text: str) -> tuple[int, int]:
    """(which, from 0; of how many)."""
    number, found, count = text.partition("/")
    if not (found and number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise typer.BadParameter(f"{text!r} is not of the form i/n with 1 <= i <= n", param_hint="--shard")
    return int(number) - 1, int(count)


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
