"""`sqlagent train head`: trains draft heads for a frozen target, from its own answers to the head that is shipped.

sqlagent train head collect --data GROUPS --samples 2 --out RESPONSES       the target answers its training prompts
sqlagent train head features --data RESPONSES/responses.jsonl --out FEATURES    one pass: hidden states to disk, for all heads
sqlagent train head --method eagle3 --data FEATURES --out EAGLE3 --epochs 4     one head
sqlagent train head export EAGLE3/best --data RESPONSES/responses.jsonl --out SHIPPED    int4, and what that costs
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from agent.prompts.compact import PROMPT_VERSION
from app.shared import exit_codes, options, output
from app.shared.options import spread
from app.train.run_options import Collection, Schedule, plain_values, print_outcome, stop_on_signals
from decoding.checkpoints.cache_folder import on_stderr
from decoding.checkpoints.catalog import chosen_adapter, resolve
from decoding.checkpoints.identity import target_identity
from decoding.heads.head import load_head, save_head
from decoding.heads.published import published_layout
from decoding.serving.load import load_text_decoder
from training.heads.features import Features, load_objective
from training.heads.responses import FILE, Collecting, read_responses
from training.heads.responses import collect as collect_responses
from training.heads.training import export_head, make_features, train_head
from training.packs.collect import RecordLog
from training.run.base import load_base
from training.run.progress import keep_freed_memory

app = typer.Typer()

Responses = Annotated[
    list[Path], typer.Option("--data", help="Responses (JSON Lines); repeatable.", exists=True, dir_okay=False)
]


@app.callback(invoke_without_command=True)
@spread
def head(
    ctx: typer.Context,
    schedule: Schedule,
    method: Annotated[str | None, typer.Option("--method", help="Kind of head.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of features.", exists=True)] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for head, checkpoint and log.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="name=value of the method's training; repeatable.")
    ] = None,
    held_out_part: Annotated[float, typer.Option("--held-out-part", min=0.0, max=0.5, help="Of the features.")] = 0.02,
    init_head: Annotated[
        Path | None,
        typer.Option("--init-head", help="Begin with this head's weights, where shapes agree.", exists=True),
    ] = None,
    model: options.Model = "embedded",
    adapter: options.Adapter = "auto",
) -> None:
    """Train a head on features. Options, signals and output are those of `train sft`."""
    if ctx.invoked_subcommand:
        return
    if not method or data is None or out is None:
        raise typer.BadParameter(
            "training needs --method, --data and --out; `collect` and `features` make the data", ctx
        )
    with exit_codes.plain_errors(), stop_on_signals() as stopped:
        keep_freed_memory()
        objective = load_objective(method, **options.decoder_options(option))
        merged = adapter_of(model, adapter)
        config, features = schedule.config(), Features(data)
        outcome = train_head(
            config,
            load_base(model),
            features,
            objective,
            out,
            adapter=merged,
            held_out_part=held_out_part,
            begin=load_head(init_head) if init_head else None,
            resume=schedule.resume,
            stopped=stopped,
            prompt_version=PROMPT_VERSION,
            notes={"objective": repr(objective), "recipe": plain_values(asdict(config))},
        )
        print_outcome({"out": str(out), "method": method, **asdict(outcome)})


@app.command("collect")
@spread
def collect(
    of: Collection,
    samples: Annotated[
        int, typer.Option("--samples", min=0, help="Sampled answers per prompt, besides the greedy one.")
    ] = 0,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="Temperature of the sampled answers.")
    ] = 1.0,
    decoder: Annotated[str, typer.Option("--decoder", help="Any method: the text is the same.")] = "prompt_lookup",
) -> None:
    """Let the frozen target answer the prompts of training data. Progress on stderr; counts on stdout.

    Ctrl-C or SIGTERM ends it after a batch; the same command continues from there.
    """
    with exit_codes.plain_errors(), stop_on_signals() as stopped:
        how, running = Collecting(samples=samples, temperature=temperature, decoder=decoder, **of.share()), of.load()()
        target = target_identity(load_base(of.model).sha256, running.adapter, PROMPT_VERSION)
        origin = of.origin() | {"samples": samples, "temperature": temperature}
        log = RecordLog(of.out / FILE, origin | {"target": asdict(target)})
        counts = collect_responses(running, of.groups(), log, how, output.report, stopped)
        log.close()
        output.print_json({"out": str(log.path), **counts, "finished": not counts["remaining"]})


@app.command("features")
def features(
    data: Responses,
    out: Annotated[Path, typer.Option("--out", help="Folder for the states; a pass that was stopped goes on.")],
    model: options.Model = "embedded",
    adapter: options.Adapter = "auto",
    taps: Annotated[
        str | None,
        typer.Option("--taps", help="Layers, separated by commas. Default: those that any kind of head reads."),
    ] = None,
    pack_tokens: Annotated[int, typer.Option("--pack-tokens", min=16, help="Rows per forward.")] = 1024,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    seed: options.Seed = 0,
) -> None:
    """Compute the frozen target's hidden states for its responses, once for all heads, in bf16 (2 bytes per number)."""
    with exit_codes.plain_errors(), stop_on_signals() as stopped:
        wanted = tuple(map(int, taps.split(","))) if taps else None
        finished = make_features(
            load_base(model),
            adapter_of(model, adapter),
            data,
            out,
            taps=wanted,
            pack_tokens=pack_tokens,
            seed=seed,
            device=device,
            dtype=dtype,
            report=output.report,
            stopped=stopped,
        )
        output.print_json({"out": str(out), "finished": finished})


@app.command("export")
def export(
    trained: Annotated[Path, typer.Argument(help="Folder of a trained head.", exists=True)],
    data: Responses,
    out: Annotated[Path, typer.Option("--out", help="Folder for the int4 head.")],
    model: options.Model = "embedded",
    adapter: options.Adapter = "auto",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Prompts decoded with both heads.")] = 50,
    most_mb: Annotated[float, typer.Option("--most-mb", help="Largest folder, in MB.")] = 3.0,
    device: options.Device = "auto",
) -> None:
    """Write a head in int4, and measure how many tokens per forward that costs."""
    with exit_codes.plain_errors():
        chosen: Any = adapter if adapter in ("auto", "none") else Path(adapter)
        decoder = load_text_decoder(model, dtype="fp32", device=device, adapter=chosen)
        _, responses = read_responses(data)
        done = export_head(trained, out, decoder, responses, limit=limit, most_bytes=round(most_mb * 1e6))
        output.print_json({"out": str(out), **asdict(done)})


@app.command("import")
def import_published(
    published: Annotated[Path, typer.Argument(help="Folder of a published head.", exists=True, file_okay=False)],
    out: Annotated[Path, typer.Option("--out", help="Folder for the head.")],
    model: options.Model = "embedded",
    storage: Annotated[str, typer.Option("--storage", help="fp32, bf16 or int4.")] = "bf16",
) -> None:
    """Read a published head (Medusa, EAGLE-3, DFlash, JetSpec, Domino, Falcon) for its target and write it as ours."""
    with exit_codes.plain_errors():
        base = load_base(model)
        contents, layout = published_layout(published)
        found = layout.read(contents, base.config)
        size = save_head(found, out, target_identity(base.sha256, None), storage)  # type: ignore[arg-type]
        output.print_json(
            {"out": str(out), "kind": found.config.kind, "checked_against": layout.checked, "bytes": size}
        )


def adapter_of(model: str, adapter: str) -> Any:
    """The adapter that `--adapter` names for a model. Raises AdapterMismatch, ModelUnavailable."""
    wanted: Any = adapter if adapter in ("auto", "none") else Path(adapter)
    return chosen_adapter(model, resolve(model, on_stderr), wanted)
