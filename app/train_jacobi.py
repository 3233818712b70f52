"""`sqlagent train jacobi` and `sqlagent train jacobi collect`: a model that answers many tokens ahead, and its data.

sqlagent train jacobi collect --data GROUPS --adapter SFT --block-size 16 --out ROUND1
sqlagent train jacobi --data ROUND1/trajectories.jsonl --init-adapter SFT --out JF1 --epochs 1
sqlagent train jacobi collect --data GROUPS --adapter JF1/adapter --block-size 32 --out ROUND2
sqlagent train jacobi --data ROUND2/trajectories.jsonl --init-adapter JF1/adapter --out JF2 --epochs 1

Without a collection, where decoding is dear: sqlagent train jacobi --data GROUPS --sweeps 1 --init-adapter SFT --out JF
"""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from app import exits, options, output
from app.arguments import spread
from app.training import Recipe, StopToken, allowed_tokens, report, run, shard_of, stop_on_signals

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
        float, typer.Option("--ar-weight", min=0.0, help="Of the cross-entropy of the answers, own and gold.")
    ] = 10.0
    consistency_weight: Annotated[
        float, typer.Option("--consistency-weight", min=0.0, help="Of the soft cross-entropy from noisy to clean.")
    ] = 1.0
    consistency_warmup: Annotated[
        float, typer.Option("--consistency-warmup", min=0.0, max=0.9, help="Part of the run in which its weight rises.")
    ] = 0.1
    gold_share: Annotated[
        float, typer.Option("--gold-share", min=0.0, help="Gold answers per trajectory, at most, of those in --gold.")
    ] = 1.0
    sweeps: Annotated[
        int,
        typer.Option(
            "--sweeps", min=0, help="Make the noise while training, by N sweeps: --data then takes groups of pairs."
        ),
    ] = 0
    block_size: Annotated[int, typer.Option("--block-size", min=2, help="Tokens of a block (with --sweeps).")] = 16
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
    gold: Annotated[
        list[Path] | None,
        typer.Option(
            "--gold",
            help="Groups of pairs as `train sft` takes: their answers are learnt as well; repeatable.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    stop_token: StopToken = None,
    model: options.Model = "embedded",
) -> None:
    """Train on trajectories (Consistency LLM or Jacobi Forcing). Options, signals and output are those of `train sft`."""
    if ctx.invoked_subcommand:
        return
    if not data or out is None:
        raise typer.BadParameter("training needs --data and --out; `collect` makes the data", ctx)
    with exits.plain_errors():
        from decoding.training.data import read_groups
        from decoding.training.jacobi.objective import jacobi_objective
        from decoding.training.jacobi.trajectory import read_trajectories

        run(
            recipe,
            model,
            data,
            held_out or [],
            out,
            lambda path, base: read_groups(path) if how.sweeps else read_trajectories(path, base.sha256),
            stop_token=stop_token,
            objective=partial(
                jacobi_objective, how.config(), gold=(g for path in gold or [] for g in read_groups(path))
            ),
            notes={"jacobi": asdict(how) | {"gold": [path.name for path in gold or []]}},
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
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray", metavar="ADDRESS", help="Decode on a Ray cluster: host:port, auto, or local. The file is the same."
        ),
    ] = None,
    ray_workers: Annotated[
        int | None, typer.Option("--ray-workers", min=1, help="Models in all. Default: one for each GPU, or machine.")
    ] = None,
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
        from decoding.training.collecting import gather
        from decoding.training.data import read_groups
        from decoding.training.jacobi.collect import Collecting, Trajectories
        from decoding.training.jacobi.collect import collect as collect_trajectories
        from decoding.training.jacobi.trajectory import TrajectoryLog
        from decoding.training.ray_batches import ray_decoded

        parts, base = shard_of(shard), load_base(model)
        origin: dict[str, Any] = {
            "block_size": block_size,
            "max_new_tokens": max_new_tokens,
            "only_right": only_right,
            "seed": seed,
        }
        origin |= {"shard": shard, "adapter": adapter, "base": base.sha256}
        log = TrajectoryLog(out, origin)
        chosen: Any = adapter if adapter in ("auto", "none") else Path(adapter).absolute()
        load = partial(load_text_decoder, model, dtype=dtype, device=device, adapter=chosen)
        how = Collecting(block_size, allowed_tokens(max_new_tokens), batch, limit, seed, parts, only_right)
        groups = (group for path in data for group in read_groups(path))
        if ray is None:
            counts = collect_trajectories(load(), groups, log, how, report, stopped)
        else:
            decoded = partial(ray_decoded, ray, ray_workers, load, partial(Trajectories, how=how))
            counts = gather(base.tokenizer, groups, log, how, decoded, "trajectories", report, stopped)
        log.close()
        output.print_json({"out": str(log.path), **counts, "finished": not counts["remaining"]})
